//! Errors, named as in RFC 8881.

/// Defines the errors and their numbers.
macro_rules! errors {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        /// An NFSv4.1 error. Its number is the `nfsstat4`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[repr(u32)]
        pub enum Error {
            $(#[doc = $doc] #[error("{}", $doc)] $name = $number,)*
        }
    };
}

errors! {
    Perm = 1, "NFS4ERR_PERM: a client record belongs to another principal.";
    Noent = 2, "NFS4ERR_NOENT: the client record to be updated does not exist.";
    Inval = 22, "NFS4ERR_INVAL: an argument is out of its range.";
    Nospc = 28, "NFS4ERR_NOSPC: the client has as many sessions as it may have.";
    TooSmall = 10005, "NFS4ERR_TOOSMALL: a size of a channel is too small to be of use.";
    ServerFault = 10006, "NFS4ERR_SERVERFAULT: the server's numbers are exhausted.";
    Delay = 10008, "NFS4ERR_DELAY: the client has to try again: a delegation is being recalled, or a limit is reached.";
    Denied = 10010, "NFS4ERR_DENIED: another owner holds a lock.";
    Expired = 10011, "NFS4ERR_EXPIRED: the client's state was revoked while the request ran.";
    Locked = 10012, "NFS4ERR_LOCKED: an open denies this access.";
    Grace = 10013, "NFS4ERR_GRACE: only reclaims are allowed now.";
    ShareDenied = 10015, "NFS4ERR_SHARE_DENIED: another open denies this access.";
    ClidInuse = 10017, "NFS4ERR_CLID_INUSE: another principal uses this client owner.";
    StaleClientid = 10022, "NFS4ERR_STALE_CLIENTID: the server does not know this client id.";
    OldStateid = 10024, "NFS4ERR_OLD_STATEID: the state has changed since.";
    BadStateid = 10025, "NFS4ERR_BAD_STATEID: the server does not know this state id.";
    NotSame = 10027, "NFS4ERR_NOT_SAME: the verifier of an update differs.";
    NoGrace = 10033, "NFS4ERR_NO_GRACE: nothing can be reclaimed now.";
    ReclaimBad = 10034, "NFS4ERR_RECLAIM_BAD: the client did not hold this state.";
    ReclaimConflict = 10035, "NFS4ERR_RECLAIM_CONFLICT: another owner has reclaimed this.";
    LocksHeld = 10037, "NFS4ERR_LOCKS_HELD: the state is still in use.";
    OpenMode = 10038, "NFS4ERR_OPENMODE: the open does not allow this access.";
    AdminRevoked = 10047, "NFS4ERR_ADMIN_REVOKED: an administrator has revoked this state.";
    BadSession = 10052, "NFS4ERR_BADSESSION: the server does not know this session.";
    BadSlot = 10053, "NFS4ERR_BADSLOT: the session has no such slot.";
    CompleteAlready = 10054, "NFS4ERR_COMPLETE_ALREADY: the client has said RECLAIM_COMPLETE before.";
    SeqMisordered = 10063, "NFS4ERR_SEQ_MISORDERED: the sequence number is neither the next one nor the last one.";
    ReqTooBig = 10065, "NFS4ERR_REQ_TOO_BIG: the request is longer than the channel allows.";
    RetryUncachedRep = 10068, "NFS4ERR_RETRY_UNCACHED_REP: the reply to this retransmission was not kept.";
    TooManyOps = 10070, "NFS4ERR_TOO_MANY_OPS: the request has more operations than the channel allows.";
    ClientidBusy = 10074, "NFS4ERR_CLIENTID_BUSY: the client has sessions or state.";
    WrongCred = 10082, "NFS4ERR_WRONG_CRED: the client belongs to another principal.";
    SeqFalseRetry = 10076, "NFS4ERR_SEQ_FALSE_RETRY: a retransmission differs from the request.";
    BadHighSlot = 10077, "NFS4ERR_BAD_HIGH_SLOT: the highest slot in use is above the session's slots.";
    DelegRevoked = 10087, "NFS4ERR_DELEG_REVOKED: the client did not return this delegation in time.";
}
