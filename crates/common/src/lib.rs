//! Small tools for every crate: [locks](lock), [latency counters](metrics), [planted bugs](mod@planted_bugs),
//! [small durable files](state_file), [files that an administrator names](named_file), [hidden paths](hidden), [Unix
//! sockets](socket_file), [users of the host](user_database) and [URLs of NBD exports](nbd_url).

pub mod hidden;
pub mod lock;
pub mod metrics;
pub mod named_file;
pub mod nbd_url;
pub mod planted_bugs;
pub mod socket_file;
pub mod state_file;
pub mod user_database;
