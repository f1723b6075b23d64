//! The cache engine: a crash-safe, mirrored, log-structured cache of (object, 4 KiB block) pairs.
//!
//! The engine uses no sockets, threads or clocks directly: it reaches its environment through the traits of [`io`].
//! So one code runs in production and in the simulator. Start with [`Engine`].

pub mod buffer;
mod counters;
mod destage;
mod engine;
mod error;
mod event;
pub mod format;
mod index;
pub mod io;
mod log;
mod maintain;
pub mod plant;
pub mod pool;
mod recover;
mod request;
mod segments;
mod tiers;
mod volume;
pub mod wait;

pub use counters::{Counters, Usage};
pub use engine::{Deliver, Engine, Env, Mode, Settings};
pub use error::Error;
use error::Result;
pub use event::Event;
pub use index::account::Account;
pub use index::object::Object;
pub use log::user_records::{USER_RECORD_MAX, UserRecord, UserRecordId};
pub use maintain::scrub::Scrub;
pub use pool::devices::ChangeError;
pub use recover::load_clean::CleanLoading;
pub use recover::{OpenError, Opening, Recovered, RecoveryProgress};
pub use request::bypass::BypassWrite;
pub use request::external_change::Version;
pub use request::read::TriedRead;
pub use request::unsynced::Syncing;
pub use request::write::{Logged, Tried};
pub use volume::VolumeStatus;

/// The number of a frame of the log. It grows by one with every frame.
pub type Seq = u64;

/// A callback that is called once, with the result of making data durable.
pub type Completion = Box<dyn FnOnce(Result<()>) + Send>;
