//! The port mapper, version 2 (RFC 1833, section 3).

use crate::xdr::List;

/// Program number.
pub const PROGRAM: u32 = 100_000;
/// Version of the program.
pub const VERSION: u32 = 2;
/// The port it always has, TCP and UDP.
pub const PORT: u16 = 111;

/// Protocol number of TCP in a [`Mapping`].
pub const IPPROTO_TCP: u32 = 6;
/// Protocol number of UDP in a [`Mapping`].
pub const IPPROTO_UDP: u32 = 17;

xdr_enum! {
    /// A procedure of the port mapper by its number.
    pub enum Procedure("portmapper procedure") {
        /// Do nothing.
        Null = 0,
        /// Register a program: [`Mapping`] to a boolean.
        Set = 1,
        /// Withdraw a program: [`Mapping`] to a boolean.
        Unset = 2,
        /// Ask for a port: [`Mapping`] (its port is ignored) to an unsigned integer, 0 where it is not registered.
        Getport = 3,
        /// List all: nothing to [`MappingList`].
        Dump = 4,
        /// Call a procedure of another program on the same host.
        Callit = 5,
    }
}

xdr_struct! {
    /// `mapping`: where a program listens.
    pub struct Mapping {
        /// Program number.
        pub prog: u32,
        /// Version of the program.
        pub vers: u32,
        /// [`IPPROTO_TCP`] or [`IPPROTO_UDP`].
        pub prot: u32,
        /// Port number.
        pub port: u32,
    }
}

/// `pmaplist`: the result of DUMP.
pub type MappingList = List<Mapping>;
