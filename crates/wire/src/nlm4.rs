//! The network lock manager, version 4 (X/Open, Protocols for Interworking: XNFS, chapter 10 and appendix on large
//! files). The message forms end in `_MSG` and `_RES`: their replies are empty, and the result is a call of its own.

use crate::array::Opaque;

/// Program number.
pub const PROGRAM: u32 = 100_021;
/// Version of the program.
pub const VERSION: u32 = 4;
/// LM_MAXSTRLEN: longest name of a host in bytes. Decoding fails above it.
pub const MAX_NAME: usize = 1024;
/// MAXNETOBJ_SZ: most bytes in a cookie, a handle or an owner. Decoding fails above it.
pub const MAX_NETOBJ: usize = 1024;

/// `netobj`: a cookie, a handle or an owner.
pub type Netobj<'a> = Opaque<'a, MAX_NETOBJ>;
/// The name of a host.
pub type HostName<'a> = Opaque<'a, MAX_NAME>;

xdr_enum! {
    /// A procedure of NLM v4.
    pub enum Procedure("NLM procedure") {
        /// Does nothing.
        Null = 0,
        /// Tests for a lock: [`TestArgs`] to [`TestRes`].
        Test = 1,
        /// Sets a lock: [`LockArgs`] to [`Res`].
        Lock = 2,
        /// Gives up a lock that waits: [`CancelArgs`] to [`Res`].
        Cancel = 3,
        /// Removes a lock: [`UnlockArgs`] to [`Res`].
        Unlock = 4,
        /// Tells the client that it has a lock: [`TestArgs`] to [`Res`].
        Granted = 5,
        /// [`TestArgs`] to nothing; the answer is TEST_RES.
        TestMsg = 6,
        /// [`LockArgs`] to nothing; the answer is LOCK_RES.
        LockMsg = 7,
        /// [`CancelArgs`] to nothing; the answer is CANCEL_RES.
        CancelMsg = 8,
        /// [`UnlockArgs`] to nothing; the answer is UNLOCK_RES.
        UnlockMsg = 9,
        /// [`TestArgs`] to nothing; the answer is GRANTED_RES.
        GrantedMsg = 10,
        /// [`TestRes`] to nothing.
        TestRes = 11,
        /// [`Res`] to nothing.
        LockRes = 12,
        /// [`Res`] to nothing.
        CancelRes = 13,
        /// [`Res`] to nothing.
        UnlockRes = 14,
        /// [`Res`] to nothing.
        GrantedRes = 15,
        /// Private to a host: its status monitor tells that a peer has restarted. [`crate::nsm::Status`] to nothing.
        NsmNotify = 16,
        /// Sets a share reservation: [`ShareArgs`] to [`ShareRes`].
        Share = 20,
        /// Removes a share reservation: [`ShareArgs`] to [`ShareRes`].
        Unshare = 21,
        /// Sets a lock that is not monitored: [`LockArgs`] to [`Res`].
        NmLock = 22,
        /// Frees all locks of a host: [`Notify`] to nothing.
        FreeAll = 23,
    }
}

impl Procedure {
    /// Returns the procedure with which a message is answered; `None` for any other procedure.
    #[must_use]
    pub const fn answer(self) -> Option<Procedure> {
        match self {
            Procedure::TestMsg => Some(Procedure::TestRes),
            Procedure::LockMsg => Some(Procedure::LockRes),
            Procedure::CancelMsg => Some(Procedure::CancelRes),
            Procedure::UnlockMsg => Some(Procedure::UnlockRes),
            Procedure::GrantedMsg => Some(Procedure::GrantedRes),
            _ => None,
        }
    }
}

xdr_enum! {
    /// `nlm4_stats`: the outcome of a procedure.
    pub enum Stats("nlm4_stats") {
        /// Success.
        Granted = 0,
        /// A conflicting lock exists.
        Denied = 1,
        /// The server has no resources for locks.
        DeniedNolocks = 2,
        /// The lock waits. The server will call GRANTED.
        Blocked = 3,
        /// The server is in its grace period.
        DeniedGracePeriod = 4,
        /// The lock would cause a deadlock.
        Deadlck = 5,
        /// Read-only file system.
        Rofs = 6,
        /// The file of the handle no longer exists.
        StaleFh = 7,
        /// The range is beyond the largest offset.
        Fbig = 8,
        /// Any other failure.
        Failed = 9,
    }
}

xdr_struct! {
    /// `nlm4_holder`: the lock that is in the way.
    pub struct Holder<'a> {
        /// True for an exclusive lock.
        pub exclusive: bool,
        /// Number of the process.
        pub svid: i32,
        /// Owner of the lock.
        pub oh: Netobj<'a>,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; 0 means to the end of the file.
        pub length: u64,
    }
}

xdr_union! {
    /// `nlm4_testrply`: the outcome of TEST.
    pub enum TestReply<'a>("nlm4_stats") {
        /// The lock would be granted.
        Granted = 0,
        /// A conflicting lock exists.
        Denied(holder: Holder<'a>) = 1,
        /// The server has no resources for locks.
        DeniedNolocks = 2,
        /// The lock would wait.
        Blocked = 3,
        /// The server is in its grace period.
        DeniedGracePeriod = 4,
        /// The lock would cause a deadlock.
        Deadlck = 5,
        /// Read-only file system.
        Rofs = 6,
        /// The file of the handle no longer exists.
        StaleFh = 7,
        /// The range is beyond the largest offset.
        Fbig = 8,
        /// Any other failure.
        Failed = 9,
    }
}

xdr_struct! {
    /// `nlm4_testres`: the result of TEST, and the arguments of TEST_RES.
    pub struct TestRes<'a> {
        /// Cookie of the request.
        pub cookie: Netobj<'a>,
        /// Outcome.
        pub stat: TestReply<'a>,
    }
}

xdr_struct! {
    /// `nlm4_res`: the result of most procedures, and the arguments of most answers.
    pub struct Res<'a> {
        /// Cookie of the request.
        pub cookie: Netobj<'a>,
        /// Outcome.
        pub stat: Stats,
    }
}

xdr_struct! {
    /// `nlm4_lock`: an owner and a range.
    pub struct Lock<'a> {
        /// Name of the client.
        pub caller_name: HostName<'a>,
        /// The file.
        pub fh: Netobj<'a>,
        /// Owner of the lock.
        pub oh: Netobj<'a>,
        /// Number of the process.
        pub svid: i32,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; 0 means to the end of the file.
        pub length: u64,
    }
}

xdr_struct! {
    /// `nlm4_lockargs`: the arguments of LOCK and NM_LOCK.
    pub struct LockArgs<'a> {
        /// Cookie that the result repeats.
        pub cookie: Netobj<'a>,
        /// True if the client waits for the lock.
        pub block: bool,
        /// True for an exclusive lock.
        pub exclusive: bool,
        /// The lock.
        pub alock: Lock<'a>,
        /// True if the client reclaims the lock after a restart of the server.
        pub reclaim: bool,
        /// State number of the client's status monitor.
        pub state: i32,
    }
}

xdr_struct! {
    /// `nlm4_cancargs`: the arguments of CANCEL.
    pub struct CancelArgs<'a> {
        /// Cookie that the result repeats.
        pub cookie: Netobj<'a>,
        /// `block` of the request that is given up.
        pub block: bool,
        /// `exclusive` of the request that is given up.
        pub exclusive: bool,
        /// The lock of the request that is given up.
        pub alock: Lock<'a>,
    }
}

xdr_struct! {
    /// `nlm4_testargs`: the arguments of TEST and GRANTED.
    pub struct TestArgs<'a> {
        /// Cookie that the result repeats.
        pub cookie: Netobj<'a>,
        /// True for an exclusive lock.
        pub exclusive: bool,
        /// The lock.
        pub alock: Lock<'a>,
    }
}

xdr_struct! {
    /// `nlm4_unlockargs`: the arguments of UNLOCK.
    pub struct UnlockArgs<'a> {
        /// Cookie that the result repeats.
        pub cookie: Netobj<'a>,
        /// The lock.
        pub alock: Lock<'a>,
    }
}

xdr_enum! {
    /// `fsh4_mode`: the access that a share reservation denies.
    pub enum ShareMode("fsh4_mode") {
        /// Denies nothing.
        None = 0,
        /// Denies to read.
        Read = 1,
        /// Denies to write.
        Write = 2,
        /// Denies to read and write.
        ReadWrite = 3,
    }
}

xdr_enum! {
    /// `fsh4_access`: the access that a share reservation asks for.
    pub enum ShareAccess("fsh4_access") {
        /// No access.
        None = 0,
        /// Read.
        Read = 1,
        /// Write.
        Write = 2,
        /// Read and write.
        ReadWrite = 3,
    }
}

xdr_struct! {
    /// `nlm4_share`: a share reservation.
    pub struct Share<'a> {
        /// Name of the client.
        pub caller_name: HostName<'a>,
        /// The file.
        pub fh: Netobj<'a>,
        /// Owner of the reservation.
        pub oh: Netobj<'a>,
        /// Access that the reservation denies.
        pub mode: ShareMode,
        /// Access that the reservation asks for.
        pub access: ShareAccess,
    }
}

xdr_struct! {
    /// `nlm4_shareargs`: the arguments of SHARE and UNSHARE.
    pub struct ShareArgs<'a> {
        /// Cookie that the result repeats.
        pub cookie: Netobj<'a>,
        /// The share reservation.
        pub share: Share<'a>,
        /// True if the client reclaims the reservation after a restart of the server.
        pub reclaim: bool,
    }
}

xdr_struct! {
    /// `nlm4_shareres`: the result of SHARE and UNSHARE.
    pub struct ShareRes<'a> {
        /// Cookie of the request.
        pub cookie: Netobj<'a>,
        /// Outcome.
        pub stat: Stats,
        /// Number that no client uses.
        pub sequence: i32,
    }
}

xdr_struct! {
    /// `nlm4_notify`: the arguments of FREE_ALL.
    pub struct Notify<'a> {
        /// Name of the client.
        pub name: HostName<'a>,
        /// State number of the client's status monitor.
        pub state: i32,
    }
}
