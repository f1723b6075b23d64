//! External changes: how the server notices them, and the times when no server ran.

pub(crate) mod downtime;
pub(crate) mod sweep;
pub(crate) mod watch;
