//! Notifications of events, sent by a process of their own.
//!
//! The server may execute no program once it serves (docs/decisions/029-system-calls.md). So it starts a second process
//! before, which is [`run`]. The server sends [`Order`]s as lines of JSON, and the process answers with [`Report`]s.
//! Each target has a thread and a bounded queue there, so that a target that hangs delays neither the server nor
//! another target (docs/decisions/063-notifications.md).

mod deliver;
mod limiter;
mod message;
mod payload;
mod process;
mod target;

pub use deliver::check;
pub use message::{Order, Report, is_own_kind};
pub use process::run;
pub use target::Policy;
