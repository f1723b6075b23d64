//! The operations of a client on names, attributes and contents.

pub(crate) mod cached;
pub(crate) mod change;
pub(crate) mod create;
pub(crate) mod data;
pub(crate) mod list;
pub(crate) mod lookup;
pub(crate) mod overlay;
pub(crate) mod plus;
pub(crate) mod set_attr;
