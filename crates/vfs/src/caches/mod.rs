//! Caches in memory over the backing file systems: inodes, attributes, names, listings and permissions.

pub(crate) mod access_cache;
pub(crate) mod access_time;
pub(crate) mod attr_cache;
pub(crate) mod budget;
pub(crate) mod change;
pub(crate) mod dentry_cache;
pub(crate) mod dir_cache;
pub(crate) mod inode;
pub(crate) mod inode_cache;
pub(crate) mod kept;
pub(crate) mod link;
pub(crate) mod overlay;
pub(crate) mod policies;
pub(crate) mod recent_attr;
pub(crate) mod shown_time;
pub(crate) mod stamp;
pub(crate) mod streams;
pub(crate) mod uncommitted;
pub(crate) mod versions;
