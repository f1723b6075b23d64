//! Basic data types (RFC 8881, section 3.3).

use crate::array::{Array, Opaque};

/// NFS4_FHSIZE: most bytes in a file handle.
pub const MAX_HANDLE: usize = 128;
/// NFS4_OPAQUE_LIMIT: most bytes in the identity of a client, a server, or an owner of state.
pub const MAX_OPAQUE: usize = 1024;
/// The largest offset or length. A lock or a layout of this length reaches to the end of the file.
pub const TO_END: u64 = u64::MAX;

/// `nfs_fh4`: an opaque file handle of at most 128 bytes, borrowed from the message.
pub type Handle<'a> = Opaque<'a, MAX_HANDLE>;
/// `verifier4`: eight bytes that the peer compares for equality.
pub type Verifier = [u8; 8];
/// `sessionid4`: the identity of a session.
pub type SessionId = [u8; 16];
/// `deviceid4`: the identity of a storage device of pNFS.
pub type DeviceId = [u8; 16];

xdr_enum! {
    /// `nfs_ftype4`: the type of a file.
    pub enum Ftype4("nfs_ftype4") {
        /// Regular file.
        Reg = 1,
        /// Directory.
        Dir = 2,
        /// Block special device.
        Blk = 3,
        /// Character special device.
        Chr = 4,
        /// Symbolic link.
        Lnk = 5,
        /// Socket.
        Sock = 6,
        /// Named pipe.
        Fifo = 7,
        /// Directory of named attributes.
        Attrdir = 8,
        /// Named attribute.
        Namedattr = 9,
    }
}

xdr_struct! {
    fixed
    /// `stateid4`: the identity of an open, of a set of locks, of a delegation, or of a copy.
    #[derive(Hash, Default)]
    pub struct Stateid {
        /// Number that grows when the state changes.
        pub seqid: u32,
        /// Identity that does not change while the state lives.
        pub other: [u8; 12],
    }
}

impl Stateid {
    /// The anonymous state: I/O without an open, subject to locks and share reservations.
    pub const ANONYMOUS: Stateid = Stateid { seqid: 0, other: [0; 12] };
    /// The state of READ that bypasses locks. In other operations it is equal to the anonymous state.
    pub const BYPASS: Stateid = Stateid { seqid: u32::MAX, other: [0xff; 12] };
    /// The current state of the COMPOUND (RFC 8881, section 16.2.3.1.2).
    pub const CURRENT: Stateid = Stateid { seqid: 1, other: [0; 12] };
    /// The state that is never valid, which CLOSE returns.
    pub const INVALID: Stateid = Stateid { seqid: u32::MAX, other: [0; 12] };

    /// Returns true for the four identities that no server grants (RFC 8881, section 8.2.3).
    #[must_use]
    pub fn is_special(&self) -> bool {
        [Self::ANONYMOUS, Self::BYPASS, Self::CURRENT, Self::INVALID].contains(self)
    }
}

xdr_struct! {
    /// `nfstime4`: a time since 1970-01-01 00:00 UTC.
    #[derive(Default, PartialOrd, Ord)]
    pub struct Nfstime4 {
        /// Whole seconds; negative before 1970.
        pub seconds: i64,
        /// Nanoseconds. Decoding does not check that the number is below 1,000,000,000.
        pub nseconds: u32,
    }
}

xdr_union! {
    /// `settime4`: the new value of a time.
    pub enum SetTime4("time_how4") {
        /// The time of the server's clock.
        ServerTime = 0,
        /// A time that the client gives.
        ClientTime(time: Nfstime4) = 1,
    }
}

xdr_struct! {
    /// `fsid4`: the identity of a file system.
    #[derive(Default, Hash)]
    pub struct Fsid4 {
        /// Major number.
        pub major: u64,
        /// Minor number.
        pub minor: u64,
    }
}

xdr_struct! {
    /// `specdata4`: the device number of a special file.
    #[derive(Default)]
    pub struct Specdata4 {
        /// Major device number.
        pub major: u32,
        /// Minor device number.
        pub minor: u32,
    }
}

xdr_struct! {
    /// `change_info4`: the change attribute of a directory before and after an operation.
    #[derive(Default)]
    pub struct ChangeInfo {
        /// True if nothing else changed the directory between the two values.
        pub atomic: bool,
        /// Change attribute before the operation.
        pub before: u64,
        /// Change attribute after the operation.
        pub after: u64,
    }
}

xdr_struct! {
    /// `netaddr4`: a transport and a universal address (RFC 5665).
    pub struct Netaddr<'a> {
        /// Transport, such as `tcp` or `tcp6`.
        pub netid: &'a [u8],
        /// Universal address, such as `127.0.0.1.8.1`.
        pub address: &'a [u8],
    }
}

xdr_struct! {
    /// `client_owner4`: a client as it names itself.
    pub struct ClientOwner<'a> {
        /// Verifier, which changes when the client restarts.
        pub verifier: Verifier,
        /// Identity, which does not change.
        pub id: Opaque<'a, MAX_OPAQUE>,
    }
}

xdr_struct! {
    /// `server_owner4`: the server as it names itself.
    pub struct ServerOwner<'a> {
        /// Distinguishes addresses between which sessions cannot be shared.
        pub minor_id: u64,
        /// Identity of the server. Client identities are valid at every address with this identity.
        pub major_id: Opaque<'a, MAX_OPAQUE>,
    }
}

xdr_struct! {
    /// `state_owner4`: an owner of opens or of locks. NFSv4.1 ignores the client identity in it.
    pub struct StateOwner<'a> {
        /// Identity of the client.
        pub clientid: u64,
        /// Identity of the owner within its client.
        pub owner: Opaque<'a, MAX_OPAQUE>,
    }
}

xdr_struct! {
    /// `nfs_impl_id4`: the name and date of an implementation.
    pub struct ImplId<'a> {
        /// Domain name of the vendor.
        pub domain: &'a [u8],
        /// Name of the product.
        pub name: &'a [u8],
        /// Date of the build.
        pub date: Nfstime4,
    }
}

xdr_enum! {
    /// `stable_how4`: the durability of a WRITE, in the request or in the result.
    #[derive(PartialOrd, Ord)]
    pub enum StableHow4("stable_how4") {
        /// The data may be lost until a COMMIT.
        Unstable = 0,
        /// The data, and the metadata needed to find it, are on stable storage.
        DataSync = 1,
        /// The data and all metadata are on stable storage.
        FileSync = 2,
    }
}

/// Most names in a path; decoding fails above it.
pub const MAX_PATH_NAMES: usize = 1024;
/// Most servers or locations of a file system; decoding fails above it.
pub const MAX_LOCATIONS: usize = 256;

/// `pathname4`: the names on the way from the root.
pub type Pathname<'a> = Array<'a, &'a [u8], MAX_PATH_NAMES>;

xdr_struct! {
    /// `fs_location4`: servers that have a file system at one path.
    pub struct FsLocation<'a> {
        /// Names or addresses of the servers.
        pub servers: Array<'a, &'a [u8], MAX_LOCATIONS>,
        /// Path of the file system on these servers.
        pub rootpath: Pathname<'a>,
    }
}

xdr_struct! {
    /// `fs_locations4`: the places of a file system.
    #[derive(Default)]
    pub struct FsLocations<'a> {
        /// Path of the file system on this server.
        pub fs_root: Pathname<'a>,
        /// Other places.
        pub locations: Array<'a, FsLocation<'a>, MAX_LOCATIONS>,
    }
}

/// Permission bits of ACCESS (RFC 8881, section 18.1; RFC 8276, section 8.5).
pub mod access {
    /// Read data from a file or read a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite existing data or change existing directory entries.
    pub const MODIFY: u32 = 0x04;
    /// Write new data or add directory entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an existing directory entry.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// Read extended attributes.
    pub const XAREAD: u32 = 0x40;
    /// Write extended attributes.
    pub const XAWRITE: u32 = 0x80;
    /// List extended attributes.
    pub const XALIST: u32 = 0x100;
}
