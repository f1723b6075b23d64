//! The network status monitor, version 1 (X/Open, Protocols for Interworking: XNFS, chapter 11).

use crate::array::Opaque;

/// Program number.
pub const PROGRAM: u32 = 100_024;
/// Version of the program.
pub const VERSION: u32 = 1;
/// SM_MAXSTRLEN: longest name of a host in bytes. Decoding fails above it.
pub const MAX_NAME: usize = 1024;
/// SM_PRIV_SIZE: bytes of private data that the monitor returns.
pub const PRIVATE_SIZE: usize = 16;

/// The name of a host.
pub type HostName<'a> = Opaque<'a, MAX_NAME>;

xdr_enum! {
    /// A procedure of NSM.
    pub enum Procedure("NSM procedure") {
        /// Does nothing.
        Null = 0,
        /// Asks whether a host can be monitored: [`Name`] to [`StatRes`].
        Stat = 1,
        /// Monitors a host: [`Mon`] to [`StatRes`].
        Mon = 2,
        /// Stops to monitor a host: [`MonId`] to [`State`].
        Unmon = 3,
        /// Stops to monitor all hosts of a caller: [`MyId`] to [`State`].
        UnmonAll = 4,
        /// Acts as if this host had restarted: nothing to nothing.
        SimuCrash = 5,
        /// Tells that a host has restarted: [`StatChange`] to nothing.
        Notify = 6,
    }
}

xdr_struct! {
    /// `sm_name`: the argument of STAT.
    pub struct Name<'a> {
        /// Name of the host.
        pub mon_name: HostName<'a>,
    }
}

xdr_struct! {
    /// `my_id`: the procedure that the monitor calls when a host restarts.
    pub struct MyId<'a> {
        /// Name of the host on which the procedure is called.
        pub my_name: HostName<'a>,
        /// Program number.
        pub my_prog: i32,
        /// Version of the program.
        pub my_vers: i32,
        /// Procedure number.
        pub my_proc: i32,
    }
}

xdr_struct! {
    /// `mon_id`: a monitored host, and the procedure to call.
    pub struct MonId<'a> {
        /// Name of the host.
        pub mon_name: HostName<'a>,
        /// Procedure to call.
        pub my_id: MyId<'a>,
    }
}

xdr_struct! {
    /// `mon`: the arguments of MON.
    pub struct Mon<'a> {
        /// The host, and the procedure to call.
        pub mon_id: MonId<'a>,
        /// Private data, returned in the call.
        pub private: [u8; PRIVATE_SIZE],
    }
}

xdr_struct! {
    /// `stat_chge`: the arguments of NOTIFY.
    pub struct StatChange<'a> {
        /// Name of the host that has restarted.
        pub mon_name: HostName<'a>,
        /// New state number of that host. It is odd while the host is up.
        pub state: i32,
    }
}

xdr_struct! {
    /// `sm_stat`: the result of UNMON and UNMON_ALL.
    pub struct State {
        /// State number of the monitor's host.
        pub state: i32,
    }
}

xdr_enum! {
    /// `res`: the outcome of STAT and MON.
    pub enum Outcome("res") {
        /// The host is monitored.
        Success = 0,
        /// The host cannot be monitored.
        Failure = 1,
    }
}

xdr_struct! {
    /// `sm_stat_res`: the result of STAT and MON.
    pub struct StatRes {
        /// Outcome.
        pub outcome: Outcome,
        /// State number of the monitor's host.
        pub state: i32,
    }
}

xdr_struct! {
    /// `status`: the arguments of the procedure of [`MyId`].
    pub struct Status<'a> {
        /// Name of the host that has restarted.
        pub mon_name: HostName<'a>,
        /// New state number of that host.
        pub state: i32,
        /// Private data of MON.
        pub private: [u8; PRIVATE_SIZE],
    }
}
