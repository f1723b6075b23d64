//! POSIX access control lists beside NFSv3: the program NFSACL of Solaris, version 3. The tags of entries are in
//! `forebay-acl`.

use crate::array::Array;
use crate::nfs3::{Failed, FileHandle, PostOpAttr};

/// Program number.
pub const PROGRAM: u32 = 100_227;
/// Version of the program.
pub const VERSION: u32 = 3;
/// NFS_ACL_MAX_ENTRIES: most entries of a list. Decoding fails above it.
pub const MAX_ENTRIES: usize = 1024;

xdr_enum! {
    /// A procedure of NFSACL v3.
    pub enum Procedure("NFSACL procedure") {
        /// Does nothing.
        Null = 0,
        /// Returns the access control lists: [`GetaclArgs`] to [`GetaclRes`].
        Getacl = 1,
        /// Sets the access control lists: [`SetaclArgs`] to [`SetaclRes`].
        Setacl = 2,
    }
}

/// Bits of the mask of GETACL and SETACL.
pub mod mask {
    /// The access list.
    pub const ACL: u32 = 0x01;
    /// The number of entries of the access list.
    pub const ACLCNT: u32 = 0x02;
    /// The default list.
    pub const DFACL: u32 = 0x04;
    /// The number of entries of the default list.
    pub const DFACLCNT: u32 = 0x08;
    /// All bits.
    pub const ALL: u32 = 0x0f;
}

xdr_struct! {
    /// `aclent`: an entry of an access control list.
    pub struct Entry {
        /// Type of the entry, one of the tags of `forebay-acl`.
        pub tag: u32,
        /// User or group, if the type has one.
        pub id: u32,
        /// Permissions: 4 read, 2 write, 1 execute.
        pub perm: u32,
    }
}

xdr_struct! {
    /// `secattr`: the access control lists of a file.
    #[derive(Default)]
    pub struct Secattr<'a> {
        /// Bits of [`mask`]: the parts that are meant.
        pub mask: u32,
        /// Number of entries of the access list, also if they are not sent.
        pub acl_count: u32,
        /// Access list.
        pub acl: Array<'a, Entry, MAX_ENTRIES>,
        /// Number of entries of the default list, also if they are not sent.
        pub default_count: u32,
        /// Default list.
        pub default: Array<'a, Entry, MAX_ENTRIES>,
    }
}

xdr_struct! {
    /// `GETACL3args`: the arguments of GETACL.
    pub struct GetaclArgs {
        /// The object.
        pub fh: FileHandle,
        /// Bits of [`mask`].
        pub mask: u32,
    }
}

xdr_struct! {
    /// `GETACL3resok`: the successful result of GETACL.
    pub struct GetaclOk<'a> {
        /// The object's attributes.
        pub attributes: PostOpAttr,
        /// The access control lists.
        pub acl: Secattr<'a>,
    }
}

/// `GETACL3res`: the result of GETACL.
pub type GetaclRes<'a> = Result<GetaclOk<'a>, Failed<PostOpAttr>>;

xdr_struct! {
    /// `SETACL3args`: the arguments of SETACL.
    pub struct SetaclArgs<'a> {
        /// The object.
        pub fh: FileHandle,
        /// The access control lists.
        pub acl: Secattr<'a>,
    }
}

/// `SETACL3res`: the result of SETACL. Both arms have the object's attributes.
pub type SetaclRes = Result<PostOpAttr, Failed<PostOpAttr>>;
