//! Identities of exports: which directory of which file system an export is. With them a server never takes another
//! directory for it: an array that is not mounted, another disk mounted in its place, an older copy
//! (docs/decisions/015-identity.md).
//!
//! The pool carries the identities of its exports in its superblocks ([`record`]), and the state directory has a copy
//! for servers without a cache ([`known`]). Both are compared ([`compare`]) before anything is opened for writing.

pub(crate) mod compare;
pub(crate) mod export_identity;
pub(crate) mod fs_type;
pub(crate) mod known;
pub(crate) mod mounts;
pub(crate) mod record;
pub(crate) mod stamp;
mod uuid;
