//! The operations of a client on names, attributes and contents.

pub(crate) mod cached;
pub(crate) mod change;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod data;
pub(crate) mod data_caller;
pub(crate) mod holes;
pub(crate) mod keep;
pub(crate) mod kept;
pub(crate) mod link;
pub(crate) mod list;
pub(crate) mod lookup;
pub(crate) mod make;
mod new_name;
pub(crate) mod plus;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod rename_locks;
pub(crate) mod seek;
pub(crate) mod set_attr;
pub(crate) mod xattr;
