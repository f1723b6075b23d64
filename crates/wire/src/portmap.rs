//! The port mapper, version 2 (RFC 1833, section 3).

use crate::xdr::List;

/// Program number.
pub const PROGRAM: u32 = 100_000;
/// Version of the program.
pub const VERSION: u32 = 2;
/// The fixed port of the port mapper, TCP and UDP.
pub const PORT: u16 = 111;

/// Protocol number of TCP in a [`Mapping`].
pub const IPPROTO_TCP: u32 = 6;
/// Protocol number of UDP in a [`Mapping`].
pub const IPPROTO_UDP: u32 = 17;

xdr_enum! {
    /// A procedure of the port mapper.
    pub enum Procedure("portmapper procedure") {
        /// Does nothing.
        Null = 0,
        /// Registers a program: [`Mapping`] to a boolean.
        Set = 1,
        /// Withdraws a program: [`Mapping`] to a boolean.
        Unset = 2,
        /// Returns a port: [`Mapping`] (its port is ignored) to an unsigned integer, 0 if the program is not
        /// registered.
        Getport = 3,
        /// Lists all mappings: nothing to [`MappingList`].
        Dump = 4,
        /// Calls a procedure of another program on the host of the port mapper.
        Callit = 5,
    }
}

xdr_struct! {
    /// `mapping`: a program and the port on which it listens.
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
