//! NFSv4.1 over TLS: the protection that exports ask for, rules for certificates, and a changed authority of clients.

use forebay_wire::nfs4::{
    Attributes, Bitmap, ChannelDirFromClient, ClientOwner, ExchangeIdArgs, GetattrArgs, NameArgs, Nfsstat4,
    Op, OpResult, OpenHow, ReadArgs, Secinfo, SecinfoStyle, StateProtectArgs, Stateid, attr,
};
use forebay_wire::nfs4::{BindConnArgs, CreateHow, Fattr};
use forebay_wire::{Opaque, nfs4};

use crate::authority::{Authority, Pair};
use crate::harness::*;
use crate::nfs4::{Client4, alone, putfh};
use crate::tls::Certified;

const OPEN: &str = "[[export.client]]\nnetworks = ['127.0.0.0/8']\nsquash = 'none'\n";

/// Serves directories below the root, each with these lines in its export.
fn serve(certified: &Certified, exports: &[(&str, &str)]) -> Server {
    let export = |(name, lines): &(&str, &str)| {
        format!("[[export]]\npath = '@/data/{name}'\nname = '/{name}'\n{lines}\n")
    };
    let text: String = exports.iter().map(export).collect();
    Serve::new().exports(&format!("{}{text}", certified.table())).start_on(|data| {
        for (name, _) in exports {
            let at = data.join(name);
            std::fs::create_dir(&at).unwrap();
            std::fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
            std::fs::write(at.join("file"), "contents").unwrap();
        }
    })
}

fn lookup(name: &[u8]) -> Op<'_> {
    Op::Lookup(NameArgs { name })
}

/// Returns the status of a COMPOUND, and the number of operations that were carried out, the failed one included.
fn outcome(c: &mut Client4, operations: &[Op<'_>]) -> (Nfsstat4, usize) {
    c.run(operations, |status, results| (status, results.len()))
}

/// Returns the handle of the file in an export.
fn file_in(c: &mut Client4, export: &[u8]) -> Vec<u8> {
    let operations = [Op::Putrootfh(()), lookup(export), lookup(b"file"), Op::Getfh(())];
    c.run(&operations, |status, results| match results.last() {
        Some(OpResult::Getfh(Ok(found))) => found.object.0.to_vec(),
        _ => panic!("{status:?}"),
    })
}

/// Makes a session over TLS, with a certificate or none.
fn session(certified: &Certified, server: &Server, identity: Option<&Pair>, name: &[u8]) -> Client4 {
    Client4::connect_as(certified.connect(server, identity), 1, name)
}

/// A client reaches the exports from the directory above them. The status comes with the first operation that is about
/// an export of another protection.
#[test]
fn the_protection_of_an_export_counts_where_a_client_enters_it() {
    let certified = Certified::new();
    let pair = certified.authority.issue("client", &["client.example"]);
    let policy = |tls: &str| format!("tls = '{tls}'\n{OPEN}");
    let (off, required, mutual) = (policy("off"), policy("required"), policy("mutual"));
    let server = serve(&certified, &[("off", &off), ("required", &required), ("mutual", &mutual)]);
    let mut plain = Client4::connect(&server, b"plain");
    let mut sealed = session(&certified, &server, None, b"sealed");
    let mut shown = session(&certified, &server, Some(&pair), b"shown");
    let handles: [Vec<u8>; 3] =
        [file_in(&mut plain, b"off"), file_in(&mut sealed, b"required"), file_in(&mut shown, b"mutual")];
    let names = [&b"off"[..], b"required", b"mutual"];
    let admitted = [[true, false, false], [false, true, false], [false, true, true]];
    let size = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::SIZE]) });
    let read = Op::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 10 });
    for (c, admitted) in [&mut plain, &mut sealed, &mut shown].into_iter().zip(admitted) {
        assert_eq!(outcome(c, &[Op::Putrootfh(()), size]), (Nfsstat4::Ok, 2), "above the exports");
        for ((name, handle), is_admitted) in names.iter().zip(&handles).zip(admitted) {
            let (entered, used) = match is_admitted {
                true => ((Nfsstat4::Ok, 3), (Nfsstat4::Ok, 2)),
                false => ((Nfsstat4::Wrongsec, 2), (Nfsstat4::Wrongsec, 1)),
            };
            let name = String::from_utf8_lossy(name).into_owned();
            assert_eq!(outcome(c, &[Op::Putrootfh(()), lookup(name.as_bytes()), size]), entered, "{name}");
            assert_eq!(outcome(c, &[putfh(handle), size]), used, "{name}");
            assert_eq!(outcome(c, &[putfh(handle), read]), used, "{name}");
            // The question for the flavours is answered in any case.
            let question = Op::SecinfoNoName(SecinfoStyle::CurrentFh);
            c.run(&[putfh(handle), question], |status, results| match results {
                [_, OpResult::SecinfoNoName(Ok(told))] => {
                    assert!(told.flavors.iter().any(|flavor| flavor == Secinfo::Flavor(1)), "{name}");
                }
                _ => panic!("{name}: {status:?}"),
            });
        }
    }
}

#[test]
fn a_connection_that_no_export_admits_makes_no_client() {
    let certified = Certified::new();
    let pair = certified.authority.issue("client", &["client.example"]);
    let server = serve(&certified, &[("a", &format!("tls = 'mutual'\n{OPEN}"))]);
    let owner = ClientOwner { verifier: [1; 8], id: Opaque(b"one") };
    let args = ExchangeIdArgs {
        client_owner: owner,
        flags: 0,
        state_protect: StateProtectArgs::None,
        impl_id: None,
    };
    for mut c in [server.connect(), certified.connect(&server, None)] {
        assert_eq!(alone(&mut c, &[Op::ExchangeId(args)]), Nfsstat4::Perm);
    }
    let mut c = session(&certified, &server, Some(&pair), b"one");
    let file = file_in(&mut c, b"a");
    // The session goes on over another connection, which has to show a certificate for the export as well.
    for (connection, expected) in [
        (server.connect(), Nfsstat4::Wrongsec),
        (certified.connect(&server, None), Nfsstat4::Wrongsec),
        (certified.connect(&server, Some(&pair)), Nfsstat4::Ok),
    ] {
        c.connection = connection;
        let bind = BindConnArgs { sessionid: c.session, direction: ChannelDirFromClient::Fore, rdma: false };
        alone(&mut c.connection, &[Op::BindConnToSession(bind)]);
        assert_eq!(c.status(&[putfh(&file), Op::Getfh(())]), expected);
    }
}

fn rule(clients: &str, squash: &str) -> String {
    format!("[[export.client]]\nnetworks = [{clients}]\n{squash}\n")
}

/// Returns the owner of a file that a client makes as root.
fn owner_of_new(c: &mut Client4, export: &[u8], name: &[u8]) -> String {
    let open = nfs4::OpenArgs {
        seqid: 0,
        share_access: nfs4::share::BOTH | nfs4::share::WANT_NO_DELEG,
        share_deny: 0,
        owner: nfs4::StateOwner { clientid: c.id, owner: Opaque(b"owner") },
        how: OpenHow::Create(CreateHow::Guarded(Fattr::default())),
        claim: nfs4::OpenClaim::Null(name),
    };
    let ask = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::OWNER]) });
    c.run(&[Op::Putrootfh(()), lookup(export), Op::Open(open), ask], |status, results| match results.last() {
        Some(OpResult::Getattr(Ok(got))) => {
            let Attributes { owner, .. } = got.attributes.attributes().unwrap();
            String::from_utf8(owner.unwrap().to_vec()).unwrap()
        }
        _ => panic!("{status:?}"),
    })
}

#[test]
fn a_certificate_decides_about_access_and_squashing() {
    needs_root!();
    let certified = Certified::new();
    let issue = |file, name: &str| certified.authority.issue(file, &[name]);
    let (admin, user, other) =
        (issue("admin", "admin.example"), issue("user", "user.example"), issue("other", "other.example"));
    let rules = [
        "tls = 'mutual'\n".to_owned(),
        rule("'tls:admin.example'", "squash = 'none'"),
        rule("'tls:user.example'", "squash = 'all'\nanonuid = 3001\naccess = 'rw'"),
    ];
    // Another export lets every client make its record.
    let server = serve(&certified, &[("a", &rules.concat()), ("all", OPEN)]);
    let connect = |pair: &Pair, name: &[u8]| session(&certified, &server, Some(pair), name);
    let mut admin = connect(&admin, b"admin");
    assert_eq!(owner_of_new(&mut admin, b"a", b"made by admin"), "0");
    assert_eq!(owner_of_new(&mut connect(&user, b"user"), b"a", b"made by user"), "3001");
    // A certificate that no rule names is the right protection for no right.
    let mut other = connect(&other, b"other");
    assert_eq!(outcome(&mut other, &[Op::Putrootfh(()), lookup(b"a"), Op::Getfh(())]), (Nfsstat4::Access, 2));
    let file = file_in(&mut admin, b"a");
    assert_eq!(outcome(&mut other, &[putfh(&file), Op::Getfh(())]), (Nfsstat4::Access, 1));
    assert_eq!(outcome(&mut other, &[Op::Putrootfh(()), lookup(b"all"), Op::Getfh(())]), (Nfsstat4::Ok, 3));
}

#[test]
fn a_reload_takes_over_another_authority_of_clients() {
    let certified = Certified::new();
    let old = certified.authority.issue("old", &["client.example"]);
    let next_authority = Authority::new();
    let next = next_authority.issue("next", &["client.example"]);
    let lines = format!("tls = 'mutual'\n{}", rule("'tls:client.example'", "squash = 'none'"));
    let server = serve(&certified, &[("a", &lines)]);
    let mut before = session(&certified, &server, Some(&old), b"before");
    let file = file_in(&mut before, b"a");
    let three = FileHandle::new(&file).unwrap();
    let answers =
        |certified: &Certified, pair: &Pair| certified.connect(&server, Some(pair)).try_call(&three);
    assert!(answers(&certified, &old).is_some());
    assert_eq!(answers(&certified, &next), None, "a certificate of an unknown authority");

    // The file has another authority.
    std::fs::copy(next_authority.file(), certified.authority.file()).unwrap();
    let said = server.ask(&["reload", "--json"]);
    assert!(said.contains("the authorities of TLS"), "{said}");
    assert_eq!(answers(&certified, &old), None, "a certificate of the old authority");
    let mut after = session(&certified, &server, Some(&next), b"after");
    assert_eq!(after.status(&[putfh(&file), Op::Getfh(())]), Nfsstat4::Ok);
    assert!(answers(&certified, &next).is_some());
    assert_eq!(before.status(&[putfh(&file), Op::Getfh(())]), Nfsstat4::Ok, "a connection keeps its session");

    // Another file has both authorities.
    let both = server.home().join("both.pem");
    let third = Authority::new();
    let texts = [&third, &next_authority].map(|authority| std::fs::read_to_string(authority.file()).unwrap());
    std::fs::write(&both, texts.concat()).unwrap();
    let config = server.home().join("forebay.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let ca = format!("{:?}", certified.authority.file());
    std::fs::write(&config, text.replace(&ca, &format!("{both:?}"))).unwrap();
    server.ask(&["reload"]);
    let third = third.issue("third", &["client.example"]);
    assert_eq!(answers(&certified, &old), None);
    assert!(answers(&certified, &next).is_some() && answers(&certified, &third).is_some());

    // A file without certificates changes nothing.
    std::fs::write(&both, "").unwrap();
    assert_eq!(server.try_ask(&["reload"]).status.code(), Some(2));
    assert!(answers(&certified, &next).is_some());
}
