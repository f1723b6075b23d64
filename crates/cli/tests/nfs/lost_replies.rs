//! Campaigns of lost replies: clients make, rename and remove names while the server is killed again and again. Before
//! each kill the replies are lost on their way. No client may see a false error.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    self, CloseArgs, CreateType, Fattr, NameArgs, Nfsstat4, Op, OpenArgs, OpenClaim, OpenHow, StateOwner,
    Stateid, share,
};

use crate::harness::*;
use crate::nfs4::{Client4, putfh, remove};

const CLIENTS: usize = 4;
const KILLS: u64 = 10;
/// Acknowledged changes between two kills.
const CHANGES: u64 = 40;

/// The state that the clients of a campaign share.
#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    done: AtomicU64,
    /// Requests that were sent again because no reply came.
    repeated: AtomicU64,
}

impl Progress {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    /// Sends a request again on new connections, until its reply comes.
    fn until_answered<T>(&self, mut answer: Option<T>, mut again: impl FnMut() -> Option<T>) -> T {
        while answer.is_none() {
            self.repeated.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(5));
            answer = again();
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        answer.unwrap()
    }
}

/// Runs clients while the server is killed, and returns the server.
fn campaign(client: impl Fn(usize, &Relay, &Progress) + Sync) -> Server {
    let mut server = Serve::unsquashed().cached().start();
    let (relay, progress) = (Relay::to(server.address()), Progress::default());
    let mut lost = 0;
    std::thread::scope(|scope| {
        let _stop = DoneAtEnd(&progress.stop);
        for number in 0..CLIENTS {
            let (client, relay, progress) = (&client, &relay, &progress);
            scope.spawn(move || client(number, relay, progress));
        }
        for kill in 0..KILLS {
            let before = progress.done.load(Ordering::SeqCst);
            wait_for(|| progress.done.load(Ordering::SeqCst) >= before + CHANGES);
            relay.lose_replies();
            // Up to one reply of each client is lost. The requests of the others are in flight.
            wait_for(|| relay.lost() >= kill % (CLIENTS as u64 + 1));
            lost += relay.lost();
            server.kill();
            server.start();
            relay.next_run(server.address());
        }
    });
    let repeated = progress.repeated.load(Ordering::SeqCst);
    eprintln!("{} changes, {lost} replies lost, {repeated} repeated", progress.done.load(Ordering::SeqCst));
    assert!(lost >= KILLS / 5 * 10 && repeated >= lost, "{lost} replies lost, {repeated} requests repeated");
    server
}

fn name_of(entry: std::fs::DirEntry) -> String {
    entry.file_name().into_string().unwrap()
}

/// Asserts that nothing but the clients' directories is left.
fn assert_clean(server: &Server) {
    server.flush();
    let mut names: Vec<_> =
        std::fs::read_dir(&server.data).unwrap().map(|entry| name_of(entry.unwrap())).collect();
    names.sort();
    assert_eq!(names, (0..CLIENTS).map(|number| format!("dir{number}")).collect::<Vec<_>>());
    for name in names {
        assert_eq!(std::fs::read_dir(server.data.join(name)).unwrap().count(), 0);
    }
}

/// A client of NFSv4.1 in a campaign.
struct Steady4<'a> {
    client: Client4,
    relay: &'a Relay,
    progress: &'a Progress,
}

impl Steady4<'_> {
    #[track_caller]
    fn change(&mut self, operations: &[Op<'_>], words: &str) {
        let Steady4 { client, relay, progress } = self;
        let first = client.try_run(operations, |status, _| status);
        let status = progress.until_answered(first, || {
            client.connection = relay.connect();
            client.try_again(|status, _| status)
        });
        assert_eq!(status, Nfsstat4::Ok, "{words}");
    }
}

fn make_dir(name: &[u8]) -> Op<'_> {
    Op::Create(nfs4::CreateArgs { objtype: CreateType::Dir, name, attributes: Fattr::default() })
}

fn rename<'a>(oldname: &'a [u8], newname: &'a [u8]) -> Op<'a> {
    Op::Rename(nfs4::RenameArgs { oldname, newname })
}

fn client4(number: usize, relay: &Relay, progress: &Progress) {
    let name = format!("client{number}");
    let mut client = Client4::connect_as(relay.connect(), 1, name.as_bytes());
    let dir_name = format!("dir{number}");
    let root = Op::Putrootfh(());
    let dir =
        client.run(&[root, make_dir(dir_name.as_bytes()), Op::Getfh(())], |_, results| match results[2] {
            nfs4::OpResult::Getfh(Ok(handle)) => handle.object.0.to_vec(),
            ref other => panic!("{other:?}"),
        });
    let (id, mut c) = (client.id, Steady4 { client, relay, progress });
    let mut round = 0;
    while progress.goes_on() {
        let names = ["made", "new", "sub"].map(|word| format!("{word}{number}.{round}"));
        let [made, new, sub] = names.each_ref().map(|name| name.as_bytes());
        let open = Op::Open(OpenArgs {
            seqid: 0,
            share_access: share::BOTH | share::WANT_NO_DELEG,
            share_deny: 0,
            owner: StateOwner { clientid: id, owner: Opaque(b"owner") },
            how: OpenHow::Create(nfs4::CreateHow::Guarded(Fattr::default())),
            claim: OpenClaim::Null(made),
        });
        let close = Op::Close(CloseArgs { seqid: 0, open_stateid: Stateid::CURRENT });
        c.change(&[root, open, close], "OPEN");
        c.change(&[putfh(&dir), make_dir(sub)], "CREATE");
        // From one directory to another one, and back over nothing.
        c.change(&[root, Op::Savefh(()), putfh(&dir), rename(made, new)], "RENAME");
        let link = Op::Link(NameArgs { name: made });
        c.change(&[putfh(&dir), Op::Lookup(NameArgs { name: new }), Op::Savefh(()), root, link], "LINK");
        c.change(&[putfh(&dir), Op::Remove(NameArgs { name: sub })], "REMOVE of a directory");
        c.change(&remove(made), "REMOVE");
        c.change(&[putfh(&dir), Op::Remove(NameArgs { name: new })], "REMOVE of the last name");
        round += 1;
    }
}

#[test]
fn lost_replies_cause_no_false_errors_with_version_4_1() {
    assert_clean(&campaign(client4));
}

/// A client of NFSv3 in a campaign.
struct Steady3<'a> {
    client: Client,
    relay: &'a Relay,
    progress: &'a Progress,
}

impl Steady3<'_> {
    #[track_caller]
    fn change(&mut self, procedure: Procedure, args: &impl forebay_wire::xdr::Encode) {
        let Steady3 { client, relay, progress } = self;
        let record = call(client, procedure, args);
        let first = client.try_exchange(&record);
        let reply = progress.until_answered(first, || {
            *client = relay.connect();
            client.try_exchange(&record)
        });
        assert_eq!(status_of(&reply), Nfsstat3::Ok, "{procedure:?}");
    }
}

fn client3(number: usize, relay: &Relay, progress: &Progress) {
    let mut client = relay.connect();
    let root = client.root();
    let dir = client.new_dir(&root, format!("dir{number}").as_bytes(), 0o755);
    let mut c = Steady3 { client, relay, progress };
    let mut round = 0;
    while progress.goes_on() {
        let names = ["made", "new", "sub"].map(|word| format!("{word}{number}.{round}"));
        let [made, new, sub] = names.each_ref().map(|name| name.as_bytes());
        let how = if round % 2 == 0 {
            CreateHow::Guarded(mode(0o644))
        } else {
            CreateHow::Exclusive([round as u8; 8])
        };
        c.change(Procedure::Create, &CreateArgs { target: name(&root, made), how });
        c.change(Procedure::Mkdir, &MkdirArgs { target: name(&dir, sub), attributes: mode(0o755) });
        c.change(Procedure::Rename, &RenameArgs { from: name(&root, made), to: name(&dir, new) });
        let link = SymlinkArgs { target: name(&root, made), attributes: Sattr3::default(), path: new };
        c.change(Procedure::Symlink, &link);
        c.change(Procedure::Rmdir, &name(&dir, sub));
        c.change(Procedure::Remove, &name(&root, made));
        c.change(Procedure::Remove, &name(&dir, new));
        round += 1;
    }
}

#[test]
fn lost_replies_cause_no_false_errors_with_version_3() {
    assert_clean(&campaign(client3));
}
