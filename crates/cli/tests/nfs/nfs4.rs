//! NFSv4.1: sessions, opens, data, locks and names, by a client that encodes its own COMPOUNDs.

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    self, Attributes, Bitmap, ChannelAttrs, ClientOwner, CloseArgs, CompoundRes, CompoundWriter, CreateHow,
    CreateSessionArgs, DestroySessionArgs, ExchangeIdArgs, Fattr, GetattrArgs, HandleArgs, LockArgs, LockRes,
    LockType, Locker, NameArgs, Nfsstat4, Op, OpResult, OpenArgs, OpenClaim, OpenHow, OpenToLockOwner,
    ReadArgs, ReclaimCompleteArgs, ResultOr, SequenceArgs, SetattrArgs, StableHow4, StateOwner,
    StateProtectArgs, Stateid, TO_END, WriteArgs, attr, share,
};
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Reader};

use crate::harness::*;

pub(crate) const COMPOUND: (u32, u32, u32) = (nfs4::PROGRAM, nfs4::VERSION, nfs4::PROC_COMPOUND);

/// The position of the last byte of `sa_highest_slotid` in a COMPOUND of [`compound_of`]: behind the tag, the minor
/// version, the number of operations, the operation, the session, the sequence number and the slot.
const HIGHEST_SLOT_AT: usize = 4 + 4 + 4 + 4 + 4 + 16 + 4 + 4 + 3;

/// A client with a session, which sends one request at a time in slot 0.
pub(crate) struct Client4 {
    pub(crate) connection: Client,
    minor_version: u32,
    pub(crate) id: u64,
    pub(crate) session: [u8; 16],
    pub(crate) sequence: u32,
    /// The arguments of the last COMPOUND.
    last: Vec<u8>,
    /// The results of the last reply.
    pub(crate) replied: Vec<u8>,
}

/// Returns the results of a COMPOUND, with its status.
pub(crate) fn results(bytes: &[u8]) -> (Nfsstat4, Vec<OpResult<'_>>) {
    let reply = CompoundRes::<OpResult<'_>>::decode(&mut Reader::new(bytes)).unwrap();
    (reply.status, reply.results.map(Result::unwrap).collect())
}

fn compound(operations: &[Op<'_>]) -> Vec<u8> {
    compound_of(1, operations)
}

pub(crate) fn compound_of(minor_version: u32, operations: &[Op<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = CompoundWriter::begin(&mut out, b"test", minor_version);
    operations.iter().for_each(|operation| writer.push(&mut out, operation));
    out
}

/// Sends operations outside of a session. Returns the status.
pub(crate) fn alone(connection: &mut Client, operations: &[Op<'_>]) -> Nfsstat4 {
    let (_, bytes) = connection.call(COMPOUND, &compound(operations));
    results(&bytes).0
}

impl Client4 {
    pub(crate) fn connect(server: &Server, name: &[u8]) -> Self {
        Self::connect_as(server.connect(), 1, name)
    }

    /// Makes a session of a minor version on a connection, and says that the client reclaims nothing.
    pub(crate) fn connect_as(connection: Client, minor_version: u32, name: &[u8]) -> Self {
        let mut client = Self::connect_silent(connection, minor_version, name);
        client.run(&[Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })], |status, _| {
            // A client that connects again has said it before.
            assert!(matches!(status, Nfsstat4::Ok | Nfsstat4::CompleteAlready), "{status:?}");
        });
        client
    }

    /// Makes a session of a minor version on a connection, without RECLAIM_COMPLETE.
    pub(crate) fn connect_silent(connection: Client, minor_version: u32, name: &[u8]) -> Self {
        match Self::try_connect(connection, minor_version, name) {
            Ok(client) => client,
            Err(status) => panic!("CREATE_SESSION: {status:?}"),
        }
    }

    /// Makes a session like [`Client4::connect_silent`], or returns the error of CREATE_SESSION.
    pub(crate) fn try_connect(
        mut connection: Client,
        minor_version: u32,
        name: &[u8],
    ) -> Result<Self, Nfsstat4> {
        let owner = ClientOwner { verifier: [1; 8], id: Opaque(name) };
        let state_protect = StateProtectArgs::None;
        let args = ExchangeIdArgs { client_owner: owner, flags: 0, state_protect, impl_id: None };
        let (_, bytes) = connection.call(COMPOUND, &compound_of(minor_version, &[Op::ExchangeId(args)]));
        let (id, sequence) = match results(&bytes).1[..] {
            [OpResult::ExchangeId(Ok(made))] => (made.clientid, made.sequence),
            ref other => panic!("EXCHANGE_ID: {other:?}"),
        };
        let channel = ChannelAttrs {
            max_request: 1 << 20,
            max_response: 1 << 20,
            max_response_cached: 4096,
            max_operations: 16,
            max_requests: 8,
            ..ChannelAttrs::default()
        };
        let args = CreateSessionArgs {
            clientid: id,
            sequence,
            flags: 0,
            fore_channel: channel,
            back_channel: channel,
            cb_program: 0x4000_0000,
            sec_parms: forebay_wire::Array::EMPTY,
        };
        let (_, bytes) = connection.call(COMPOUND, &compound_of(minor_version, &[Op::CreateSession(args)]));
        let session = match results(&bytes).1[..] {
            [OpResult::CreateSession(Ok(made))] => made.sessionid,
            [OpResult::CreateSession(Err(status))] => return Err(status),
            ref other => panic!("CREATE_SESSION: {other:?}"),
        };
        let (last, replied) = (Vec::new(), Vec::new());
        Ok(Client4 { connection, minor_version, id, session, sequence: 0, last, replied })
    }

    /// Sends operations in the session; the results do not include that of SEQUENCE.
    pub(crate) fn run<T>(
        &mut self,
        operations: &[Op<'_>],
        see: impl FnOnce(Nfsstat4, &[OpResult<'_>]) -> T,
    ) -> T {
        self.encode(operations);
        self.again(see)
    }

    /// Sends operations like [`Client4::run`] to a server that may be killed at any moment. Returns `None` if there was
    /// no answer.
    pub(crate) fn try_run<T>(
        &mut self,
        operations: &[Op<'_>],
        see: impl FnOnce(Nfsstat4, &[OpResult<'_>]) -> T,
    ) -> Option<T> {
        self.encode(operations);
        self.try_again(see)
    }

    /// Sends the last COMPOUND to a server that may be killed at any moment. Returns `None` if there was no answer.
    pub(crate) fn try_again<T>(&mut self, see: impl FnOnce(Nfsstat4, &[OpResult<'_>]) -> T) -> Option<T> {
        self.restate_highest_slot();
        let call = self.connection.call_bytes(COMPOUND, &self.last);
        let reply = self.connection.try_exchange(&call)?;
        let mut reader = Reader::new(&reply);
        assert_eq!(ReplyHeader::decode(&mut reader).unwrap().status, ReplyStatus::Success);
        let (status, results) = results(reader.rest());
        Some(see(status, &results[1..]))
    }

    /// Ends the session.
    pub(crate) fn leave(mut self) {
        let session = DestroySessionArgs { sessionid: self.session };
        let request = compound_of(self.minor_version, &[Op::DestroySession(session)]);
        let (_, bytes) = self.connection.call(COMPOUND, &request);
        assert_eq!(results(&bytes).0, Nfsstat4::Ok);
    }

    /// Continues the session on a new connection.
    pub(crate) fn reconnect(&mut self, server: &Server) {
        self.connection = server.connect();
    }

    /// Sends operations, and does not wait for the reply.
    pub(crate) fn send(&mut self, operations: &[Op<'_>]) {
        self.encode(operations);
        self.restate_highest_slot();
        let call = self.connection.call_bytes(COMPOUND, &self.last);
        self.connection.send(&call);
    }

    /// Changes `sa_highest_slotid` of the last COMPOUND before it is sent. Linux states the highest slot in use at each
    /// sending, so a retransmission differs there.
    fn restate_highest_slot(&mut self) {
        self.last[HIGHEST_SLOT_AT] ^= 1;
    }

    /// Makes the next COMPOUND of the session.
    fn encode(&mut self, operations: &[Op<'_>]) {
        self.sequence += 1;
        let sequence = SequenceArgs {
            sessionid: self.session,
            sequence: self.sequence,
            slot: 0,
            highest_slot: 0,
            // A reply that is kept is short.
            cache_this: !operations.iter().any(|operation| matches!(operation, Op::Read(_))),
        };
        let all: Vec<_> = std::iter::once(Op::Sequence(sequence)).chain(operations.iter().copied()).collect();
        self.last = compound_of(self.minor_version, &all);
    }

    /// Sends the last COMPOUND once more.
    pub(crate) fn again<T>(&mut self, see: impl FnOnce(Nfsstat4, &[OpResult<'_>]) -> T) -> T {
        self.restate_highest_slot();
        let (status, bytes) = self.connection.call(COMPOUND, &self.last);
        assert_eq!(status, ReplyStatus::Success);
        self.replied = bytes;
        let (status, results) = results(&self.replied);
        assert!(matches!(results.first(), Some(OpResult::Sequence(_))), "{results:?}");
        see(status, &results[1..])
    }

    /// Opens or makes a file in the root. Returns its open and its handle.
    pub(crate) fn open(
        &mut self,
        name: &[u8],
        how: OpenHow<'_>,
        deny: u32,
    ) -> Result<(Stateid, Vec<u8>), Nfsstat4> {
        let open = OpenArgs {
            seqid: 0,
            share_access: share::BOTH | share::WANT_NO_DELEG,
            share_deny: deny,
            owner: StateOwner { clientid: self.id, owner: Opaque(b"owner") },
            how,
            claim: OpenClaim::Null(name),
        };
        self.run(&[Op::Putrootfh(()), Op::Open(open), Op::Getfh(())], |status, results| match *results {
            [_, OpResult::Open(Ok(open)), OpResult::Getfh(Ok(handle))] => {
                Ok((open.stateid, handle.object.0.to_vec()))
            }
            _ => Err(status),
        })
    }

    pub(crate) fn lock(
        &mut self,
        handle: &[u8],
        open: Stateid,
        kind: LockType,
        offset: u64,
        length: u64,
    ) -> Nfsstat4 {
        let owner = StateOwner { clientid: self.id, owner: Opaque(b"locker") };
        let new = OpenToLockOwner { open_seqid: 0, open_stateid: open, lock_seqid: 0, lock_owner: owner };
        let locker = Locker::New(new);
        let lock = Op::Lock(LockArgs { locktype: kind, reclaim: false, offset, length, locker });
        self.run(&[putfh(handle), lock], |_, results| match results[1] {
            OpResult::Lock(LockRes::Ok(_)) => Nfsstat4::Ok,
            OpResult::Lock(ResultOr::Failed(denied)) => {
                assert_eq!(denied.owner.owner.0, b"locker");
                Nfsstat4::Denied
            }
            ref other => panic!("LOCK: {other:?}"),
        })
    }

    /// Asks for the session on its own connection. Returns the error if the server does not know it.
    pub(crate) fn session_status(&mut self) -> Nfsstat4 {
        self.encode(&[]);
        let (_, bytes) = self.connection.call(COMPOUND, &self.last);
        results(&bytes).0
    }

    pub(crate) fn status(&mut self, operations: &[Op<'_>]) -> Nfsstat4 {
        self.run(operations, |status, _| status)
    }
}

pub(crate) fn putfh(handle: &[u8]) -> Op<'_> {
    Op::Putfh(HandleArgs { object: Opaque(handle) })
}

pub(crate) fn remove(name: &[u8]) -> [Op<'_>; 2] {
    [Op::Putrootfh(()), Op::Remove(NameArgs { name })]
}

fn served() -> Server {
    Serve::unsquashed().start()
}

#[test]
fn a_file_is_made_written_read_and_removed() {
    let server = served();
    let mut c = Client4::connect(&server, b"one");
    let mut buffer = Vec::new();
    let set = Attributes { mode: Some(0o640), ..Attributes::default() };
    let how = OpenHow::Create(CreateHow::Guarded(Fattr::encoded(&mut buffer, &set)));
    let (open, file) = c.open(b"file", how, 0).unwrap();
    assert_eq!(c.open(b"file", how, 0), Err(Nfsstat4::Exist));
    let write = WriteArgs { stateid: open, offset: 3, stable: StableHow4::FileSync, data: b"text" };
    c.run(&[putfh(&file), Op::Write(write)], |_, results| match results[1] {
        OpResult::Write(Ok(wrote)) => assert_eq!((wrote.count, wrote.committed), (4, StableHow4::FileSync)),
        ref other => panic!("WRITE: {other:?}"),
    });
    let read = Op::Read(ReadArgs { stateid: open, offset: 0, count: 100 });
    let size = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::SIZE, attr::MODE, attr::FILEID]) });
    // The data stands in the middle of the reply here, and at its end below.
    for operations in [&[putfh(&file), read, size][..], &[putfh(&file), read]] {
        c.run(operations, |status, results| {
            assert_eq!(status, Nfsstat4::Ok);
            let OpResult::Read(Ok(read)) = results[1] else { panic!("READ: {results:?}") };
            assert_eq!((read.data, read.eof), (&b"\0\0\0text"[..], true));
            if let Some(OpResult::Getattr(Ok(got))) = results.get(2) {
                let got = got.attributes.attributes().unwrap();
                assert_eq!((got.size, got.mode), (Some(7), Some(0o640)));
                assert_ne!(got.fileid, Some(0));
            }
        });
    }
    server.flush();
    assert_eq!(std::fs::read(server.data.join("file")).unwrap(), b"\0\0\0text");
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: open });
    assert_eq!(c.status(&[putfh(&file), close]), Nfsstat4::Ok);
    assert_eq!(c.status(&[putfh(&file), read]), Nfsstat4::BadStateid, "after CLOSE");
    assert_eq!(c.status(&remove(b"file")), Nfsstat4::Ok);
    assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "a retransmission gets the reply");
    assert_eq!(c.status(&remove(b"file")), Nfsstat4::Noent);
    assert!(!server.data.join("file").exists());
}

#[test]
fn locks_and_shares_of_two_clients_conflict() {
    let server = served();
    let (mut one, mut two) = (Client4::connect(&server, b"one"), Client4::connect(&server, b"two"));
    let how = OpenHow::Create(CreateHow::Unchecked(Fattr::default()));
    let (first, file) = one.open(b"file", how, 0).unwrap();
    let (second, _) = two.open(b"file", OpenHow::NoCreate, 0).unwrap();
    assert_eq!(one.lock(&file, first, LockType::Write, 10, 10), Nfsstat4::Ok);
    assert_eq!(two.lock(&file, second, LockType::Read, 19, TO_END), Nfsstat4::Denied);
    assert_eq!(two.lock(&file, second, LockType::Read, 20, TO_END), Nfsstat4::Ok);
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: first });
    assert_eq!(one.status(&[putfh(&file), close]), Nfsstat4::Ok);
    assert_eq!(two.lock(&file, second, LockType::Write, 0, 5), Nfsstat4::Ok, "CLOSE frees locks");
    assert_eq!(one.open(b"file", OpenHow::NoCreate, share::WRITE), Err(Nfsstat4::ShareDenied));
}

#[test]
fn a_request_that_breaks_the_rules_is_refused() {
    let server = served();
    let mut c = Client4::connect(&server, b"one");
    assert_eq!(alone(&mut c.connection, &[Op::Putrootfh(())]), Nfsstat4::OpNotInSession);
    let mut old = Vec::new();
    CompoundWriter::begin(&mut old, b"", 0).push(&mut old, &Op::Putrootfh(()));
    let (_, bytes) = c.connection.call(COMPOUND, &old);
    assert_eq!(results(&bytes), (Nfsstat4::MinorVersMismatch, Vec::new()));
    let session = DestroySessionArgs { sessionid: c.session };
    assert_eq!(
        alone(&mut c.connection, &[Op::DestroySession(session), Op::Putrootfh(())]),
        Nfsstat4::NotOnlyOp
    );
    assert_eq!(c.status(&[Op::Getfh(())]), Nfsstat4::Nofilehandle);
    assert_eq!(c.status(&[putfh(b"forged")]), Nfsstat4::Badhandle);
    let mut buffer = Vec::new();
    let set = Attributes { owner: Some(b"nobody@example"), ..Attributes::default() };
    let attributes = Fattr::encoded(&mut buffer, &set);
    let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
    assert_eq!(c.status(&[Op::Putrootfh(()), set]), Nfsstat4::Badowner);
}

#[test]
fn without_nfs4_only_version_3_is_served() {
    let server = Serve::new().flags(&["--nfs4=false"]).start();
    let (status, _) = server.connect().call(COMPOUND, &compound(&[Op::Putrootfh(())]));
    assert_eq!(status, ReplyStatus::ProgMismatch { low: 3, high: 3 });
}

#[test]
fn an_open_that_is_denied_does_not_truncate() {
    let server = served();
    let (mut one, mut two) = (Client4::connect(&server, b"one"), Client4::connect(&server, b"two"));
    let how = OpenHow::Create(CreateHow::Unchecked(Fattr::default()));
    let (open, file) = one.open(b"file", how, share::WRITE).unwrap();
    let write = WriteArgs { stateid: open, offset: 0, stable: StableHow4::FileSync, data: b"stays" };
    assert_eq!(one.status(&[putfh(&file), Op::Write(write)]), Nfsstat4::Ok);
    let mut buffer = Vec::new();
    let empty = Attributes { size: Some(0), ..Attributes::default() };
    let truncating = OpenHow::Create(CreateHow::Unchecked(Fattr::encoded(&mut buffer, &empty)));
    assert_eq!(two.open(b"file", truncating, 0), Err(Nfsstat4::ShareDenied));
    let read = Op::Read(ReadArgs { stateid: open, offset: 0, count: 10 });
    one.run(&[putfh(&file), read], |_, results| {
        assert!(matches!(results[1], OpResult::Read(Ok(read)) if read.data == b"stays"));
    });
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: open });
    assert_eq!(one.status(&[putfh(&file), close]), Nfsstat4::Ok);
    let (open, _) = two.open(b"file", truncating, 0).unwrap();
    let read = Op::Read(ReadArgs { stateid: open, offset: 0, count: 10 });
    two.run(&[putfh(&file), read], |_, results| {
        assert!(matches!(results[1], OpResult::Read(Ok(read)) if read.data.is_empty() && read.eof));
    });
}

#[test]
fn the_directories_above_the_exports_lead_to_them_and_back() {
    for (root, roots) in [("/", true), ("/other", false)] {
        let exports =
            format!("[[export]]\npath='@/data/a'\nname='{root}'\n[[export]]\npath='@/data/b'\nname='/x/y'\n");
        let server = Serve::new().exports(&exports).start_on(|data| {
            ["a", "b", "b/in"].iter().for_each(|name| std::fs::create_dir(data.join(name)).unwrap());
        });
        let mut c = Client4::connect(&server, b"one");
        let mut handle = |names: &[&'static [u8]], back: usize| {
            let mut operations = vec![Op::Putrootfh(())];
            operations.extend(names.iter().map(|name| Op::Lookup(NameArgs { name })));
            operations.extend((0..back).map(|_| Op::Lookupp(())));
            operations.push(Op::Getfh(()));
            c.run(&operations, |status, results| match results.last() {
                Some(OpResult::Getfh(Ok(handle))) => Ok(handle.object.0.to_vec()),
                _ => Err(status),
            })
        };
        let (top, way) = (handle(&[], 0).unwrap(), [&b"x"[..], b"y", b"in"]);
        let at: Vec<_> = (0..=3).map(|depth| handle(&way[..depth], 0).unwrap()).collect();
        assert_eq!(at[0], top);
        for back in 1..=3 {
            assert_eq!(handle(&way, back).as_ref(), Ok(&at[3 - back]), "{back} up");
        }
        assert_eq!(handle(&[], 1), Err(Nfsstat4::Noent));
        assert_eq!(handle(&[b"other"], 0).is_ok(), !roots);
    }
}

#[test]
fn retransmissions_of_a_running_request_get_its_reply() {
    needs_root!();
    let Some(array) = Array::instant("xfs") else { return };
    let server = serve_at(&array.at).plain().start();
    let mut c = Client4::connect(&server, b"one");
    let inflight = || server.status()["inflight"].as_u64().unwrap();
    let hanging = Hanging::begin(&array);
    c.sequence += 1;
    let sequence = SequenceArgs {
        sessionid: c.session,
        sequence: c.sequence,
        slot: 0,
        highest_slot: 0,
        cache_this: true,
    };
    let made = Op::Create(nfs4::CreateArgs {
        objtype: nfs4::CreateType::Dir,
        name: b"made",
        attributes: Fattr::default(),
    });
    let request = compound(&[Op::Sequence(sequence), Op::Putrootfh(()), made]);
    let mut connections = Vec::new();
    // One runs, four wait, and the first two of those that waited made place for the last two.
    for counted in [1, 2, 3, 4, 5, 5, 5] {
        let mut connection = server.connect();
        let call = connection.call_bytes(COMPOUND, &request);
        connection.send(&call);
        connections.push(connection);
        wait_for(|| inflight() == counted);
    }
    wait_for(|| server.status()["workers"]["queued"] == 0);
    drop(hanging);
    let [first, _, _, waiting @ ..] = &mut connections[..] else { unreachable!() };
    let reply = first.receive().unwrap().split_off(4);
    for connection in waiting {
        assert_eq!(connection.receive().unwrap().split_off(4), reply);
    }
    wait_for(|| inflight() == 0);
    assert!(array.at.join("made").is_dir());
}

#[test]
fn an_open_decides_about_access_and_without_one_the_mode_does_also_for_the_owner() {
    use std::os::unix::fs::PermissionsExt;
    needs_root!();
    let server = served();
    let chmod = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(&server.data, 0o777);
    let path = server.data.join("file");
    let mut c = Client4::connect(&server, b"one");
    c.connection.user = user(1000, 1000, &[]);
    let mut buffer = Vec::new();
    let set = Attributes { mode: Some(0o400), ..Attributes::default() };
    let how = OpenHow::Create(CreateHow::Guarded(Fattr::encoded(&mut buffer, &set)));
    let (open, file) = c.open(b"file", how, 0).unwrap();
    let write = |c: &mut Client4, stateid| {
        let write = WriteArgs { stateid, offset: 0, stable: StableHow4::FileSync, data: b"text" };
        c.status(&[putfh(&file), Op::Write(write)])
    };
    let read = |c: &mut Client4, stateid| {
        c.status(&[putfh(&file), Op::Read(ReadArgs { stateid, offset: 0, count: 10 })])
    };
    assert_eq!(write(&mut c, open), Nfsstat4::Ok);
    assert_eq!(write(&mut c, Stateid::ANONYMOUS), Nfsstat4::Access);
    assert_eq!(read(&mut c, Stateid::ANONYMOUS), Nfsstat4::Ok);
    let wire = FileHandle::new(&file).unwrap();
    assert!(c.connection.write(&wire, 0, b"text", StableHow::FileSync).is_ok(), "version 3 has no open");
    chmod(&path, 0);
    for special in [Stateid::ANONYMOUS, Stateid::BYPASS] {
        assert_eq!(read(&mut c, special), Nfsstat4::Access);
    }
    std::os::unix::fs::chown(&path, Some(2000), Some(2000)).unwrap();
    assert_eq!((read(&mut c, open), write(&mut c, open)), (Nfsstat4::Ok, Nfsstat4::Ok));
    // Denials of an open count for requests without one.
    chmod(&path, 0o666);
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: open });
    assert_eq!(c.status(&[putfh(&file), close]), Nfsstat4::Ok);
    c.open(b"file", OpenHow::NoCreate, share::BOTH).unwrap();
    assert_eq!(read(&mut c, Stateid::ANONYMOUS), Nfsstat4::Locked);
    assert_eq!(read(&mut c, Stateid::BYPASS), Nfsstat4::Ok);
    assert_eq!(write(&mut c, Stateid::BYPASS), Nfsstat4::Locked);
}
