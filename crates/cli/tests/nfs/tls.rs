//! RPC with TLS (RFC 9289): the question for TLS, data over TLS, and what exports ask of connections.

use forebay_wire::nfs4::{
    Attributes, CreateHow as CreateHow4, Fattr, NameArgs, Nfsstat4, Op, OpResult, OpenHow, ReadArgs, Secinfo,
    SecinfoStyle, StableHow4, WriteArgs,
};
use forebay_wire::rpc::{AUTH_TLS, Auth, AuthStat, CallHeader, OpaqueAuth, ReplyStatus};
use forebay_wire::xdr::Encode;

use crate::authority::{Authority, Pair};
use crate::harness::*;
use crate::nfs4::{Client4, putfh};

const NULL: (u32, u32, u32) = (PROGRAM, VERSION, 0);

/// An authority with the certificate of a server.
pub(crate) struct Certified {
    pub(crate) authority: Authority,
    pub(crate) server: Pair,
}

impl Certified {
    pub(crate) fn new() -> Self {
        Self::with(&["server.example"])
    }

    /// Returns a server's certificate with these names and addresses.
    pub(crate) fn with(names: &[&str]) -> Self {
        let authority = Authority::new();
        let server = authority.issue("server", names);
        Self { authority, server }
    }

    /// Returns the table `[tls]` of a configuration file.
    pub(crate) fn table(&self) -> String {
        let (certificate, key, ca) = (&self.server.certificate, &self.server.key, self.authority.file());
        format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\nclient_ca = {ca:?}\n")
    }

    /// Serves one directory for every address with these lines in its export.
    pub(crate) fn serve(&self, export: &str) -> Server {
        let rule = "[[export.client]]\nnetworks = [\"127.0.0.0/8\"]\nsquash = \"none\"\n";
        let text = format!("{}[[export]]\npath = \"@/data\"\nname = \"/\"\n{export}\n{rule}", self.table());
        Serve::new().exports(&text).start()
    }

    pub(crate) fn connect(&self, server: &Server, identity: Option<&Pair>) -> Client {
        server.connect().with_tls(self.authority.client(identity))
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) % 251 + at / 4096) as u8).collect()
}

#[test]
fn data_passes_in_version_3() {
    let certified = Certified::new();
    let server = certified.serve("");
    let mut c = certified.connect(&server, None);
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o644);
    for (at, len) in [(0u64, 1 << 20), (1 << 20, 70_001), (5, 3)] {
        let data = pattern(len, at as usize);
        assert_eq!(c.write(&file, at, &data, StableHow::FileSync).unwrap().count as usize, len);
        assert!(c.read(&file, at, len as u32).unwrap().data == data);
    }
    // A large read from memory would be spliced on a plain connection.
    server.flush();
    let whole = std::fs::read(server.data.join("file")).unwrap();
    for _ in 0..3 {
        assert!(c.read(&file, 0, 1 << 20).unwrap().data == whole[..1 << 20]);
    }
    let status = server.status();
    assert_eq!((&status["encrypted"], &status["connections"]), (&1.into(), &1.into()));
    let mut plain = server.connect();
    assert!(plain.read(&file, 0, 1 << 20).unwrap().data == whole[..1 << 20], "both at once");
    assert_eq!(server.status()["encrypted"], 1);
    // The kernel of this host may have TLS.
    let in_kernel = &server.status()["encrypted_in_kernel"];
    assert!(server.ask(&["status"]).contains(&format!("1 encrypted ({in_kernel} by the kernel)")));
}

#[test]
fn data_passes_in_version_4() {
    let certified = Certified::new();
    let server = certified.serve("tls = \"required\"");
    let mut c = Client4::connect_as(certified.connect(&server, None), 2, b"sealed");
    let mut buffer = Vec::new();
    let set = Attributes { mode: Some(0o640), ..Attributes::default() };
    let how = OpenHow::Create(CreateHow4::Guarded(Fattr::encoded(&mut buffer, &set)));
    let (open, file) = c.open(b"file", how, 0).unwrap();
    let data = pattern(900_000, 1);
    let write = WriteArgs { stateid: open, offset: 0, stable: StableHow4::FileSync, data: &data };
    assert_eq!(c.status(&[putfh(&file), Op::Write(write)]), Nfsstat4::Ok);
    let mut found = Vec::new();
    while found.len() < data.len() {
        // The session keeps replies of up to 4 KiB.
        let read = Op::Read(ReadArgs { stateid: open, offset: found.len() as u64, count: 900_000 });
        c.run(&[putfh(&file), read], |_, results| match results[1] {
            OpResult::Read(Ok(read)) => found.extend_from_slice(read.data),
            ref other => panic!("READ: {other:?}"),
        });
    }
    assert!(found == data);

    // The session goes on over a plain connection, and the export does not.
    c.connection = server.connect();
    for operations in [&[Op::Putrootfh(())][..], &[putfh(&file)], &[putfh(&file), Op::Getfh(())]] {
        assert_eq!(c.status(operations), Nfsstat4::Wrongsec);
    }
    // The question for the accepted flavours is answered (RFC 8881 section 2.6.3.1.1).
    let by_name = Op::Secinfo(NameArgs { name: b"file" });
    for question in [Op::SecinfoNoName(SecinfoStyle::CurrentFh), by_name] {
        for place in [Op::Putrootfh(()), putfh(&file)] {
            c.run(&[place, question], |status, results| {
                assert_eq!(status, Nfsstat4::Ok);
                let (OpResult::SecinfoNoName(Ok(told)) | OpResult::Secinfo(Ok(told))) = &results[1] else {
                    panic!("{results:?}")
                };
                assert!(told.flavors.iter().any(|flavor| flavor == Secinfo::Flavor(1)));
            });
        }
    }
    assert_eq!(c.status(&[Op::Putrootfh(()), Op::Getfh(())]), Nfsstat4::Wrongsec);
}

#[test]
fn an_export_that_requires_tls_refuses_plain_requests_in_version_3() {
    let certified = Certified::new();
    let server = certified.serve("tls = \"required\"");
    let mut c = certified.connect(&server, None);
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o644);
    let mut plain = server.connect();
    assert_eq!(plain.mnt(b"/").unwrap_err(), mount3::Mountstat3::Acces);
    let acces = Nfsstat3::Acces;
    assert_eq!(plain.getattr(&file).status(), acces);
    assert_eq!(plain.read(&file, 0, 10).unwrap_err().status, acces);
    assert_eq!(plain.write(&file, 0, b"text", StableHow::FileSync).status(), acces);
    assert_eq!(plain.remove(&root, b"file").status(), acces);
    assert_eq!(plain.fsinfo(&root).status(), acces);
    // The null procedure and the list of exports need no protection.
    assert_eq!(plain.call(NULL, &[]).0, ReplyStatus::Success);
    assert!(!plain.mount_call(mount3::Procedure::Export, &()).is_empty());
    assert!(server.status()["refused"]["tls"].as_u64().unwrap() >= 6);
    assert!(server.ask(&["events"]).contains("xprtsec=tls"));
    // The same connection is admitted after it has begun TLS.
    let mut sealed = plain.with_tls(certified.authority.client(None));
    assert_eq!(sealed.getattr(&file).status(), Nfsstat3::Ok);
}

#[test]
fn an_export_without_tls_and_one_for_certificates() {
    let certified = Certified::new();
    let server = certified.serve("tls = \"off\"");
    let mut plain = server.connect();
    let root = plain.root();
    let mut sealed = certified.connect(&server, None);
    assert_eq!(sealed.getattr(&root).status(), Nfsstat3::Acces);
    assert_eq!(sealed.mnt(b"/").unwrap_err(), mount3::Mountstat3::Acces);

    let server = certified.serve("tls = \"mutual\"");
    let pair = certified.authority.issue("client", &["client.example"]);
    let mut known = certified.connect(&server, Some(&pair));
    let root = known.root();
    assert_eq!(known.getattr(&root).status(), Nfsstat3::Ok);
    for mut unknown in [certified.connect(&server, None), server.connect()] {
        assert_eq!(unknown.getattr(&root).status(), Nfsstat3::Acces);
        assert_eq!(unknown.mnt(b"/").unwrap_err(), mount3::Mountstat3::Acces);
    }
    // A certificate of an unknown authority ends the connection.
    let foreign = Authority::new().issue("foreign", &["client.example"]);
    let mut foreign = server.connect().with_tls(certified.authority.client(Some(&foreign)));
    assert_eq!(foreign.try_call(&root), None);
    assert_eq!(known.getattr(&root).status(), Nfsstat3::Ok);
}

#[test]
fn the_question_for_tls_is_answered_as_rfc_9289_says() {
    let plain = Serve::new().start();
    let mut c = plain.connect();
    assert_eq!(c.ask_for_tls(), b"", "no certificate, no TLS");
    let root = c.root();
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Ok, "and the connection goes on");

    let certified = Certified::new();
    let server = certified.serve("");
    let refused = |c: &mut Client, procedure| c.call(procedure, &[]).0;
    let mut c = server.connect().acting_as(User::Flavor(AUTH_TLS));
    let bad = ReplyStatus::AuthError(AuthStat::BadCred);
    assert_eq!(refused(&mut c, (PROGRAM, VERSION, 1)), bad);
    assert_eq!(refused(&mut c, (mount3::PROGRAM, mount3::VERSION, 1)), bad);
    for prog in [(PROGRAM, 3), (PROGRAM, 4), (mount3::PROGRAM, 3), (100_021, 4), (100_227, 3)] {
        let mut c = server.connect().acting_as(User::Flavor(AUTH_TLS));
        let call = c.call_bytes((prog.0, prog.1, 0), &[]);
        assert!(c.exchange(&call).ends_with(b"\0\0\0\x08STARTTLS\0\0\0\0"), "{prog:?}");
    }
    // There is no TLS inside of TLS.
    let mut inside = certified.connect(&server, None).acting_as(User::Flavor(AUTH_TLS));
    assert_eq!(refused(&mut inside, NULL), bad);
}

#[test]
fn no_damaged_question_for_tls_harms_others() {
    let certified = Certified::new();
    let server = certified.serve("");
    let mut good = certified.connect(&server, None);
    let root = good.root();
    let cred = Auth::Other(OpaqueAuth { flavor: AUTH_TLS, body: &[] });
    let mut probe = Vec::new();
    CallHeader { xid: 7, prog: PROGRAM, vers: 3, proc: 0, cred, verf: OpaqueAuth::NONE }.encode(&mut probe);
    // A generator of Lehmer's kind: the same numbers in every run.
    let mut state = 20_251_125u64;
    let mut random = |below: usize| {
        state = state * 48_271 % 0x7fff_ffff;
        state as usize % below
    };
    for _ in 0..300 {
        let mut damaged = probe.clone();
        for _ in 0..=random(3) {
            match random(3) {
                0 => damaged.truncate(1 + random(damaged.len())),
                1 => damaged.extend_from_slice(&[random(256) as u8; 9][..1 + random(9)]),
                _ => {
                    let at = random(damaged.len());
                    damaged[at] = random(256) as u8;
                }
            }
        }
        let mut c = server.connect();
        c.send(&damaged);
        // Whatever the answer is, garbage follows, and then the end.
        c.try_exchange(b"neither a handshake nor a call");
    }
    assert_eq!(good.getattr(&root).status(), Nfsstat3::Ok);
    let mut c = certified.connect(&server, None);
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Ok);
}
