//! rpcbind, versions 3 and 4 of the port mapper (RFC 1833, section 2), and universal addresses (RFC 5665).

use std::net::{IpAddr, SocketAddr};

use crate::array::Opaque;
use crate::xdr::List;

/// Program number.
pub const PROGRAM: u32 = crate::portmap::PROGRAM;
/// Version 3 of the program. It has the procedures up to [`Procedure::Taddr2uaddr`].
pub const VERSION_3: u32 = 3;
/// Version 4 of the program.
pub const VERSION_4: u32 = 4;
/// Longest transport, address or owner in bytes. Decoding fails above it.
pub const MAX_STRING: usize = 1024;

/// A transport, an address or an owner.
pub type Text<'a> = Opaque<'a, MAX_STRING>;

xdr_enum! {
    /// A procedure of rpcbind.
    pub enum Procedure("rpcbind procedure") {
        /// Does nothing.
        Null = 0,
        /// Registers a program: [`Rpcb`] to a boolean.
        Set = 1,
        /// Withdraws a program: [`Rpcb`] to a boolean.
        Unset = 2,
        /// Returns an address: [`Rpcb`] to [`Text`], empty if the program is not registered. Any version will do.
        Getaddr = 3,
        /// Lists all registrations: nothing to [`RpcbList`].
        Dump = 4,
        /// Calls a procedure of another program on the host of rpcbind. Called CALLIT in version 3.
        Bcast = 5,
        /// Returns the time of the host in seconds since 1970: nothing to an unsigned integer.
        Gettime = 6,
        /// Translates a universal address: [`Text`] to opaque bytes.
        Uaddr2taddr = 7,
        /// Translates to a universal address: opaque bytes to [`Text`].
        Taddr2uaddr = 8,
        /// Version 4: returns an address of exactly the version asked for: [`Rpcb`] to [`Text`].
        Getversaddr = 9,
        /// Version 4: calls a procedure of another program, with errors.
        Indirect = 10,
        /// Version 4: lists the addresses of a program.
        Getaddrlist = 11,
        /// Version 4: returns statistics.
        Getstat = 12,
    }
}

xdr_struct! {
    /// `rpcb`: a program and the address on which it listens.
    pub struct Rpcb<'a> {
        /// Program number.
        pub prog: u32,
        /// Version of the program.
        pub vers: u32,
        /// Transport, such as `tcp` or `udp6`.
        pub netid: Text<'a>,
        /// Universal address.
        pub addr: Text<'a>,
        /// User that registered the program.
        pub owner: Text<'a>,
    }
}

/// `rpcblist`: the result of DUMP.
pub type RpcbList<'a> = List<Rpcb<'a>>;

/// Returns the transport of `address`, such as `tcp6`. `udp` chooses between UDP and TCP.
#[must_use]
pub const fn netid(address: &SocketAddr, udp: bool) -> &'static str {
    match (address, udp) {
        (SocketAddr::V4(_), false) => "tcp",
        (SocketAddr::V6(_), false) => "tcp6",
        (SocketAddr::V4(_), true) => "udp",
        (SocketAddr::V6(_), true) => "udp6",
    }
}

/// Returns the universal address: the IP address, and the two bytes of the port in decimal.
#[must_use]
pub fn universal(address: &SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// Reads a universal address. Returns `None` if the text is no universal address of IPv4 or IPv6.
#[must_use]
pub fn parse_universal(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (text, low) = text.rsplit_once('.')?;
    let (ip, high) = text.rsplit_once('.')?;
    let byte = |digits: &str| {
        let decimal = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if decimal { digits.parse::<u8>().ok() } else { None }
    };
    let port = u16::from_be_bytes([byte(high)?, byte(low)?]);
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port))
}
