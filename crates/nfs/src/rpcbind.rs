//! The answers of rpcbind, versions 3 and 4 of the portmapper (RFC 1833 section 2): clients over IPv6 ask these.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use forebay_wire::Opaque;
use forebay_wire::portmap::{IPPROTO_TCP, IPPROTO_UDP, Mapping};
use forebay_wire::rpc::ReplyStatus;
use forebay_wire::rpcbind::{Procedure, Rpcb, RpcbList, Text, VERSION_3, VERSION_4, netid, universal};
use forebay_wire::xdr::{Decode, Encode, List, Reader};

/// The owner of all registrations.
const OWNER: &[u8] = b"superuser";

/// Answers a procedure: appends its result to `result`, or returns the status of a call that has no result.
pub(crate) fn execute(
    registered: &[Mapping],
    version: u32,
    procedure: u32,
    args: &mut Reader<'_>,
    result: &mut Vec<u8>,
) -> ReplyStatus {
    let Ok(procedure) = Procedure::try_from(procedure) else { return ReplyStatus::ProcUnavail };
    match procedure {
        Procedure::Null => {}
        // Registration is not allowed.
        Procedure::Set | Procedure::Unset => false.encode(result),
        Procedure::Getaddr | Procedure::Getversaddr => {
            if procedure == Procedure::Getversaddr && version == VERSION_3 {
                return ReplyStatus::ProcUnavail;
            }
            let Ok(asked) = Rpcb::decode(args) else { return ReplyStatus::GarbageArgs };
            let is_exact = procedure == Procedure::Getversaddr;
            let address = address_of(registered, &asked, is_exact);
            let text: Text<'_> = Opaque(address.as_bytes());
            text.encode(result);
        }
        Procedure::Dump => dump(registered, result),
        // No procedure is called for another client, and a client has no use for the rest.
        _ => return ReplyStatus::ProcUnavail,
    }
    ReplyStatus::Success
}

/// The transports, with the protocol of the portmapper.
const TRANSPORTS: [(&str, u32, IpAddr); 4] = [
    ("tcp", IPPROTO_TCP, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
    ("udp", IPPROTO_UDP, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
    ("tcp6", IPPROTO_TCP, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    ("udp6", IPPROTO_UDP, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
];

/// Returns the universal address of a program; an empty text if it is not served over the transport. The client takes
/// the port and knows the host already, so the address is the wildcard. With `is_exact`, another version than the asked
/// one is not returned.
fn address_of(registered: &[Mapping], asked: &Rpcb<'_>, is_exact: bool) -> String {
    let transport = TRANSPORTS.iter().find(|(name, ..)| name.as_bytes() == asked.netid.0);
    let found = transport.and_then(|(_, protocol, any)| {
        let mut registered = registered.iter();
        let mapping = registered.find(|mapping| {
            (mapping.prog, mapping.prot) == (asked.prog, *protocol)
                && (!is_exact || mapping.vers == asked.vers)
        })?;
        Some(universal(&SocketAddr::new(*any, mapping.port as u16)))
    });
    found.unwrap_or_default()
}

/// Appends the result of DUMP: each registered program once for IPv4 and once for IPv6, at the wildcard address.
fn dump(registered: &[Mapping], result: &mut Vec<u8>) {
    let mut entries = Vec::new();
    for mapping in registered {
        for (_, protocol, any) in TRANSPORTS.iter().filter(|(_, protocol, _)| *protocol == mapping.prot) {
            let address = SocketAddr::new(*any, mapping.port as u16);
            entries.push((mapping, netid(&address, *protocol == IPPROTO_UDP), universal(&address)));
        }
    }
    let entries = entries.iter().map(|(mapping, netid, address)| Rpcb {
        prog: mapping.prog,
        vers: mapping.vers,
        netid: Opaque(netid.as_bytes()),
        addr: Opaque(address.as_bytes()),
        owner: Opaque(OWNER),
    });
    let list: RpcbList<'_> = List(entries.collect());
    list.encode(result);
}

/// Returns true for the versions that this file answers.
pub(crate) fn is_rpcbind(version: u32) -> bool {
    matches!(version, VERSION_3 | VERSION_4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: [Mapping; 2] = [
        Mapping { prog: 100_003, vers: 3, prot: IPPROTO_TCP, port: 2049 },
        Mapping { prog: 100_024, vers: 1, prot: IPPROTO_UDP, port: 2049 },
    ];

    fn ask(procedure: Procedure, prog: u32, vers: u32, netid: &str) -> Option<String> {
        let (mut args, mut result) = (Vec::new(), Vec::new());
        let (netid, none) = (Opaque(netid.as_bytes()), Opaque(&b""[..]));
        Rpcb { prog, vers, netid, addr: none, owner: none }.encode(&mut args);
        let status = execute(&SERVED, VERSION_4, procedure as u32, &mut Reader::new(&args), &mut result);
        assert_eq!(status, ReplyStatus::Success);
        let text = Text::decode(&mut Reader::new(&result)).unwrap();
        Some(String::from_utf8(text.0.to_vec()).unwrap()).filter(|text| !text.is_empty())
    }

    #[test]
    fn addresses_by_program_version_and_transport() {
        use Procedure::{Getaddr, Getversaddr};
        let (four, six) = (Some("0.0.0.0.8.1".to_owned()), Some("::.8.1".to_owned()));
        assert_eq!(ask(Getaddr, 100_003, 3, "tcp"), four);
        assert_eq!(ask(Getaddr, 100_003, 3, "tcp6"), six);
        assert_eq!(ask(Getaddr, 100_003, 2, "tcp"), four, "the service reports its versions");
        assert_eq!(ask(Getversaddr, 100_003, 2, "tcp"), None);
        assert_eq!(ask(Getversaddr, 100_003, 3, "tcp6"), six);
        assert_eq!(ask(Getaddr, 100_003, 3, "udp"), None);
        assert_eq!(ask(Getaddr, 100_024, 1, "udp"), four);
        assert_eq!(ask(Getaddr, 100_005, 3, "tcp"), None);
        assert_eq!(ask(Getaddr, 100_003, 3, "local"), None);
    }

    #[test]
    fn the_list_has_each_transport() {
        let mut result = Vec::new();
        let status = execute(&SERVED, VERSION_3, Procedure::Dump as u32, &mut Reader::new(&[]), &mut result);
        assert_eq!(status, ReplyStatus::Success);
        let list = RpcbList::decode(&mut Reader::new(&result)).unwrap();
        let found: Vec<_> = list.0.iter().map(|entry| (entry.prog, entry.netid.0)).collect();
        let expected: [(u32, &[u8]); 4] =
            [(100_003, b"tcp"), (100_003, b"tcp6"), (100_024, b"udp"), (100_024, b"udp6")];
        assert_eq!(found, expected);
    }
}
