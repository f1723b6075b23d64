//! External changes: how the server notices them, and which cached data it then drops.

pub(crate) mod downtime;
pub(crate) mod external_change;
pub(crate) mod sweep;
pub(crate) mod versions;
pub(crate) mod watch;
