//! The outcome of a request (RFC 1813, section 2.6).

xdr_enum! {
    /// `nfsstat3`: the outcome of a request (RFC 1813, section 2.6).
    pub enum Nfsstat3("nfsstat3") {
        /// Success.
        Ok = 0,
        /// Not owner.
        Perm = 1,
        /// No such file or directory.
        Noent = 2,
        /// I/O error.
        Io = 5,
        /// No such device.
        Nxio = 6,
        /// Permission denied.
        Acces = 13,
        /// File exists.
        Exist = 17,
        /// Cross-device link.
        Xdev = 18,
        /// No such device: the device does not support the operation.
        Nodev = 19,
        /// Not a directory.
        Notdir = 20,
        /// Is a directory.
        Isdir = 21,
        /// Invalid argument.
        Inval = 22,
        /// File too large.
        Fbig = 27,
        /// No space left on device.
        Nospc = 28,
        /// Read-only file system.
        Rofs = 30,
        /// Too many hard links.
        Mlink = 31,
        /// Name too long.
        Nametoolong = 63,
        /// Directory not empty.
        Notempty = 66,
        /// Quota exceeded.
        Dquot = 69,
        /// The file of the handle no longer exists.
        Stale = 70,
        /// Too many levels of remote in path.
        Remote = 71,
        /// The handle does not come from this server.
        Badhandle = 10001,
        /// The object has changed since the time in the guard of SETATTR.
        NotSync = 10002,
        /// The cookie of READDIR is stale.
        BadCookie = 10003,
        /// Operation is not supported.
        Notsupp = 10004,
        /// Buffer or request is too small.
        Toosmall = 10005,
        /// An error without a code of its own.
        Serverfault = 10006,
        /// The type of the object to make is not supported.
        Badtype = 10007,
        /// The request was started but has not finished. The client should try again later with a new transaction.
        Jukebox = 10008,
    }
}

impl std::fmt::Display for Nfsstat3 {
    /// Writes the name in the spelling of RFC 1813, such as NFS3ERR_NOT_SYNC.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Nfsstat3::Ok { "NFS3" } else { "NFS3ERR" })?;
        for letter in format!("{self:?}").chars() {
            let separator = if letter.is_ascii_uppercase() { "_" } else { "" };
            write!(f, "{separator}{}", letter.to_ascii_uppercase())?;
        }
        Ok(())
    }
}
