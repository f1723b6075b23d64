//! The cache engine: a crash-safe, mirrored, log-structured cache of (object, 4 KiB block) pairs.
//!
//! The engine uses no sockets, threads or clocks directly: it reaches its environment through the traits of [`io`].
//! So one code runs in production and in the simulator. Start with [`Engine`].

pub mod buffer;
mod core;
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
mod mode;
pub mod planted_bugs;
pub mod pool;
mod recover;
mod request;
mod segments;
mod tiers;
mod volume;
pub mod wait;

pub use core::clean_loader::CleanLoading;
pub use core::env::{Deliver, Env};
pub use core::scrubber::Scrub;
pub use core::settings::Settings;
pub use counters::{Counters, Usage};
pub use engine::Engine;
pub use engine::opening::Opening;
pub use error::Error;
use error::Result;
pub use event::Event;
pub use format::USER_RECORD_MAX;
pub use index::account::Account;
pub use index::object::CachedObject;
pub use index::policy::{Keep, Policy, Priority, Streams};
pub use index::version_watch::Version;
pub use log::user_records::{UserRecord, UserRecordId};
pub use maintain::devices::ChangeError;
pub use mode::Mode;
pub use recover::outcome::{OpenError, Recovered};
pub use recover::progress::RecoveryProgress;
pub use request::bypass::BypassWrite;
pub use request::outcome::Outcome;
pub use request::unsynced::Syncing;
pub use request::warm::Warmed;
pub use request::write::Logged;
pub use volume::status::VolumeStatus;

/// The number of a frame of the log. It grows by one with every frame.
pub type Seq = u64;

/// A callback that is called once, with the result of making data durable.
pub type Completion = Box<dyn FnOnce(Result<()>) + Send>;
