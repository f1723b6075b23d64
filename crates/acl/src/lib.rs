//! Access control lists: the POSIX ACLs of the served file system, and the two forms in which clients see them.
//!
//! | module | contents | source |
//! |---|---|---|
//! | [`posix`] | POSIX ACLs, their relation to the mode | acl(5) |
//! | [`xattr`] | the bytes of `system.posix_acl_access` and `system.posix_acl_default` | Linux, xattr version 2 |
//! | [`nfs4`] | entries of NFSv4 ACLs | RFC 8881, section 6 |
//! | [`mapping`] | POSIX ACL to NFSv4 ACL and back | draft-ietf-nfsv4-acl-mapping-05 |
//! | [`nfsacl`] | the entries of program 100227, version 3 | Solaris, Linux |
//!
//! The crate does no I/O and knows no names of users: the caller resolves names to numbers.

#![forbid(unsafe_code)]

pub mod mapping;
pub mod nfs4;
pub mod nfsacl;
pub mod posix;
pub mod xattr;

mod permissions;
mod tagged;

pub use mapping::{Acls, Object, Refusal, from_nfs4, to_nfs4};
pub use nfs4::{Ace, Who};
pub use permissions::Permissions;
pub use posix::{Entries, Named, PosixAcl};
pub use tagged::{Invalid, tag};

#[cfg(test)]
mod tests;
