//! Addresses that the server listens on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The port of NFS (RFC 1813 section 1.1). MOUNT answers on this port as well.
pub const DEFAULT_PORT: u16 = 2049;

/// Returns both loopback addresses with the default port. A host without IPv6 has only the IPv4 address.
pub fn default_listen() -> Vec<SocketAddr> {
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))];
    let has_ipv6 = std::fs::read_to_string("/proc/net/if_inet6")
        .is_ok_and(|table| table.lines().any(|line| line.starts_with("00000000000000000000000000000001 ")));
    if has_ipv6 {
        addresses.push(SocketAddr::from((Ipv6Addr::LOCALHOST, DEFAULT_PORT)));
    }
    addresses
}

/// Parses `ADDR:PORT`, or `ADDR` alone for port 2049. An IPv6 address with a port is written in brackets.
///
/// # Errors
/// One sentence, if the text is not a numeric address.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, DEFAULT_PORT));
    }
    Err(format!(
        "`{text}` is not a listen address; write ADDR:PORT, such as 127.0.0.1:2049, [::1]:2049 or 0.0.0.0:2049"
    ))
}

/// Returns true if only this host can reach the address.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Returns true if a server cannot listen on both addresses at once: the ports are equal and not 0, and the addresses
/// are equal or one is the wildcard of the other's family.
pub(crate) fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    let same_family = one.is_ipv4() == other.is_ipv4();
    let wildcard = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && same_family && (wildcard || one.ip() == other.ip())
}
