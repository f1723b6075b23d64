//! `nfsstat4`: the outcome of an operation (RFC 8881, section 15; RFC 7862, section 11; RFC 8276, section 8.4.3).

use crate::xdr::DecodeError;

xdr_enum! {
    by hand
    /// `nfsstat4`: the outcome of an operation, and of a COMPOUND.
    pub enum Nfsstat4("nfsstat4") {
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
        Access = 13,
        /// File exists.
        Exist = 17,
        /// The objects are on different file systems.
        Xdev = 18,
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
        /// The handle does not come from this server.
        Badhandle = 10001,
        /// The cookie of READDIR is stale.
        BadCookie = 10003,
        /// Operation is not supported.
        Notsupp = 10004,
        /// The limit of the request leaves no room for a result.
        Toosmall = 10005,
        /// An error without a code of its own.
        Serverfault = 10006,
        /// The type of the object to make is not supported.
        Badtype = 10007,
        /// The request has not finished. The client tries again later.
        Delay = 10008,
        /// The attributes of NVERIFY are equal.
        Same = 10009,
        /// Another owner holds a conflicting lock.
        Denied = 10010,
        /// The lease of the state has expired.
        Expired = 10011,
        /// A lock forbids the I/O.
        Locked = 10012,
        /// The server is in its grace period.
        Grace = 10013,
        /// The volatile handle has expired.
        Fhexpired = 10014,
        /// The share reservation of another open forbids the request.
        ShareDenied = 10015,
        /// The security flavour is not allowed here.
        Wrongsec = 10016,
        /// Another principal uses the client identity.
        ClidInuse = 10017,
        /// Resources are exhausted. NFSv4.1 does not use this status.
        Resource = 10018,
        /// The file system has moved.
        Moved = 10019,
        /// The current or saved handle is not set.
        Nofilehandle = 10020,
        /// The minor version is not served.
        MinorVersMismatch = 10021,
        /// The client identity is from before a restart.
        StaleClientid = 10022,
        /// The state identity is from before a restart.
        StaleStateid = 10023,
        /// The sequence number of the state identity is too old.
        OldStateid = 10024,
        /// The state identity is not valid.
        BadStateid = 10025,
        /// The sequence number of the owner is not the next one.
        BadSeqid = 10026,
        /// The attributes of VERIFY differ.
        NotSame = 10027,
        /// The range overlaps a lock and the server does not split locks.
        LockRange = 10028,
        /// The object is a symbolic link.
        Symlink = 10029,
        /// No handle is saved.
        Restorefh = 10030,
        /// A file system of the lease has moved.
        LeaseMoved = 10031,
        /// An attribute is not supported.
        Attrnotsupp = 10032,
        /// A reclaim came outside of the grace period.
        NoGrace = 10033,
        /// The state to reclaim did not exist.
        ReclaimBad = 10034,
        /// The state to reclaim conflicts with granted state.
        ReclaimConflict = 10035,
        /// The arguments of the operation cannot be decoded.
        Badxdr = 10036,
        /// CLOSE found locks.
        LocksHeld = 10037,
        /// The open does not allow this I/O.
        Openmode = 10038,
        /// The owner or group cannot be translated.
        Badowner = 10039,
        /// A name has a character that is not allowed.
        Badchar = 10040,
        /// The name is not allowed.
        Badname = 10041,
        /// The range of the lock is not supported.
        BadRange = 10042,
        /// A lock cannot be changed in place.
        LockNotsupp = 10043,
        /// The operation is not defined.
        OpIllegal = 10044,
        /// The lock would cause a deadlock.
        Deadlock = 10045,
        /// The file is open.
        FileOpen = 10046,
        /// An administrator has revoked the state.
        AdminRevoked = 10047,
        /// The server cannot reach the client.
        CbPathDown = 10048,
        /// The mode of the layout is not valid.
        Badiomode = 10049,
        /// The layout is not valid.
        Badlayout = 10050,
        /// The digest of SET_SSV is wrong.
        BadSessionDigest = 10051,
        /// The session does not exist.
        Badsession = 10052,
        /// The slot does not exist.
        Badslot = 10053,
        /// RECLAIM_COMPLETE was done before.
        CompleteAlready = 10054,
        /// The connection is not bound to the session.
        ConnNotBoundToSession = 10055,
        /// The client has asked for the delegation before.
        DelegAlreadyWanted = 10056,
        /// Calls of the backchannel are outstanding.
        BackChanBusy = 10057,
        /// The layout may be available later.
        Layouttrylater = 10058,
        /// The file has no layouts.
        Layoutunavailable = 10059,
        /// The client has no such layout.
        NomatchingLayout = 10060,
        /// A recall of the layout is in progress.
        Recallconflict = 10061,
        /// The type of layout is not supported.
        UnknownLayouttype = 10062,
        /// The sequence number of the slot is not the next one.
        SeqMisordered = 10063,
        /// SEQUENCE is not the first operation.
        SequencePos = 10064,
        /// The request exceeds the limit of the session.
        ReqTooBig = 10065,
        /// The reply would exceed the limit of the session.
        RepTooBig = 10066,
        /// The reply would exceed the limit of the reply cache.
        RepTooBigToCache = 10067,
        /// The reply to the retried request was not kept.
        RetryUncachedRep = 10068,
        /// The combination of operations cannot be retried safely.
        UnsafeCompound = 10069,
        /// The request has too many operations.
        TooManyOps = 10070,
        /// The operation needs SEQUENCE before it.
        OpNotInSession = 10071,
        /// No hash algorithm is supported.
        HashAlgUnsupp = 10072,
        /// The client identity has state.
        ClientidBusy = 10074,
        /// I/O to a hole of a striped file.
        PnfsIoHole = 10075,
        /// The retry differs from the request.
        SeqFalseRetry = 10076,
        /// The highest slot of the request is not valid.
        BadHighSlot = 10077,
        /// The session is being destroyed.
        Deadsession = 10078,
        /// No encryption algorithm is supported.
        EncrAlgUnsupp = 10079,
        /// I/O without a layout.
        PnfsNoLayout = 10080,
        /// The operation must be the only one.
        NotOnlyOp = 10081,
        /// The credential may not do the operation.
        WrongCred = 10082,
        /// The object has the wrong type.
        WrongType = 10083,
        /// The directory delegation is not available.
        DirdelegUnavail = 10084,
        /// The client rejects the delegation.
        RejectDeleg = 10085,
        /// The layout must be returned first.
        Returnconflict = 10086,
        /// The delegation is revoked.
        DelegRevoked = 10087,
        /// Copies between servers are not supported.
        PartnerNotsupp = 10088,
        /// The other server does not allow the copy.
        PartnerNoAuth = 10089,
        /// The arm of the union is not supported.
        UnionNotsupp = 10090,
        /// The destination does not allow the copy.
        OffloadDenied = 10091,
        /// The label format is not supported.
        WrongLfs = 10092,
        /// The security label is not valid.
        Badlabel = 10093,
        /// The copy cannot meet the requirements.
        OffloadNoReqs = 10094,
        /// The extended attribute does not exist.
        Noxattr = 10095,
        /// The extended attribute is too large.
        Xattr2big = 10096,
    }
}

impl Nfsstat4 {
    /// Returns true for [`Nfsstat4::Ok`].
    #[inline]
    #[must_use]
    pub const fn is_ok(self) -> bool {
        matches!(self, Nfsstat4::Ok)
    }
}

/// Arguments that cannot be decoded are answered with NFS4ERR_BADXDR (RFC 8881, section 15.1.1.1). This includes a
/// list that is longer than the codec accepts, because NFSv4.1 has no NFS4ERR_RESOURCE.
impl From<DecodeError> for Nfsstat4 {
    fn from(_: DecodeError) -> Self {
        Nfsstat4::Badxdr
    }
}

impl std::fmt::Display for Nfsstat4 {
    /// Writes the name in the spelling of RFC 8881, such as NFS4ERR_BAD_STATEID.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_ok() { "NFS4" } else { "NFS4ERR" })?;
        for letter in format!("{self:?}").chars() {
            let separator = if letter.is_ascii_uppercase() { "_" } else { "" };
            write!(f, "{separator}{}", letter.to_ascii_uppercase())?;
        }
        Ok(())
    }
}
