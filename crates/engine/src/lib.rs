//! The cache engine: a crash-safe, mirrored, log-structured cache of (object, 4 KiB block) pairs.
//!
//! It knows no sockets, threads or clocks: everything outside comes in through the traits of [`io`], so that the same
//! code runs in production and in the simulator. Start with [`Engine`].

mod account;
mod again;
mod batch;
pub mod buffer;
mod carry;
mod clean;
mod commit;
mod compact;
mod counters;
mod cut;
mod destage;
mod destaged;
mod devices;
mod direct;
mod engine;
mod error;
mod event;
mod evict;
pub mod format;
mod gathered;
mod ghost;
mod gone;
pub mod io;
mod lane;
mod late;
mod lead;
mod leaf;
mod legs;
mod log;
mod members;
mod notes;
mod object;
mod objects;
mod outside;
mod pace;
pub mod plant;
pub mod pool;
mod ram;
mod ranges;
mod read;
mod recover;
mod rewrite;
mod scrub;
mod segments;
mod service;
mod sync;
mod volatile;
mod wait;
mod warm;
mod write;

pub use account::Account;
pub use counters::{Counters, Usage};
pub use devices::ChangeError;
pub use direct::Direct;
pub use engine::{Deliver, Engine, Env, Mode, Settings};
pub use error::Error;
use error::Result;
pub use event::Event;
pub use lane::Volume;
pub use notes::{NOTE_MAX, Note, NoteId};
pub use object::Object;
pub use outside::Version;
pub use read::TriedRead;
pub use recover::{OpenError, Opening, Recovered, RecoveryProgress};
pub use scrub::Scrub;
pub use volatile::Syncing;
pub use warm::Warming;
pub use write::{Logged, Tried};

/// The number of a frame of the log: grows by one with every frame.
pub type Seq = u64;

/// Told once whether something became durable.
pub type Completion = Box<dyn FnOnce(Result<()>) + Send>;
