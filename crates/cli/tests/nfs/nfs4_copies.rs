//! Copies of NFSv4.2 that go on after the reply to their COPY, with a client that answers CB_OFFLOAD.

use std::path::Path;

use forebay_wire::Array as List;
use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    CloseArgs, CopyArgs, CopyRes, CreateHow, Fattr, NameArgs, Nfsstat4, OffloadInfo, OffloadStatusOk, Op,
    OpResult, OpenArgs, OpenClaim, OpenHow, StableHow4, StateOwner, Stateid, StateidArgs, WriteArgs,
    WriteResponse, seq_status, share,
};

use crate::harness::*;
use crate::nfs4::putfh;
use crate::nfs4_callbacks::{Backed, Seen};
use crate::nfs42::{File, connect, pattern};

const MIB: u64 = 1 << 20;
/// The length of a source of which no copy ends during a test. It is sparse.
const ENDLESS: u64 = 1 << 40;

/// A client with two open files.
struct Copying {
    client: Backed,
    from: File,
    to: File,
}

/// The answer to a COPY: bytes, durability, copy.
type Answer = (u64, StableHow4, Option<Stateid>);

impl Copying {
    fn begin(server: &Server, name: &[u8]) -> Self {
        let mut client = Backed::connect_as(server, name, 2, 1);
        let (from, to) = (open(&mut client, b"from"), open(&mut client, b"to"));
        Copying { client, from, to }
    }

    fn args(&self, offset: u64, count: u64) -> CopyArgs<'static> {
        CopyArgs {
            src_stateid: self.from.open,
            dst_stateid: self.to.open,
            src_offset: offset,
            dst_offset: offset,
            count,
            consecutive: false,
            synchronous: false,
            source_server: List::EMPTY,
        }
    }

    fn copy(&mut self, args: CopyArgs<'_>) -> Result<Answer, Nfsstat4> {
        let (from, to) = (self.from.handle.clone(), self.to.handle.clone());
        let all = [putfh(&from), Op::Savefh(()), putfh(&to), Op::Copy(args)];
        self.client.run(&all, |status, results| match results.get(3) {
            Some(OpResult::Copy(CopyRes::Ok(done))) => {
                let WriteResponse { callback_id, count, committed, .. } = done.response;
                assert_eq!(done.requirements.synchronous, callback_id.is_none());
                Ok((count, committed, callback_id))
            }
            _ => Err(status),
        })
    }

    /// Begins a copy that does not end.
    fn copy_endlessly(&mut self) -> Stateid {
        match self.copy(self.args(0, 0)) {
            Ok((0, StableHow4::Unstable, Some(copy))) => copy,
            other => panic!("COPY: {other:?}"),
        }
    }

    fn ask(&mut self, copy: Stateid) -> Result<(u64, Option<Nfsstat4>), Nfsstat4> {
        let to = self.to.handle.clone();
        let ask = Op::OffloadStatus(StateidArgs { stateid: copy });
        self.client.run(&[putfh(&to), ask], |status, results| match results.get(1) {
            Some(OpResult::OffloadStatus(Ok(OffloadStatusOk { count, complete }))) => Ok((*count, *complete)),
            _ => Err(status),
        })
    }

    /// Waits until some bytes are copied.
    fn wait_for_bytes(&mut self, copy: Stateid) {
        loop {
            match self.ask(copy) {
                Ok((0, None)) => std::thread::sleep(std::time::Duration::from_millis(5)),
                Ok((_, None)) => return,
                other => panic!("OFFLOAD_STATUS: {other:?}"),
            }
        }
    }

    fn cancel(&mut self, copy: Stateid) -> Nfsstat4 {
        let to = self.to.handle.clone();
        self.client.status(&[putfh(&to), Op::OffloadCancel(StateidArgs { stateid: copy })])
    }

    /// Waits for CB_OFFLOAD of a copy.
    fn told(&mut self, copy: Stateid) -> OffloadInfo {
        match self.client.wait() {
            Seen::Offload(file, stateid, info) => {
                assert_eq!((&file, stateid), (&self.to.handle, copy));
                info
            }
            other => panic!("{other:?}"),
        }
    }

    /// Lets the server send what it has to send.
    fn is_told_nothing(&mut self) {
        (0..3).for_each(|_| assert_eq!(self.client.status(&[Op::Putrootfh(())]), Nfsstat4::Ok));
        assert_eq!(self.client.seen, []);
    }
}

/// Opens or makes a file in the root.
fn open(client: &mut Backed, name: &[u8]) -> File {
    let open = OpenArgs {
        seqid: 0,
        share_access: share::BOTH | share::WANT_NO_DELEG,
        share_deny: 0,
        owner: StateOwner { clientid: client.id, owner: Opaque(b"owner") },
        how: OpenHow::Create(CreateHow::Unchecked(Fattr::default())),
        claim: OpenClaim::Null(name),
    };
    let all = [Op::Putrootfh(()), Op::Open(open), Op::Getfh(())];
    client.run(&all, |status, results| match *results {
        [_, OpResult::Open(Ok(open)), OpResult::Getfh(Ok(handle))] => {
            File { open: open.stateid, handle: handle.object.0.to_vec() }
        }
        _ => panic!("OPEN: {status:?}"),
    })
}

fn sparse(path: &Path, len: u64) {
    std::fs::File::create(path).unwrap().set_len(len).unwrap();
}

/// Starts a server with a source of which no copy ends.
fn endless(serve: Serve) -> Server {
    serve.start_on(|data| sparse(&data.join("from"), ENDLESS))
}

fn size(server: &Server) -> u64 {
    std::fs::metadata(server.data.join("to")).unwrap().len()
}

/// The source is in the directory, and in part only in the cache.
#[test]
fn a_long_copy_goes_on_after_the_reply_and_its_client_is_told() {
    for serve in [Serve::unsquashed().cached(), Serve::unsquashed().plain()] {
        let mut contents = pattern(5, 66 << 20);
        let server = serve.start_on(|data| std::fs::write(data.join("from"), &contents).unwrap());
        let mut one = Copying::begin(&server, b"one");
        let mut writer = connect(&server, b"writer");
        let source = crate::nfs42::open(&mut writer, b"from");
        for at in [100, (30 << 20) + 7, (66 << 20) - 50_000] {
            let newer = pattern(9, 50_000);
            source.write(&mut writer, at as u64, &newer);
            contents[at..at + newer.len()].copy_from_slice(&newer);
        }
        let is_cached = server.status()["effective_mode"] == "write-back";
        let args = one.args(0, 0);
        let (count, _, copy) = one.copy(args).unwrap();
        let (copy, asked_in) = (copy.expect("the copy goes on"), (0, one.client.sequence));
        assert_eq!(count, 0);
        let OffloadInfo::Done(done) = one.told(copy) else { panic!("the copy failed") };
        assert_eq!((done.count, done.callback_id), (66 * MIB, None));
        assert_eq!(done.committed == StableHow4::FileSync, is_cached);
        assert_eq!(one.client.referring, [asked_in], "CB_OFFLOAD may overtake the reply");
        assert_eq!(one.ask(copy), Err(Nfsstat4::BadStateid), "the client is told");
        assert_eq!(one.cancel(copy), Nfsstat4::BadStateid);
        let target = crate::nfs42::open(&mut writer, b"to");
        assert!(target.read(&mut writer, 0, 67 << 20) == contents);
        server.flush();
        assert!(std::fs::read(server.data.join("to")).unwrap() == contents);
        one.is_told_nothing();
    }
}

#[test]
fn a_copy_is_synchronous_if_the_client_or_its_length_asks_for_that() {
    let server = Serve::unsquashed().start_on(|data| sparse(&data.join("from"), 100 * MIB));
    let mut one = Copying::begin(&server, b"one");
    let here = |answer: Result<Answer, Nfsstat4>| matches!(answer, Ok((1.., _, None)));
    assert!(here(one.copy(CopyArgs { synchronous: true, ..one.args(0, 0) })));
    assert!(here(one.copy(one.args(0, 64 * MIB))), "not long");
    assert!(here(one.copy(CopyArgs { dst_stateid: Stateid::ANONYMOUS, ..one.args(0, 0) })), "no open");
    // Wrong arguments are refused at once.
    assert_eq!(one.copy(one.args(0, 101 * MIB)), Err(Nfsstat4::Inval));
    assert_eq!(one.copy(CopyArgs { dst_offset: u64::MAX - 5, ..one.args(0, 0) }), Err(Nfsstat4::Fbig));
    one.is_told_nothing();
    assert!(matches!(one.copy(one.args(0, 65 * MIB)), Ok((0, StableHow4::Unstable, Some(_)))));
    // Without a back channel CB_OFFLOAD would not arrive.
    let mut silent = connect(&server, b"silent");
    let (from, to) = (crate::nfs42::open(&mut silent, b"from"), crate::nfs42::open(&mut silent, b"to"));
    let args = CopyArgs { src_stateid: from.open, dst_stateid: to.open, ..one.args(0, 0) };
    let all = [putfh(&from.handle), Op::Savefh(()), putfh(&to.handle), Op::Copy(args)];
    silent.run(&all, |status, results| match results.get(3) {
        Some(OpResult::Copy(CopyRes::Ok(done))) => assert_eq!(done.response.callback_id, None),
        _ => panic!("COPY: {status:?}"),
    });
}

#[test]
fn a_cancelled_copy_writes_nothing_after_the_reply() {
    for serve in [Serve::unsquashed().cached(), Serve::unsquashed().plain()] {
        let server = endless(serve);
        let mut one = Copying::begin(&server, b"one");
        let copy = one.copy_endlessly();
        one.wait_for_bytes(copy);
        assert_eq!(server.status()["client_state"]["copies"], 1);
        let (other, mut two) = (File { handle: one.to.handle.clone(), open: copy }, connect(&server, b"two"));
        let ask = Op::OffloadStatus(StateidArgs { stateid: copy });
        assert_eq!(two.status(&[putfh(&other.handle), ask]), Nfsstat4::BadStateid, "of another client");
        let cancel = Op::OffloadCancel(StateidArgs { stateid: copy });
        assert_eq!(two.status(&[putfh(&other.handle), cancel]), Nfsstat4::BadStateid);
        assert!(matches!(one.ask(copy), Ok((1.., None))));
        assert_eq!(one.cancel(copy), Nfsstat4::Ok);
        // The copy is over, so a write by the client stays.
        let to = one.to.handle.clone();
        let data = pattern(3, 4096);
        for n in 0..64 {
            let (stateid, offset) = (one.to.open, n * MIB);
            let write = WriteArgs { stateid, offset, stable: StableHow4::FileSync, data: &data };
            assert_eq!(one.client.status(&[putfh(&to), Op::Write(write)]), Nfsstat4::Ok);
        }
        assert_eq!((one.ask(copy), one.cancel(copy)), (Err(Nfsstat4::BadStateid), Nfsstat4::BadStateid));
        let target = crate::nfs42::open(&mut two, b"to");
        for n in 0..64 {
            assert!(target.read(&mut two, n * MIB, 4096) == data, "MiB {n}");
        }
        assert_eq!(server.status()["client_state"]["copies"], 0);
        one.is_told_nothing();
    }
}

#[test]
fn a_copy_ends_when_its_client_closes_a_file() {
    let server = endless(Serve::unsquashed());
    let mut one = Copying::begin(&server, b"one");
    let copy = one.copy_endlessly();
    one.wait_for_bytes(copy);
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: one.to.open });
    let to = one.to.handle.clone();
    assert_eq!(one.client.status(&[putfh(&to), close]), Nfsstat4::Ok);
    match one.told(copy) {
        OffloadInfo::Failed { status: Nfsstat4::BadStateid, bytes_copied } => assert!(bytes_copied > 0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_into_a_file_whose_name_is_removed_goes_on() {
    let server = endless(Serve::unsquashed());
    let mut one = Copying::begin(&server, b"one");
    let copy = one.copy_endlessly();
    one.wait_for_bytes(copy);
    let remove = [Op::Putrootfh(()), Op::Remove(NameArgs { name: b"to" })];
    assert_eq!(one.client.status(&remove), Nfsstat4::Ok);
    let (before, _) = one.ask(copy).unwrap();
    loop {
        let (now, end) = one.ask(copy).unwrap();
        assert_eq!(end, None);
        if now > before {
            break;
        }
    }
    assert_eq!(one.cancel(copy), Nfsstat4::Ok);
}

#[test]
fn a_copy_that_meets_a_full_file_system_says_so() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 128 * MIB) else { return };
    let server = disk.serve().start_on(|_| sparse(&disk.at.join("from"), GIB));
    let mut one = Copying::begin(&server, b"one");
    let (_, _, copy) = one.copy(one.args(0, 0)).unwrap();
    match one.told(copy.unwrap()) {
        OffloadInfo::Failed { status: Nfsstat4::Nospc, bytes_copied } => {
            assert!((MIB..128 * MIB).contains(&bytes_copied), "{bytes_copied}");
        }
        other => panic!("{other:?}"),
    }
}

const GIB: u64 = 1 << 30;

#[test]
fn copies_are_bounded_for_each_client() {
    let server = endless(Serve::unsquashed());
    let mut one = Copying::begin(&server, b"one");
    let copies: Vec<_> = (0..8).map(|_| one.copy_endlessly()).collect();
    assert!(matches!(one.copy(one.args(0, 0)), Ok((1.., _, None))), "the ninth is short");
    let mut two = Copying::begin(&server, b"two");
    let other = two.copy_endlessly();
    two.wait_for_bytes(other);
    assert_eq!(two.cancel(other), Nfsstat4::Ok);
    for copy in copies {
        assert_eq!(one.cancel(copy), Nfsstat4::Ok);
    }
    let again = one.copy_endlessly();
    assert_eq!(one.cancel(again), Nfsstat4::Ok);
    one.is_told_nothing();
}

#[test]
fn a_copy_ends_with_its_client() {
    let server = endless(Serve::unsquashed());
    let mut one = Copying::begin(&server, b"one");
    let copy = one.copy_endlessly();
    one.wait_for_bytes(copy);
    // It has restarted.
    let mut again = Copying { client: Backed::connect_as(&server, b"one", 2, 2), ..one };
    assert_eq!(server.status()["client_state"]["copies"], 0);
    assert_eq!(again.ask(copy), Err(Nfsstat4::BadStateid));
    // A copy that went on would not leave the size alone for long.
    wait_for(|| {
        let before = size(&server);
        std::thread::sleep(std::time::Duration::from_millis(300));
        size(&server) == before
    });
    again.is_told_nothing();
}

/// The new rules might refuse the client.
#[test]
fn new_rules_end_a_copy_and_its_client_asks_for_the_rest() {
    let rules = |access: &str| {
        let client = format!("[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\naccess='{access}'\n");
        format!("[[export]]\npath='@/data'\nname='/'\n{client}")
    };
    let server = endless(Serve::new().exports(&rules("rw")));
    let mut one = Copying::begin(&server, b"one");
    let copy = one.copy_endlessly();
    one.wait_for_bytes(copy);
    let config = server.home().join("forebay.toml");
    std::fs::write(&config, rules("ro").replace('@', server.home().to_str().unwrap())).unwrap();
    server.ask(&["reload"]);
    let OffloadInfo::Done(done) = one.told(copy) else { panic!("the copy failed") };
    assert!((MIB..ENDLESS).contains(&done.count));
    assert_eq!(one.copy(one.args(done.count, 0)), Err(Nfsstat4::Rofs));
}

#[test]
fn a_stop_does_not_wait_for_copies() {
    let mut server = endless(Serve::unsquashed().cached());
    let mut one = Copying::begin(&server, b"one");
    let copy = one.copy_endlessly();
    one.wait_for_bytes(copy);
    server.stop();
    assert!(size(&server) < ENDLESS);
}

/// Linux before 6.14 waits for CB_OFFLOAD and asks nothing.
#[test]
fn a_killed_server_tells_the_client_to_copy_again() {
    let mut server = endless(Serve::unsquashed().cached());
    let mut one = Copying::begin(&server, b"one");
    let (copy, lost) = (one.copy_endlessly(), one.copy_endlessly());
    one.wait_for_bytes(copy);
    assert_eq!(one.cancel(lost), Nfsstat4::Ok);
    server.kill();
    server.start();
    // The session has survived, and the server asks for another back channel.
    one.client.connection = server.connect();
    one.client.status(&[]);
    assert_ne!(one.client.flags & seq_status::BACKCHANNEL_FAULT, 0);
    assert_eq!(one.ask(copy), Ok((0, Some(Nfsstat4::Delay))));
    one.client = Backed::connect_as(&server, b"one", 2, 1);
    let again = OffloadInfo::Failed { status: Nfsstat4::Delay, bytes_copied: 0 };
    assert_eq!(one.told(copy), again);
    assert_eq!(one.ask(copy), Err(Nfsstat4::BadStateid));
    // The opens are still there: the client copies again.
    let copy = one.copy_endlessly();
    one.wait_for_bytes(copy);
    assert_eq!(one.cancel(copy), Nfsstat4::Ok);
    server.kill();
    server.start();
    one.client = Backed::connect_as(&server, b"one", 2, 1);
    one.is_told_nothing();
}
