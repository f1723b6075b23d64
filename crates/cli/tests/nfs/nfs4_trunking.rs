//! Trunking (RFC 8881 section 2.10.5): one session over connections to several addresses of the server.

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    BindConnArgs, ChannelDirFromClient, ClientOwner, CreateHow as CreateHow4, ExchangeIdArgs, Fattr,
    Nfsstat4, Op, OpResult, OpenHow, ReadArgs, StableHow4, StateProtectArgs, WriteArgs,
};

use crate::harness::*;
use crate::nfs4::{COMPOUND, Client4, compound_of, putfh, results};

/// The identity of the server for a client, and the client's number.
#[derive(Debug, PartialEq)]
struct Identity {
    client: u64,
    minor_id: u64,
    major_id: Vec<u8>,
    scope: Vec<u8>,
}

/// Asks for the identity, as a client does for each address before it uses them together.
fn identity(connection: &mut Client, owner: &[u8]) -> Identity {
    let client_owner = ClientOwner { verifier: [1; 8], id: Opaque(owner) };
    let args =
        ExchangeIdArgs { client_owner, flags: 0, state_protect: StateProtectArgs::None, impl_id: None };
    let (_, bytes) = connection.call(COMPOUND, &compound_of(1, &[Op::ExchangeId(args)]));
    match results(&bytes).1[..] {
        [OpResult::ExchangeId(Ok(known))] => Identity {
            client: known.clientid,
            minor_id: known.server_owner.minor_id,
            major_id: known.server_owner.major_id.0.to_vec(),
            scope: known.server_scope.0.to_vec(),
        },
        ref other => panic!("EXCHANGE_ID: {other:?}"),
    }
}

#[test]
fn one_session_is_used_over_several_addresses_of_the_server() {
    let server = Serve::unsquashed().flags(&["--listen", "127.0.0.2:0"]).start();
    let other = server.status()["listen"][1].as_str().unwrap().parse().unwrap();
    let mut four = Client4::connect(&server, b"trunk");
    let make = OpenHow::Create(CreateHow4::Unchecked(Fattr::default()));
    let (stateid, file) = four.open(b"file", make, 0).unwrap();
    let mut second = Client::connect(other);
    let known = identity(&mut server.connect(), b"trunk");
    assert_eq!(known.client, four.id);
    assert_eq!(identity(&mut second, b"trunk"), known, "the client can tell that this is one server");

    let bind = BindConnArgs { sessionid: four.session, direction: ChannelDirFromClient::Fore, rdma: false };
    let (_, bytes) = second.call(COMPOUND, &compound_of(1, &[Op::BindConnToSession(bind)]));
    assert!(matches!(results(&bytes).1[..], [OpResult::BindConnToSession(Ok(_))]));
    let write = WriteArgs { stateid, offset: 0, stable: StableHow4::FileSync, data: b"over the first" };
    assert_eq!(four.status(&[putfh(&file), Op::Write(write)]), Nfsstat4::Ok);
    // The open of the first address, in the same slot, over the second one; and back.
    let read = ReadArgs { stateid, offset: 5, count: 9 };
    for _ in 0..2 {
        std::mem::swap(&mut four.connection, &mut second);
        four.run(&[putfh(&file), Op::Read(read)], |status, results| match results.last() {
            Some(OpResult::Read(Ok(read))) => assert_eq!(read.data, b"the first"),
            other => panic!("{status:?} {other:?}"),
        });
    }
}
