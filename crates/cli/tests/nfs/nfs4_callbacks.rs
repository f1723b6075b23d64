//! Call-backs of NFSv4.1 and delegations, with a client that answers call-backs on its connection.

use forebay_wire::nfs3::{self, Procedure};
use forebay_wire::nfs4::{
    self, Attributes, BindConnArgs, Bitmap, CbNotifyLockArgs, CbOp, CbResult, CbSequenceArgs, CbSequenceOk,
    ChannelAttrs, ChannelDirFromClient, ClientOwner, CompoundRes, CreateHow, CreateSessionArgs, Delegation,
    ExchangeIdArgs, Fattr, GetattrArgs, HandleArgs, LockArgs, LockRes, LockType, Locker, NameArgs, Nfsstat4,
    Nfstime4, ObjectAttributes, OffloadInfo, Op, OpResult, OpenArgs, OpenClaim, OpenHow, OpenToLockOwner,
    ReaddirArgs, ReclaimCompleteArgs, SequenceArgs, StableHow4, StateOwner, StateProtectArgs, Stateid,
    TestStateidArgs, WriteArgs, attr, create_session, open_result, seq_status, share,
};
use forebay_wire::rpc::{MessageKind, ReplyHeader, ReplyStatus, message_kind};
use forebay_wire::xdr::{Decode, Encode, Reader};
use forebay_wire::{Array, Opaque};

use crate::harness::*;
use crate::nfs4::{COMPOUND, compound_of};

const PROGRAM: u32 = 0x4000_0001;

/// A call-back that has arrived.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Seen {
    Recall(Stateid),
    Getattr,
    NotifyLock(Vec<u8>),
    /// The file, the copy, and its outcome.
    Offload(Vec<u8>, Stateid, OffloadInfo),
}

/// A client with a back channel, which answers call-backs while it waits for a reply.
pub(crate) struct Backed {
    pub(crate) connection: Client,
    minor: u32,
    pub(crate) id: u64,
    session: [u8; 16],
    pub(crate) sequence: u32,
    pub(crate) seen: Vec<Seen>,
    /// The file of the last recall or notification.
    pub(crate) file: Vec<u8>,
    /// The change attribute and the size that it states of its file; `None` for an error.
    states: Option<(u64, u64)>,
    /// The requests to which the last call-back refers: slot and number.
    pub(crate) referring: Vec<(u32, u32)>,
    /// The status flags of the last SEQUENCE.
    pub(crate) flags: u32,
}

fn results(bytes: &[u8]) -> (Nfsstat4, Vec<OpResult<'_>>) {
    let reply = CompoundRes::<OpResult<'_>>::decode(&mut Reader::new(bytes)).unwrap();
    (reply.status, reply.results.map(Result::unwrap).collect())
}

impl Backed {
    fn connect(server: &Server, name: &[u8]) -> Self {
        Self::connect_as(server, name, 1, 1)
    }

    /// Makes a session of a minor version, with a back channel. A client that has restarted has another `verifier`.
    pub(crate) fn connect_as(server: &Server, name: &[u8], minor: u32, verifier: u8) -> Self {
        let connection = server.connect();
        let mut client = Backed {
            connection,
            minor,
            id: 0,
            session: [0; 16],
            sequence: 0,
            seen: Vec::new(),
            file: Vec::new(),
            states: None,
            referring: Vec::new(),
            flags: 0,
        };
        let owner = ClientOwner { verifier: [verifier; 8], id: Opaque(name) };
        let state_protect = StateProtectArgs::None;
        let args = ExchangeIdArgs { client_owner: owner, flags: 0, state_protect, impl_id: None };
        let bytes = client.call(&[Op::ExchangeId(args)]);
        let sequence = match results(&bytes).1[..] {
            [OpResult::ExchangeId(Ok(made))] => {
                client.id = made.clientid;
                made.sequence
            }
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
            clientid: client.id,
            sequence,
            flags: create_session::CONN_BACK_CHAN,
            fore_channel: channel,
            back_channel: channel,
            cb_program: PROGRAM,
            sec_parms: Array::EMPTY,
        };
        let bytes = client.call(&[Op::CreateSession(args)]);
        match results(&bytes).1[..] {
            [OpResult::CreateSession(Ok(made))] => {
                assert_eq!(made.flags, create_session::CONN_BACK_CHAN);
                client.session = made.sessionid;
            }
            ref other => panic!("CREATE_SESSION: {other:?}"),
        };
        client.run(&[Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })], |status, _| {
            // A client that connects again has said it before.
            assert!(matches!(status, Nfsstat4::Ok | Nfsstat4::CompleteAlready), "{status:?}");
        });
        client
    }

    /// Sends a COMPOUND, and returns its reply. Answers call-backs meanwhile.
    fn call(&mut self, operations: &[Op<'_>]) -> Vec<u8> {
        let record = self.connection.call_bytes(COMPOUND, &compound_of(self.minor, operations));
        self.connection.send(&record);
        loop {
            let record = self.connection.receive().expect("the server closed the connection");
            if message_kind(&record).unwrap().1 == MessageKind::Call {
                self.answer(&record);
                continue;
            }
            let mut reader = Reader::new(&record);
            let header = ReplyHeader::decode(&mut reader).unwrap();
            assert_eq!((header.xid, header.status), (self.connection.xid, ReplyStatus::Success));
            return reader.rest().to_vec();
        }
    }

    /// Waits for a call-back, and answers it.
    pub(crate) fn wait(&mut self) -> Seen {
        if self.seen.is_empty() {
            let record = self.connection.receive().expect("the server closed the connection");
            self.answer(&record);
        }
        self.seen.remove(0)
    }

    /// Answers a call-back.
    fn answer(&mut self, record: &[u8]) {
        let (xid, sequence, seen, file) = decode_callback(record, self.minor);
        self.file = file;
        assert_eq!(sequence.sessionid, self.session);
        assert!(sequence.referring.iter().all(|list| list.sessionid == self.session));
        let calls = sequence.referring.iter().flat_map(|list| list.calls.iter().collect::<Vec<_>>());
        self.referring = calls.map(|call| (call.slot, call.sequence)).collect();
        self.seen.push(seen);
        let reply = reply_to(xid, &sequence, &self.seen[self.seen.len() - 1], self.states);
        self.connection.send(&reply);
    }

    /// Sends operations in the session; the results do not include that of SEQUENCE.
    pub(crate) fn run<T>(
        &mut self,
        operations: &[Op<'_>],
        see: impl FnOnce(Nfsstat4, &[OpResult<'_>]) -> T,
    ) -> T {
        self.sequence += 1;
        let sequence = SequenceArgs {
            sessionid: self.session,
            sequence: self.sequence,
            slot: 0,
            highest_slot: 0,
            cache_this: true,
        };
        let all: Vec<_> = std::iter::once(Op::Sequence(sequence)).chain(operations.iter().copied()).collect();
        let bytes = self.call(&all);
        let (status, results) = results(&bytes);
        let Some(OpResult::Sequence(Ok(sequence))) = results.first() else { panic!("{results:?}") };
        self.flags = sequence.status_flags;
        see(status, &results[1..])
    }

    pub(crate) fn status(&mut self, operations: &[Op<'_>]) -> Nfsstat4 {
        self.run(operations, |status, _| status)
    }

    /// Opens or makes a file in the root. Returns its open, its handle and its delegation.
    fn open(&mut self, access: u32, how: OpenHow<'_>) -> Result<Opened, Nfsstat4> {
        let open = OpenArgs {
            seqid: 0,
            share_access: access,
            share_deny: 0,
            owner: StateOwner { clientid: self.id, owner: Opaque(b"owner") },
            how,
            claim: OpenClaim::Null(b"file"),
        };
        self.run(&[Op::Putrootfh(()), Op::Open(open), Op::Getfh(())], |status, results| match *results {
            [_, OpResult::Open(Ok(open)), OpResult::Getfh(Ok(handle))] => {
                assert_ne!(open.rflags & open_result::MAY_NOTIFY_LOCK, 0);
                let delegation = match open.delegation {
                    Delegation::Read(read) => Some((read.stateid, false)),
                    Delegation::Write(write) => Some((write.stateid, true)),
                    _ => None,
                };
                Ok(Opened { stateid: open.stateid, handle: handle.object.0.to_vec(), delegation })
            }
            _ => Err(status),
        })
    }

    fn lock(&mut self, file: &Opened, kind: LockType) -> Nfsstat4 {
        let owner = StateOwner { clientid: self.id, owner: Opaque(b"locker") };
        let open_stateid = file.stateid;
        let new = OpenToLockOwner { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner: owner };
        let locker = Locker::New(new);
        let lock = Op::Lock(LockArgs { locktype: kind, reclaim: false, offset: 0, length: 10, locker });
        self.run(&[putfh(&file.handle), lock], |_, results| match results[1] {
            OpResult::Lock(LockRes::Ok(_)) => Nfsstat4::Ok,
            _ => Nfsstat4::Denied,
        })
    }

    /// Returns the status of a state.
    fn test(&mut self, stateid: Stateid) -> Nfsstat4 {
        let mut buffer = Vec::new();
        let stateids = Array::encoded(&mut buffer, &[stateid]).unwrap();
        self.run(&[Op::TestStateid(TestStateidArgs { stateids })], |_, results| match results[0] {
            OpResult::TestStateid(Ok(tested)) => tested.codes.iter().next().unwrap(),
            ref other => panic!("TEST_STATEID: {other:?}"),
        })
    }

    fn give_back(&mut self, file: &[u8], stateid: Stateid) -> Nfsstat4 {
        self.status(&[putfh(file), Op::Delegreturn(nfs4::StateidArgs { stateid })])
    }
}

#[derive(Debug, PartialEq)]
struct Opened {
    stateid: Stateid,
    handle: Vec<u8>,
    delegation: Option<(Stateid, bool)>,
}

/// Returns the transaction number, CB_SEQUENCE and the operation of a call-back.
/// Returns the number of a call-back, its sequence, itself, and its file.
fn decode_callback(record: &[u8], minor: u32) -> (u32, CbSequenceArgs<'_>, Seen, Vec<u8>) {
    let mut reader = Reader::new(record);
    let call = forebay_wire::rpc::CallHeader::decode(&mut reader).unwrap();
    assert_eq!((call.prog, call.vers, call.proc), (PROGRAM, 1, 1));
    assert_eq!(reader.opaque_var(100).unwrap(), b"", "the tag");
    let words = [(); 3].map(|()| reader.u32().unwrap());
    assert_eq!(words, [minor, 0, 2], "minor version, identifier, operations");
    let CbOp::Sequence(sequence) = CbOp::decode(&mut reader).unwrap() else { panic!("no CB_SEQUENCE") };
    let mut file = Vec::new();
    let seen = match CbOp::decode(&mut reader).unwrap() {
        CbOp::Recall(recall) => {
            file = recall.fh.0.to_vec();
            Seen::Recall(recall.stateid)
        }
        CbOp::Getattr(asked) => {
            assert_eq!(asked.request, Bitmap::of(&[attr::CHANGE, attr::SIZE]));
            Seen::Getattr
        }
        CbOp::NotifyLock(CbNotifyLockArgs { lock_owner, fh }) => {
            file = fh.0.to_vec();
            Seen::NotifyLock(lock_owner.owner.0.to_vec())
        }
        CbOp::Offload(done) => Seen::Offload(done.fh.0.to_vec(), done.stateid, done.info),
        other => panic!("{other:?}"),
    };
    (call.xid, sequence, seen, file)
}

fn reply_to(xid: u32, sequence: &CbSequenceArgs<'_>, seen: &Seen, states: Option<(u64, u64)>) -> Vec<u8> {
    const BADHANDLE: u32 = 10001;
    let mut out = Vec::new();
    ReplyHeader { xid, status: ReplyStatus::Success }.encode(&mut out);
    let status = if *seen == Seen::Getattr && states.is_none() { BADHANDLE } else { 0 };
    for word in [status, 0, 2u32] {
        word.encode(&mut out);
    }
    let ok = CbSequenceOk {
        sessionid: sequence.sessionid,
        sequence: sequence.sequence,
        slot: sequence.slot,
        highest_slot: sequence.highest_slot,
        target_highest_slot: sequence.highest_slot,
    };
    CbResult::Sequence(Ok(ok)).encode(&mut out);
    let number = match seen {
        Seen::Getattr => 3u32,
        Seen::Recall(_) => 4,
        Seen::NotifyLock(_) => 13,
        Seen::Offload(..) => 15,
    };
    number.encode(&mut out);
    status.encode(&mut out);
    if let (Seen::Getattr, Some((change, size))) = (seen, states) {
        let values = Attributes { change: Some(change), size: Some(size), ..Attributes::default() };
        Fattr::encoded(&mut Vec::new(), &values).encode(&mut out);
    }
    out
}

fn putfh(handle: &[u8]) -> Op<'_> {
    Op::Putfh(HandleArgs { object: Opaque(handle) })
}

fn served(lease: &str) -> Server {
    Serve::unsquashed().flags(&["--lease", lease]).start()
}

fn make() -> OpenHow<'static> {
    OpenHow::Create(CreateHow::Unchecked(Fattr::default()))
}

/// Makes the file, and opens it for reading with a delegation.
fn with_delegation(client: &mut Backed, access: u32) -> (Vec<u8>, Stateid) {
    let made = client.open(access | share::WANT_NO_DELEG, make()).unwrap();
    assert_eq!(made.delegation, None);
    let again = client.open(access, OpenHow::NoCreate).unwrap();
    let (stateid, write) = again.delegation.expect("a delegation on the second open");
    assert_eq!(write, access & share::WRITE != 0);
    (made.handle, stateid)
}

#[test]
fn another_client_recalls_a_delegation() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let (file, stateid) = with_delegation(&mut one, share::READ);
    assert_eq!(two.open(share::WRITE, OpenHow::NoCreate), Err(Nfsstat4::Delay));
    assert_eq!(one.wait(), Seen::Recall(stateid));
    let remove = Op::Remove(NameArgs { name: b"file" });
    assert_eq!(two.status(&[Op::Putrootfh(()), remove]), Nfsstat4::Delay);
    assert_eq!(one.status(&[Op::Putrootfh(())]), Nfsstat4::Ok);
    assert_eq!(one.seen, [], "one recall");
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    two.open(share::WRITE | share::WANT_NO_DELEG, OpenHow::NoCreate).unwrap();
    assert_eq!(two.status(&[Op::Putrootfh(()), remove]), Nfsstat4::Ok);
}

#[test]
fn a_client_of_version_3_recalls_a_delegation() {
    let server = served("90s");
    let mut one = Backed::connect(&server, b"one");
    let (file, stateid) = with_delegation(&mut one, share::BOTH);
    let mut two = server.connect();
    let args = nfs3::ReadArgs { file: nfs3::FileHandle::new(&file).unwrap(), offset: 0, count: 10 };
    let read = |two: &mut Client| {
        let bytes = two.result_bytes((nfs3::PROGRAM, nfs3::VERSION, Procedure::Read as u32), &args);
        u32::from_be_bytes(bytes[..4].try_into().unwrap())
    };
    assert_eq!(read(&mut two), nfs3::Nfsstat3::Jukebox as u32);
    assert_eq!(one.wait(), Seen::Recall(stateid));
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    assert_eq!(read(&mut two), 0);
}

fn getattr(two: &mut Client, file: &[u8]) -> Result<u64, nfs3::Nfsstat3> {
    two.getattr(&nfs3::FileHandle::new(file).unwrap()).map(|attr| attr.size).map_err(|failed| failed.status)
}

/// Only the holder knows the size and the times of a file with a write delegation.
#[test]
fn attributes_that_a_holder_may_have_changed_are_not_shown() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let mut three = server.connect();
    let (file, stateid) = with_delegation(&mut one, share::BOTH);
    let (root, handle) = (three.root(), nfs3::FileHandle::new(&file).unwrap());
    assert_eq!(three.lookup(&root, b"file").unwrap().obj_attributes, None);
    assert_eq!(three.access(&handle, 1).unwrap().obj_attributes, None);
    assert_eq!(three.pathconf(&handle).unwrap().obj_attributes, None);
    assert_eq!(three.commit(&handle, 0, 0).unwrap().file_wcc, WccData::default());
    let listed = |three: &mut Client| {
        let page = three.readdirplus(&root, START, 4096, 4096).unwrap();
        page.entries.into_iter().find(|entry| entry.name == b"file").unwrap().attributes.is_some()
    };
    assert!(!listed(&mut three));
    let list = |two: &mut Backed, attribute| {
        let request = Bitmap::of(&[attribute]);
        let args = ReaddirArgs { cookie: 0, cookieverf: [0; 8], dircount: 4096, maxcount: 4096, request };
        two.status(&[Op::Putrootfh(()), Op::Readdir(args)])
    };
    assert_eq!(list(&mut two, attr::FILEID), Nfsstat4::Ok);
    one.status(&[Op::Putrootfh(())]);
    assert_eq!(one.seen, [], "nothing of this needs the delegation back");
    assert_eq!(list(&mut one, attr::SIZE), Nfsstat4::Ok, "the holder itself");
    assert_eq!(list(&mut two, attr::SIZE), Nfsstat4::Delay);
    assert_eq!(one.wait(), Seen::Recall(stateid));
    assert_eq!(getattr(&mut three, &file), Err(nfs3::Nfsstat3::Jukebox));
    let verify = |values: &Attributes<'_>, two: &mut Backed| {
        let mut buffer = Vec::new();
        let attributes = Fattr::encoded(&mut buffer, values);
        two.status(&[putfh(&file), Op::Verify(ObjectAttributes { attributes })])
    };
    let size = Attributes { size: Some(0), ..Attributes::default() };
    assert_eq!(verify(&size, &mut two), Nfsstat4::Delay);
    assert_eq!(verify(&Attributes::default(), &mut two), Nfsstat4::Ok, "asks for no attribute");
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    assert_eq!(list(&mut two, attr::SIZE), Nfsstat4::Ok);
    assert_eq!(getattr(&mut three, &file), Ok(0));
    assert!(listed(&mut three) && three.lookup(&root, b"file").unwrap().obj_attributes.is_some());
}

/// Returns the change attribute, the size and the modification time of a file.
fn look(client: &mut Backed, file: &[u8]) -> Result<(u64, u64, Nfstime4), Nfsstat4> {
    let request = Bitmap::of(&[attr::CHANGE, attr::SIZE, attr::TIME_MODIFY]);
    client.run(&[putfh(file), Op::Getattr(GetattrArgs { request })], |status, results| match results[1] {
        OpResult::Getattr(Ok(got)) => {
            let got = got.attributes.attributes().unwrap();
            Ok((got.change.unwrap(), got.size.unwrap(), got.time_modify.unwrap()))
        }
        _ => Err(status),
    })
}

/// Looks at a file as one client while the other one answers a call-back.
fn look_and_answer(
    two: &mut Backed,
    file: &[u8],
    one: &mut Backed,
) -> Result<(u64, u64, Nfstime4), Nfsstat4> {
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| look(two, file));
        assert_eq!(one.wait(), Seen::Getattr);
        looking.join().unwrap()
    })
}

#[test]
fn the_holder_of_a_write_delegation_is_asked_for_the_size_and_keeps_it() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let (file, stateid) = with_delegation(&mut one, share::BOTH);
    let granted = look(&mut one, &file).unwrap();
    one.states = Some((granted.0, 0));
    assert_eq!(look_and_answer(&mut two, &file, &mut one), Ok(granted), "the holder has changed nothing");
    one.states = Some((granted.0 + 1, 5));
    let mut last = granted;
    for _ in 0..3 {
        let next = look_and_answer(&mut two, &file, &mut one).unwrap();
        assert!(next.0 > last.0 && next.1 == 5 && next.2 > last.2, "{next:?} after {last:?}");
        last = next;
    }
    let stable = StableHow4::FileSync;
    let write = Op::Write(WriteArgs { stateid, offset: 0, stable, data: b"12345678" });
    assert_eq!(one.status(&[putfh(&file), write]), Nfsstat4::Ok);
    one.states = Some((granted.0, 8));
    let written = look_and_answer(&mut two, &file, &mut one).unwrap();
    assert!(written.0 > last.0 && written.1 == 8, "{written:?} after {last:?}");
    assert_eq!(look(&mut one, &file), Ok(written));
    one.status(&[Op::Putrootfh(())]);
    assert_eq!(one.seen, [], "the delegation was not recalled");
    let verify = {
        let mut buffer = Vec::new();
        let values = Attributes { size: Some(8), ..Attributes::default() };
        let verify = Op::Verify(ObjectAttributes { attributes: Fattr::encoded(&mut buffer, &values) });
        std::thread::scope(|scope| {
            let verifying = scope.spawn(|| two.status(&[putfh(&file), verify]));
            assert_eq!(one.wait(), Seen::Getattr);
            verifying.join().unwrap()
        })
    };
    assert_eq!(verify, Nfsstat4::Ok);
}

#[test]
fn a_holder_that_gives_no_size_gets_a_recall() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let (file, stateid) = with_delegation(&mut one, share::BOTH);
    assert_eq!(
        look_and_answer(&mut two, &file, &mut one),
        Err(Nfsstat4::Delay),
        "the holder answers with an error"
    );
    assert_eq!(one.wait(), Seen::Recall(stateid));
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    assert!(look(&mut two, &file).is_ok());

    // Opens by the name `file` in the other client's way.
    let (file, stateid) = with_delegation(&mut one, share::BOTH);
    assert_eq!(look(&mut two, &file), Err(Nfsstat4::Delay), "the holder is silent");
    assert_eq!(one.wait(), Seen::Getattr);
    assert_eq!(one.wait(), Seen::Recall(stateid));
    assert_eq!(look(&mut two, &file), Err(Nfsstat4::Delay), "nobody asks again");
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    assert!(look(&mut two, &file).is_ok());
}

#[test]
fn getattr_of_version_3_recalls_a_write_delegation() {
    let server = served("90s");
    let mut one = Backed::connect(&server, b"one");
    let (file, stateid) = with_delegation(&mut one, share::BOTH);
    let mut two = server.connect();
    assert_eq!(getattr(&mut two, &file), Err(nfs3::Nfsstat3::Jukebox));
    assert_eq!(one.wait(), Seen::Recall(stateid));
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    assert_eq!(getattr(&mut two, &file), Ok(0));
}

/// A change of a file. Returns true if it has to wait.
type Change<'a> = &'a mut dyn FnMut(&[u8]) -> bool;

/// Each of these changes a file with a read delegation.
#[test]
fn every_kind_of_change_recalls_a_read_delegation() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let mut three = server.connect();
    let root = three.root();
    let changes: &mut [(&str, Change<'_>)] = &mut [
        ("OPEN for reading that truncates", &mut |_| {
            let values = Attributes { size: Some(0), ..Attributes::default() };
            let mut buffer = Vec::new();
            let attributes = Fattr::encoded(&mut buffer, &values);
            let how = OpenHow::Create(CreateHow::Unchecked(attributes));
            two.open(share::READ | share::WANT_NO_DELEG, how).err() == Some(Nfsstat4::Delay)
        }),
        ("CREATE of version 3 that truncates", &mut |_| {
            let how = nfs3::CreateHow::Unchecked(nfs3::Sattr3 { size: Some(0), ..Default::default() });
            three.create(&root, b"file", how).status() == nfs3::Nfsstat3::Jukebox
        }),
    ];
    for (what, change) in changes.iter_mut() {
        let (file, stateid) = with_delegation(&mut one, share::READ);
        assert!(change(&file), "{what} has to wait");
        assert_eq!(one.wait(), Seen::Recall(stateid), "{what}");
        assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
        assert!(!change(&file), "{what} goes on");
    }
}

#[test]
fn create_of_version_3_that_changes_no_file_recalls_nothing() {
    let server = served("90s");
    let mut one = Backed::connect(&server, b"one");
    with_delegation(&mut one, share::READ);
    let mut two = server.connect();
    let root = two.root();
    two.create(&root, b"file", nfs3::CreateHow::Unchecked(nfs3::Sattr3::default())).unwrap();
    let guarded = two.create(&root, b"file", nfs3::CreateHow::Guarded(nfs3::Sattr3::default()));
    assert_eq!(guarded.status(), nfs3::Nfsstat3::Exist);
    one.status(&[Op::Putrootfh(())]);
    assert_eq!(one.seen, []);
}

#[test]
fn a_change_by_the_host_recalls_a_delegation() {
    needs_root!();
    let server = served("90s");
    let mut one = Backed::connect(&server, b"one");
    let (file, stateid) = with_delegation(&mut one, share::READ);
    // The holder's own changes, which the kernel reports as well, recall nothing.
    let (mut buffer, mode) = (Vec::new(), Attributes { mode: Some(0o600), ..Attributes::default() });
    let attributes = Fattr::encoded(&mut buffer, &mode);
    let set = nfs4::SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
    assert_eq!(one.status(&[putfh(&file), Op::Setattr(set)]), Nfsstat4::Ok);
    std::fs::write(server.data.join("other"), "not delegated").unwrap();
    assert_eq!(one.status(&[Op::Putrootfh(())]), Nfsstat4::Ok);
    assert_eq!(one.seen, []);
    std::fs::write(server.data.join("file"), "by the host").unwrap();
    assert_eq!(one.wait(), Seen::Recall(stateid));
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
}

#[test]
fn a_delegation_that_is_not_returned_is_revoked() {
    let server = served("10s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let (_, stateid) = with_delegation(&mut one, share::READ);
    let access = share::WRITE | share::WANT_NO_DELEG;
    // The holder renews its lease all the time, but keeps the delegation.
    while let Err(status) = two.open(access, OpenHow::NoCreate) {
        assert_eq!(status, Nfsstat4::Delay);
        assert_eq!(one.status(&[Op::Putrootfh(())]), Nfsstat4::Ok);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(one.test(stateid), Nfsstat4::DelegRevoked);
    assert_ne!(one.flags & seq_status::RECALLABLE_STATE_REVOKED, 0);
    let free = Op::FreeStateid(nfs4::StateidArgs { stateid });
    assert_eq!(one.status(&[free]), Nfsstat4::Ok);
    one.status(&[]);
    assert_eq!(one.flags & seq_status::RECALLABLE_STATE_REVOKED, 0);
}

/// The holder would otherwise have its delegation back after a crash, and would not see the write.
#[test]
fn a_revocation_is_in_the_log_before_a_write_that_relies_on_it_is_answered() {
    let mut server = Serve::unsquashed().flags(&["--lease", "10s"]).cached().start();
    let mut one = Backed::connect(&server, b"one");
    let (file, stateid) = with_delegation(&mut one, share::BOTH);
    let file = nfs3::FileHandle::new(&file).unwrap();
    let mut two = server.connect();
    while let Err(failed) = two.write(&file, 0, b"newer", StableHow::FileSync) {
        assert_eq!(failed.status, nfs3::Nfsstat3::Jukebox);
        assert_eq!(one.status(&[Op::Putrootfh(())]), Nfsstat4::Ok);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    server.kill();
    server.start();
    one.connection = server.connect();
    assert_eq!(one.test(stateid), Nfsstat4::BadStateid);
}

#[test]
fn a_client_that_waits_for_a_lock_is_told() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let access = share::BOTH | share::WANT_NO_DELEG;
    let (first, second) = (one.open(access, make()).unwrap(), two.open(access, make()).unwrap());
    assert_eq!(one.lock(&first, LockType::Write), Nfsstat4::Ok);
    assert_eq!(two.lock(&second, LockType::WriteWait), Nfsstat4::Denied);
    let close = Op::Close(nfs4::CloseArgs { seqid: 0, open_stateid: first.stateid });
    assert_eq!(one.status(&[putfh(&first.handle), close]), Nfsstat4::Ok);
    assert_eq!(two.wait(), Seen::NotifyLock(b"locker".to_vec()));
    assert_eq!(two.lock(&second, LockType::WriteWait), Nfsstat4::Ok);
}

/// The recall may overtake the reply to the OPEN on another connection.
#[test]
fn a_recall_refers_to_the_open_until_the_client_uses_its_slot_again() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    for is_used_again in [false, true] {
        let (file, stateid) = with_delegation(&mut one, share::READ);
        let opened_in = (0, one.sequence);
        if is_used_again {
            assert_eq!(one.status(&[Op::Putrootfh(())]), Nfsstat4::Ok);
        }
        assert_eq!(two.open(share::WRITE, OpenHow::NoCreate), Err(Nfsstat4::Delay));
        assert_eq!(one.wait(), Seen::Recall(stateid));
        assert_eq!(one.referring, if is_used_again { vec![] } else { vec![opened_in] });
        assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    }
}

#[test]
fn a_lost_connection_is_shown_and_its_call_back_is_sent_again() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let (file, stateid) = with_delegation(&mut one, share::READ);
    assert_eq!(two.open(share::WRITE, OpenHow::NoCreate), Err(Nfsstat4::Delay));
    // The call-back arrives, and its connection ends without a reply.
    let first = one.connection.receive().unwrap();
    let (_, sequence, ..) = decode_callback(&first, 1);
    let number = (sequence.slot, sequence.sequence);
    one.connection = server.connect();
    while one.flags & seq_status::CB_PATH_DOWN == 0 {
        one.status(&[]);
    }
    let bind =
        BindConnArgs { sessionid: one.session, direction: ChannelDirFromClient::BackOrBoth, rdma: false };
    one.call(&[Op::BindConnToSession(bind)]);
    if one.seen.is_empty() {
        let again = one.connection.receive().unwrap();
        let (_, sequence, ..) = decode_callback(&again, 1);
        assert_eq!((sequence.slot, sequence.sequence), number, "the call-back keeps its number");
        one.answer(&again);
    }
    assert_eq!(one.seen, [Seen::Recall(stateid)]);
    one.status(&[]);
    assert_eq!(one.flags & seq_status::CB_PATH_DOWN, 0);
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
}

#[test]
fn forged_replies_harm_only_their_connection() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let (file, stateid) = with_delegation(&mut one, share::READ);
    let mut forged = Vec::new();
    ReplyHeader { xid: 1, status: ReplyStatus::Success }.encode(&mut forged);
    // A connection that never had a call-back is closed.
    let mut stranger = server.connect();
    stranger.send(&forged);
    assert_eq!(stranger.receive(), None);
    assert_eq!(two.open(share::WRITE, OpenHow::NoCreate), Err(Nfsstat4::Delay));
    assert_eq!(one.wait(), Seen::Recall(stateid));
    // Replies to no call-back are dropped.
    for xid in 100..110u32 {
        forged[..4].copy_from_slice(&xid.to_be_bytes());
        one.connection.send(&forged);
    }
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    two.open(share::WRITE, OpenHow::NoCreate).unwrap();
}

#[test]
fn the_status_counts_operations_state_and_call_backs() {
    let server = served("90s");
    let (mut one, mut two) = (Backed::connect(&server, b"one"), Backed::connect(&server, b"two"));
    let (file, stateid) = with_delegation(&mut one, share::READ);
    assert_eq!(two.open(share::WRITE, OpenHow::NoCreate), Err(Nfsstat4::Delay));
    assert_eq!(one.wait(), Seen::Recall(stateid));
    let status = server.status();
    let calls = |status: &serde_json::Value, name: &str| {
        let procedures = status["procedures"].as_array().unwrap();
        let found = procedures.iter().find(|one| one["name"] == name);
        found.map(|one| (one["count"].as_u64().unwrap(), one["errors"].as_u64().unwrap()))
    };
    assert_eq!(calls(&status, "NFS4.OPEN"), Some((3, 1)));
    assert_eq!(calls(&status, "NFS4.RECLAIM_COMPLETE"), Some((2, 0)));
    assert_eq!(calls(&status, "NFS4.DELEGRETURN"), None);
    let state = &status["client_state"];
    let number = |name: &str| state[name].as_u64().unwrap();
    assert_eq!(["clients", "sessions", "delegations", "recalls", "revoked"].map(number), [2, 2, 1, 1, 0]);
    // Two opens of one owner are one.
    assert_eq!(number("opens"), 1);
    wait_for(|| server.status()["client_state"]["callbacks"] == 1);
    assert_eq!(one.give_back(&file, stateid), Nfsstat4::Ok);
    let status = server.status();
    assert_eq!(calls(&status, "NFS4.DELEGRETURN"), Some((1, 0)));
    assert_eq!(status["client_state"]["delegations"], 0);
    let text = server.ask(&["status", "--prometheus"]);
    for line in [
        "forebay_procedure_errors_total{procedure=\"NFS4.OPEN\"} 1",
        "forebay_client_state{kind=\"sessions\"} 2",
        "forebay_delegations_total{what=\"recalled\"} 1",
        "forebay_callbacks_total{end=\"answered\"} 1",
        // Three OPENs and a DELEGRETURN.
        "forebay_operations_total{kind=\"change\"} 4",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}
