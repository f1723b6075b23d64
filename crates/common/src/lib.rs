//! Small tools for every crate: [locks](lock), [latency counters](metrics), [planted bugs](mod@planted_bugs) and
//! [small durable files](state_file).

pub mod lock;
pub mod metrics;
pub mod planted_bugs;
pub mod state_file;
