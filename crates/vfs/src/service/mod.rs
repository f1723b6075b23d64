//! The start, the stop and the inspection of a service.

pub(crate) mod exports;
pub(crate) mod inspect;
pub(crate) mod mount_watch;
pub(crate) mod policy;
pub(crate) mod served;
pub(crate) mod shown_path;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod warm;
