//! Small tools for every crate: [locks](lock), [latency counters](metrics) and [planted bugs](planted_bugs).

pub mod lock;
pub mod metrics;
pub mod planted_bugs;
