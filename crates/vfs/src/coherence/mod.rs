//! Changes that somebody makes on the host: how the server notices them, and what it drops then.

pub(crate) mod downtime;
pub(crate) mod external_change;
pub(crate) mod sweep;
pub(crate) mod versions;
pub(crate) mod watch;
