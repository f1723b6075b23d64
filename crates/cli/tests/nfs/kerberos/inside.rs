//! Tests in a process with the configuration of a realm, against a server that runs already.

use std::sync::Arc;

use forebay_gss::client::Call;
use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    self, Attributes, Bitmap, ClientOwner, CreateSessionArgs, ExchangeIdArgs, GetattrArgs, GssInfo, NameArgs,
    Nfsstat4, Op, OpResult, OpenHow, ReadArgs, Secinfo, SecinfoStyle, SetattrArgs, StableHow4,
    StateProtectArgs, Stateid, WriteArgs, attr,
};
use forebay_wire::rpc::{AuthStat, ReplyHeader, ReplyStatus};
use forebay_wire::rpcsec_gss::{GssProcedure, GssService, KRB5_OID, MAX_SEQUENCE};
use forebay_wire::xdr::{Decode, Reader};

use super::{JO, MO, TEAM, environment};
use crate::harness::*;
use crate::nfs4::{COMPOUND, Client4, compound_of, putfh, results};

const SERVICES: [GssService; 3] = [GssService::None, GssService::Integrity, GssService::Privacy];

/// Ends a test that was started without a server.
macro_rules! connect {
    ($principal:expr) => {
        match connected($principal) {
            Some(connected) => connected,
            None => return,
        }
    };
}

/// Returns a connection, and a context of the principal.
fn connected(principal: &str) -> Option<(Client, Arc<Context>)> {
    let (dir, address) = environment()?;
    let mut connection = Client::connect(address);
    let context = Context::establish(&mut connection, &dir, principal);
    Some((connection, Arc::new(context)))
}

fn status(reply: &[u8]) -> ReplyStatus {
    ReplyHeader::decode(&mut Reader::new(reply)).unwrap().status
}

/// Returns `len` bytes that do not repeat.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
#[ignore = "runs within a realm"]
fn the_three_services_carry_nfs3() {
    let (mut c, context) = connect!("jo");
    for (service, child) in SERVICES.into_iter().zip(["none3", "integrity3", "privacy3"]) {
        c.user = User::Gss(context.clone(), service);
        let root = c.root();
        let made = c.create(&root, child.as_bytes(), CreateHow::Guarded(mode(0o600))).unwrap();
        let file = made.object.unwrap();
        for len in [1, 3, 70_001, 1 << 20] {
            let data = text(len);
            let wrote = c.write(&file, 0, &data, StableHow::FileSync).unwrap();
            assert_eq!(wrote.count as usize, len);
            let read = c.read(&file, 0, len as u32).unwrap();
            assert!(read.data == data, "{child}: {len} bytes");
        }
        assert_eq!((c.attr(&file).uid, c.attr(&file).gid), (JO, JO));
        assert_eq!(
            c.create(&root, child.as_bytes(), CreateHow::Guarded(mode(0o600))).status(),
            Nfsstat3::Exist
        );
        let removed: Result<WccData, Failed<WccData>> =
            c.nfs(Procedure::Remove, &RemoveArgs { dir: root, name: child.as_bytes() });
        assert_eq!(removed.status(), Nfsstat3::Ok);
    }
}

#[test]
#[ignore = "runs within a realm"]
fn the_three_services_carry_nfs4() {
    for (service, child) in SERVICES.into_iter().zip(["none4", "integrity4", "privacy4"]) {
        let (mut connection, context) = connect!("jo");
        connection.user = User::Gss(context, service);
        let mut c = Client4::connect_as(connection, 2, child.as_bytes());
        let mut buffer = Vec::new();
        let set = Attributes { mode: Some(0o600), ..Attributes::default() };
        let made = nfs4::CreateHow::Guarded(nfs4::Fattr::encoded(&mut buffer, &set));
        let (stateid, file) = c.open(child.as_bytes(), OpenHow::Create(made), 0).unwrap();
        let data = text(200_001);
        let write = WriteArgs { stateid, offset: 0, stable: StableHow4::FileSync, data: &data };
        assert_eq!(c.status(&[putfh(&file), Op::Write(write)]), Nfsstat4::Ok);
        // The session keeps its replies, and so bounds them to 4 KiB.
        let read = Op::Read(ReadArgs { stateid, offset: 100_003, count: 3001 });
        let owner = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::OWNER, attr::SIZE]) });
        for operations in [&[putfh(&file), owner, read][..], &[putfh(&file), read, owner]] {
            c.run(operations, |status, results| {
                assert_eq!(status, Nfsstat4::Ok);
                for result in results {
                    match result {
                        OpResult::Read(Ok(read)) => assert!(read.data == &data[100_003..103_004], "{child}"),
                        OpResult::Getattr(Ok(got)) => {
                            let owner = got.attributes.attributes().unwrap().owner.unwrap();
                            assert_eq!(owner, JO.to_string().as_bytes());
                        }
                        _ => {}
                    }
                }
            });
        }
        let remove = [Op::Putrootfh(()), Op::Remove(NameArgs { name: child.as_bytes() })];
        assert_eq!(c.status(&remove), Nfsstat4::Ok);
        assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "a repeated request has a new sequence number");
    }
}

/// Clients send names where they have a domain.
#[test]
#[ignore = "runs within a realm"]
fn owners_are_numbers_or_names_of_the_realm() {
    let (mut connection, context) = connect!("nfs/client.test");
    connection.user = User::Gss(context, GssService::Privacy);
    let mut c = Client4::connect_as(connection, 2, b"names");
    let made = nfs4::CreateHow::Guarded(nfs4::Fattr::default());
    let (_, file) = c.open(b"names", OpenHow::Create(made), 0).unwrap();
    let mut set = |owner: &str, group: &str| {
        let (owner, owner_group) = (Some(owner.as_bytes()), Some(group.as_bytes()));
        let values = Attributes { owner, owner_group, ..Attributes::default() };
        let mut buffer = Vec::new();
        let attributes = nfs4::Fattr::encoded(&mut buffer, &values);
        let set = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
        let request = Bitmap::of(&[attr::OWNER, attr::OWNER_GROUP]);
        let status = c.status(&[putfh(&file), Op::Setattr(set)]);
        c.run(&[putfh(&file), Op::Getattr(GetattrArgs { request })], |_, results| {
            let Some(OpResult::Getattr(Ok(got))) = results.last() else { panic!("{results:?}") };
            let got = got.attributes.attributes().unwrap();
            let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
            (status, text(got.owner), text(got.owner_group))
        })
    };
    let is = |status, owner: u32, group: u32| (status, owner.to_string(), group.to_string());
    assert_eq!(set("mo@test.forebay", "team@TEST.FOREBAY"), is(Nfsstat4::Ok, MO, TEAM));
    assert_eq!(set("0", "mo@test.forebay"), is(Nfsstat4::Ok, 0, MO));
    for stranger in ["jo@elsewhere.test", "jo", "nobody-knows@test.forebay"] {
        assert_eq!(set(stranger, "0"), is(Nfsstat4::Badowner, 0, MO), "{stranger}");
    }
    let remove = [Op::Putrootfh(()), Op::Remove(NameArgs { name: b"names" })];
    assert_eq!(c.status(&remove), Nfsstat4::Ok);
}

#[test]
#[ignore = "runs within a realm"]
fn a_principal_is_the_user_with_the_groups_of_this_host() {
    let own = |principal: &str| {
        let (mut c, context) = connected(principal)?;
        c.user = User::Gss(context, GssService::Integrity);
        let root = c.root();
        let child = format!("of-{}", principal.replace('/', "-"));
        let made = c.create(&root, child.as_bytes(), CreateHow::Unchecked(mode(0o666))).unwrap();
        let attributes = c.attr(&made.object.unwrap());
        let team = c.find(&root, b"team");
        Some((attributes.uid, c.read(&team, 0, 100).status()))
    };
    let Some(jo) = own("jo") else { return };
    assert_eq!(jo, (JO, Nfsstat3::Ok), "the group is in the database, not in the call");
    assert_eq!(own("mo"), Some((MO, Nfsstat3::Acces)));
    assert_eq!(own("stranger"), Some((65_534, Nfsstat3::Acces)), "a user whom this host does not know");
    assert_eq!(own("jo/admin"), Some((65_534, Nfsstat3::Acces)), "an instance is another name");
    assert_eq!(own("host/client.test"), Some((0, Nfsstat3::Ok)), "the export does not squash root");
    assert_eq!(own("nfs/client.test"), Some((0, Nfsstat3::Ok)));
}

#[test]
#[ignore = "runs within a realm"]
fn a_sequence_number_is_answered_once() {
    let (mut c, context) = connect!("jo");
    assert!(context.client.window >= 256);
    let (sequence, record) = context.record(1000, NULL, GssService::None, &[]);
    let reply = c.exchange(&record);
    assert_eq!(context.client.results(&reply, sequence, GssService::None).as_deref(), Ok(&[][..]));
    // The repetition gets no reply: the next reply is that of the request after it.
    c.send(&record);
    let (sequence, record) = context.record(1001, NULL, GssService::Privacy, &[]);
    let reply = c.exchange(&record);
    assert_eq!(reply[..4], 1001u32.to_be_bytes());
    assert!(context.client.results(&reply, sequence, GssService::Privacy).is_ok());
    // A number far ahead moves the window past all numbers before.
    let call = |sequence| Call {
        xid: sequence,
        procedure: NULL,
        purpose: GssProcedure::Data,
        sequence,
        service: GssService::None,
        arguments: &[],
    };
    let ahead = MAX_SEQUENCE - 1;
    assert_eq!(status(&c.exchange(&context.client.call(&call(ahead)).unwrap())), ReplyStatus::Success);
    c.send(&context.client.call(&call(500)).unwrap());
    let reply = c.exchange(&context.client.call(&call(ahead - 1)).unwrap());
    assert_eq!(reply[..4], (ahead - 1).to_be_bytes(), "a number below the window gets no reply");
    let reply = c.exchange(&context.client.call(&call(MAX_SEQUENCE)).unwrap());
    assert_eq!(status(&reply), ReplyStatus::AuthError(AuthStat::GssCtxProblem));
}

#[test]
#[ignore = "runs within a realm"]
fn a_changed_call_is_refused_and_changes_nothing() {
    let (mut c, context) = connect!("jo");
    let getattr = (PROGRAM, VERSION, Procedure::Getattr as u32);
    let arguments = [0, 0, 0, 0];
    for service in SERVICES {
        // A byte of the header, and of its checksum.
        let (_, record) = context.record(1, getattr, service, &arguments);
        let end = 32 + u32::from_be_bytes(record[28..32].try_into().unwrap()) as usize;
        for at in [3, 23, end - 1, end + 8, end + 20] {
            let mut wrong = record.clone();
            wrong[at] ^= 1;
            let refused = status(&c.exchange(&wrong));
            assert_eq!(refused, ReplyStatus::AuthError(AuthStat::GssCredProblem), "{service:?}, byte {at}");
        }
        // The number is not used up.
        assert_eq!(status(&c.exchange(&record)), ReplyStatus::Success);
    }
    for service in [GssService::Integrity, GssService::Privacy] {
        let (sequence, mut wrong) = context.record(2, getattr, service, &arguments);
        let last = wrong.len() - 1;
        wrong[last] ^= 1;
        let reply = c.exchange(&wrong);
        assert_eq!(status(&reply), ReplyStatus::GarbageArgs, "{service:?}");
        assert!(context.client.is_verified(&reply, sequence));
    }
    // A body that is signed for another number.
    let (_, other) = context.record(3, getattr, GssService::Integrity, &arguments);
    let (_, mut mixed) = context.record(3, getattr, GssService::Integrity, &arguments);
    let body = mixed.len() - (other.len() - body_at(&other));
    mixed[body..].copy_from_slice(&other[body_at(&other)..]);
    assert_eq!(status(&c.exchange(&mixed)), ReplyStatus::GarbageArgs);
}

/// Returns the offset of the arguments in a record.
fn body_at(record: &[u8]) -> usize {
    let length = |at: usize| u32::from_be_bytes(record[at..at + 4].try_into().unwrap()) as usize;
    let verifier = 32 + length(28).next_multiple_of(4);
    verifier + 8 + length(verifier + 4).next_multiple_of(4)
}

#[test]
#[ignore = "runs within a realm"]
fn cut_records_end_no_connection_of_anyone_else() {
    let (mut c, context) = connect!("jo");
    let (_, address) = environment().unwrap();
    for service in SERVICES {
        let (_, record) = context.record(1, (PROGRAM, VERSION, 1), service, &[0; 40]);
        for len in (4..record.len()).step_by(3) {
            let mut cut = Client::connect(address);
            cut.send(&record[..len]);
            drop(cut);
        }
    }
    let (sequence, record) = context.record(2, NULL, GssService::Integrity, &[]);
    let reply = c.exchange(&record);
    assert!(context.client.results(&reply, sequence, GssService::Integrity).is_ok());
}

#[test]
#[ignore = "runs within a realm"]
fn a_destroyed_or_unknown_context_has_to_be_made_again() {
    let (mut c, mut context) = connect!("jo");
    let sequence = context.sequence();
    let (purpose, service) = (GssProcedure::Destroy, GssService::None);
    let destroy = Call { xid: 5, procedure: NULL, purpose, sequence, service, arguments: &[] };
    let record = context.client.call(&destroy).unwrap();
    // Only the null procedure may end a context.
    let procedure = (PROGRAM, VERSION, 1);
    let wrong = context.client.call(&Call { procedure, ..destroy }).unwrap();
    assert_eq!(status(&c.exchange(&wrong)), ReplyStatus::AuthError(AuthStat::BadCred));
    let reply = c.exchange(&record);
    assert_eq!(context.client.results(&reply, sequence, service).as_deref(), Ok(&[][..]));
    let refused = ReplyStatus::AuthError(AuthStat::GssCredProblem);
    let (_, record) = context.record(6, NULL, GssService::None, &[]);
    assert_eq!(status(&c.exchange(&record)), refused, "destroyed");
    for handle in [&b""[..], b"x", &[0; 16], &[0; 64]] {
        Arc::get_mut(&mut context).unwrap().client.handle = handle.to_vec();
        let (_, record) = context.record(7, NULL, GssService::Privacy, &[]);
        assert_eq!(status(&c.exchange(&record)), refused, "{handle:?}");
        let purpose = GssProcedure::ContinueInit;
        let go_on = context.client.call(&Call { purpose, ..destroy }).unwrap();
        assert_eq!(status(&c.exchange(&go_on)), refused, "{handle:?}");
    }
}

#[test]
#[ignore = "runs within a realm"]
fn an_export_takes_the_flavours_of_its_rule() {
    let (mut c, context) = connect!("jo");
    c.user = user(JO, JO, &[]);
    let mounted = c.mnt(b"/private").unwrap();
    assert_eq!(mounted.auth_flavors, [390_005]);
    assert_eq!(c.mnt(b"/").unwrap().auth_flavors, [390_005, 390_004, 390_003, rpc::AUTH_SYS, rpc::AUTH_NONE]);
    let weak = [user(JO, JO, &[]), user(0, 0, &[]), User::None];
    let weaker = [GssService::None, GssService::Integrity].map(|service| User::Gss(context.clone(), service));
    for user in weak.into_iter().chain(weaker) {
        c.user = user;
        assert_eq!(c.getattr(&mounted.fhandle).status(), Nfsstat3::Acces, "{:?}", c.user);
        let made = c.create(&mounted.fhandle, b"weak", CreateHow::Unchecked(mode(0o600)));
        assert_eq!(made.status(), Nfsstat3::Acces);
    }
    c.user = User::Gss(context, GssService::Privacy);
    assert_eq!(c.getattr(&mounted.fhandle).status(), Nfsstat3::Ok);
    let made = c.create(&mounted.fhandle, b"strong", CreateHow::Unchecked(mode(0o600))).unwrap();
    assert_eq!(c.attr(&made.object.unwrap()).uid, JO);
}

#[test]
#[ignore = "runs within a realm"]
fn nfs4_names_the_flavours_of_an_export() {
    let (mut connection, context) = connect!("jo");
    connection.user = user(JO, JO, &[]);
    let mut c = Client4::connect_as(connection, 1, b"flavours");
    let private = || Op::Lookup(NameArgs { name: b"private" });
    let gss = |service: GssService| Secinfo::Gss(GssInfo { oid: KRB5_OID, qop: 0, service: service as u32 });
    assert_eq!(c.status(&[Op::Putrootfh(()), private(), Op::Getfh(())]), Nfsstat4::Wrongsec);
    let seen = |c: &mut Client4, operations: &[Op<'_>]| {
        c.run(operations, |status, results| match results.last() {
            Some(OpResult::Secinfo(Ok(found)) | OpResult::SecinfoNoName(Ok(found))) => {
                found.flavors.iter().map(|flavor| format!("{flavor:?}")).collect::<Vec<_>>()
            }
            _ => panic!("{status:?}"),
        })
    };
    let shown =
        |flavors: &[Secinfo<'_>]| flavors.iter().map(|flavor| format!("{flavor:?}")).collect::<Vec<_>>();
    let named = [Op::Putrootfh(()), Op::Secinfo(NameArgs { name: b"private" })];
    assert_eq!(seen(&mut c, &named), shown(&[gss(GssService::Privacy)]));
    let here = [Op::Putrootfh(()), private(), Op::SecinfoNoName(SecinfoStyle::CurrentFh)];
    assert_eq!(seen(&mut c, &here), shown(&[gss(GssService::Privacy)]));
    let all = [gss(GssService::Privacy), gss(GssService::Integrity), gss(GssService::None)];
    let sys = [Secinfo::Flavor(rpc::AUTH_SYS), Secinfo::Flavor(rpc::AUTH_NONE)];
    let root = [Op::Putrootfh(()), Op::SecinfoNoName(SecinfoStyle::CurrentFh)];
    assert_eq!(seen(&mut c, &root), shown(&[&all[..], &sys[..]].concat()));
    // With the flavour that the server names, the client gets in, and its handle is of no use to the weaker flavour.
    c.connection.user = User::Gss(context, GssService::Privacy);
    let handle =
        c.run(&[Op::Putrootfh(()), private(), Op::Getfh(())], |status, results| match results.last() {
            Some(OpResult::Getfh(Ok(handle))) => handle.object.0.to_vec(),
            _ => panic!("{status:?}"),
        });
    let look = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::SIZE]) });
    assert_eq!(c.status(&[putfh(&handle), look]), Nfsstat4::Ok);
    c.connection.user = user(JO, JO, &[]);
    assert_eq!(c.status(&[putfh(&handle), look]), Nfsstat4::Wrongsec);
    let asked = [putfh(&handle), Op::SecinfoNoName(SecinfoStyle::CurrentFh)];
    assert_eq!(seen(&mut c, &asked), shown(&[gss(GssService::Privacy)]));
}

#[test]
#[ignore = "runs within a realm"]
fn a_client_of_nfs4_belongs_to_its_principal() {
    let (mut jo, context) = connect!("jo");
    jo.user = User::Gss(context, GssService::Integrity);
    let owner = ClientOwner { verifier: [1; 8], id: Opaque(b"whose") };
    let exchange = ExchangeIdArgs {
        client_owner: owner,
        flags: 0,
        state_protect: StateProtectArgs::None,
        impl_id: None,
    };
    let (_, bytes) = jo.call(COMPOUND, &compound_of(1, &[Op::ExchangeId(exchange)]));
    let (clientid, sequence) = match results(&bytes).1[..] {
        [OpResult::ExchangeId(Ok(made))] => (made.clientid, made.sequence),
        ref other => panic!("EXCHANGE_ID: {other:?}"),
    };
    let channel = nfs4::ChannelAttrs {
        max_request: 1 << 20,
        max_response: 1 << 20,
        max_operations: 16,
        max_requests: 8,
        ..nfs4::ChannelAttrs::default()
    };
    let create = CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore_channel: channel,
        back_channel: channel,
        cb_program: 0x4000_0000,
        sec_parms: forebay_wire::Array::EMPTY,
    };
    let create = compound_of(1, &[Op::CreateSession(create)]);
    let (mut mo, context) = connect!("mo");
    for other in [User::Gss(context, GssService::Integrity), user(JO, JO, &[])] {
        mo.user = other;
        let (_, bytes) = mo.call(COMPOUND, &create);
        assert_eq!(results(&bytes).0, Nfsstat4::ClidInuse, "{:?}", mo.user);
    }
    let (_, bytes) = jo.call(COMPOUND, &create);
    assert_eq!(results(&bytes).0, Nfsstat4::Ok);
}
