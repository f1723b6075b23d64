//! Tests of every number that a client can send, at its boundaries and at random. The caller may get an error, but
//! other clients are not affected. The write verifier, health, the events, the number of failed syncs, the server's
//! memory and a second client's UNSTABLE data do not change.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forebay_wire::xdr::Encode;

use crate::harness::*;

/// Numbers at which arithmetic on 32 and 64 bits can overflow.
const WORDS: [u32; 9] =
    [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX, 999_999_999, 1_000_000_000, 4096];
const LONGS: [u64; 13] = [
    0,
    1,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    (1 << 44) - 4096,
    1 << 44,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// A client beside the hostile client, with uncommitted data, and the server's status at its start.
struct Bystander<'a> {
    server: &'a Server,
    client: Client,
    file: FileHandle,
    verifier: [u8; 8],
    events: String,
    writes: u64,
}

impl<'a> Bystander<'a> {
    fn new(server: &'a Server) -> Self {
        let mut client = server.connect().acting_as(user(2000, 2000, &[]));
        let root = client.root();
        let file = client.new_file(&root, b"bystander", 0o600);
        let verifier = client.write(&file, 0, b"unstable", StableHow::Unstable).unwrap().verf;
        let events = server.ask(&["events", "--json"]);
        Bystander { server, client, file, verifier, events, writes: 0 }
    }

    /// Checks that the client's data still commits with the verifier of its writes.
    #[track_caller]
    fn goes_on(&mut self, after: &str) {
        let wrote = self.client.write(&self.file, self.writes % 64 * 4096, &[7; 4096], StableHow::Unstable);
        let wrote = wrote.unwrap_or_else(|failed| panic!("WRITE after {after}: {failed:?}"));
        assert_eq!(wrote.verf, self.verifier, "the verifier changed after {after}");
        self.writes += 1;
    }

    /// Checks that the server's status has not changed.
    #[track_caller]
    fn saw_nothing(&mut self, after: &str) {
        self.goes_on(after);
        let committed = self.client.commit(&self.file, 0, 0);
        let committed = committed.unwrap_or_else(|failed| panic!("COMMIT after {after}: {failed:?}"));
        assert_eq!(committed.verf, self.verifier, "the verifier changed after {after}");
        let read = self.client.read(&self.file, (self.writes - 1) % 64 * 4096, 4096).unwrap();
        assert_eq!(read.data, [7; 4096], "after {after}");
        let status = self.server.status();
        assert_eq!(status["health"]["state"], "OK", "after {after}: {}", status["health"]);
        assert_eq!(status["durability"]["failures"], 0, "after {after}");
        wait_for(|| self.server.status()["memory"]["used_bytes"].as_u64().unwrap() < 1 << 20);
        assert_eq!(self.server.ask(&["events", "--json"]), self.events, "after {after}");
    }
}

/// The hostile client, and its own objects that it attacks.
struct Hostile {
    client: Client,
    dir: FileHandle,
    file: FileHandle,
    made: u32,
}

/// Returns true for a status that a call with any numbers may have: success, or an error that blames the arguments or
/// the caller.
fn blames_the_caller(status: Nfsstat3) -> bool {
    use Nfsstat3::*;
    matches!(
        status,
        Ok | Inval | Fbig | Perm | Acces | BadCookie | Toosmall | NotSync | Nospc | Exist | Noent
    ) || matches!(status, Nametoolong | Badtype | Notdir | Isdir | Xdev | Notempty | Notsupp | Dquot)
}

impl Hostile {
    fn new(server: &Server) -> Self {
        let mut client = server.connect().acting_as(user(1000, 1000, &[]));
        let root = client.root();
        let dir = client.new_dir(&root, b"hostile", 0o700);
        let file = client.new_file(&dir, b"file", 0o600);
        client.write(&file, 0, &[3; 10_000], StableHow::Unstable).unwrap();
        client.write(&file, 1 << 20, &[3; 10_000], StableHow::FileSync).unwrap();
        Hostile { client, dir, file, made: 0 }
    }

    /// Calls a procedure with these arguments. Returns its status; `None` if RPC refuses the arguments as garbage.
    #[track_caller]
    fn call(&mut self, procedure: Procedure, args: &[u8]) -> Option<Nfsstat3> {
        let (status, result) = self.client.call((PROGRAM, VERSION, procedure as u32), args);
        if status != rpc::ReplyStatus::Success {
            assert_eq!(status, rpc::ReplyStatus::GarbageArgs, "{procedure:?}");
            return None;
        }
        let status = u32::from_be_bytes(result[..4].try_into().unwrap());
        let status = Nfsstat3::try_from(status).unwrap();
        assert!(blames_the_caller(status), "{procedure:?}: {status} for {args:02x?}");
        Some(status)
    }

    /// Checks that all accepted data reaches the directory, and no refused data does.
    #[track_caller]
    fn is_whole(&mut self, server: &Server) {
        self.client.setattr(&self.dir, mode(0o700)).unwrap();
        server.flush();
        let dir = Path::new(server.status()["exports"][0]["path"].as_str().unwrap()).join("hostile");
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let mut found = self.client.lookup(&self.dir, entry.file_name().as_bytes()).unwrap();
            let attr = found.obj_attributes.take().unwrap();
            let there = entry.metadata().unwrap();
            assert_eq!(attr.size, there.len(), "{:?}", entry.file_name());
        }
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.made += 1;
        format!("n{}", self.made).into_bytes()
    }
}

/// Returns the bytes of XDR values, one after the other.
fn xdr(values: &[&dyn Encode]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|value| value.encode(&mut out));
    out
}

/// Returns attributes to set, each with one number from `WORDS` or `LONGS`.
fn attributes() -> Vec<Sattr3> {
    let none = Sattr3::default();
    let words = WORDS.iter().flat_map(|&word| {
        [
            mode(word),
            Sattr3 { uid: Some(word), ..none },
            Sattr3 { gid: Some(word), ..none },
            Sattr3 { atime: at(word, 0), ..none },
            Sattr3 { mtime: at(word, word), ..none },
            Sattr3 { atime: at(0, word), ..none },
        ]
    });
    words.chain(LONGS.iter().map(|&long| size(long))).collect()
}

type Calls = Vec<(Procedure, Vec<u8>)>;

/// Returns calls on a file, with various offsets, counts, lengths and attributes.
fn calls_on_a_file(file: &FileHandle, largest: u64) -> Calls {
    let mut calls = Calls::new();
    let edges = [largest - 1, largest, largest.saturating_add(1), largest - 4096, largest.wrapping_add(4096)];
    for offset in LONGS.into_iter().chain(edges) {
        for count in WORDS {
            calls.push((Procedure::Read, xdr(&[file, &offset, &count])));
            // Uncommitted data is needed for COMMIT.
            let unstable = xdr(&[file, &0u64, &4u32, &StableHow::Unstable, &&b"data"[..]]);
            calls.push((Procedure::Write, unstable));
            calls.push((Procedure::Commit, xdr(&[file, &offset, &count])));
        }
        for stable in [StableHow::Unstable, StableHow::FileSync] {
            let data: &[u8] = b"data";
            calls.push((Procedure::Write, xdr(&[file, &offset, &4u32, &stable, &data])));
            // The announced length differs from the length sent.
            calls.push((Procedure::Write, xdr(&[file, &offset, &u32::MAX, &stable, &data])));
        }
        calls.push((Procedure::Setattr, xdr(&[file, &size(offset), &None::<Nfstime3>])));
    }
    for set in attributes() {
        calls.push((Procedure::Setattr, xdr(&[file, &set, &None::<Nfstime3>])));
    }
    for word in WORDS {
        let guard = Some(Nfstime3 { seconds: word, nseconds: word });
        calls.push((Procedure::Setattr, xdr(&[file, &Sattr3::default(), &guard])));
        calls.push((Procedure::Access, xdr(&[file, &word])));
        // The durability and the kind of creation are numbers, too.
        calls.push((Procedure::Write, xdr(&[file, &0u64, &4u32, &word, &&b"data"[..]])));
    }
    calls
}

/// Returns calls on a directory, with various cookies, counts, names, attributes and device numbers.
fn calls_on_a_directory(hostile: &mut Hostile) -> Calls {
    let dir = hostile.dir;
    let mut calls = Calls::new();
    let verifier = hostile.client.readdir(&dir, START, 4096).unwrap().verifier;
    for cookie in LONGS {
        for count in WORDS {
            calls.push((Procedure::Readdir, xdr(&[&dir, &cookie, &verifier, &count])));
            calls.push((Procedure::Readdirplus, xdr(&[&dir, &cookie, &verifier, &count, &count])));
            calls.push((Procedure::Readdirplus, xdr(&[&dir, &cookie, &[0xffu8; 8], &512u32, &count])));
        }
    }
    for set in attributes() {
        let mut name = || hostile.new_name();
        calls.push((Procedure::Create, xdr(&[&dir, &&name()[..], &0u32, &set])));
        calls.push((Procedure::Create, xdr(&[&dir, &&name()[..], &1u32, &set])));
        calls.push((Procedure::Mkdir, xdr(&[&dir, &&name()[..], &set])));
        calls.push((Procedure::Symlink, xdr(&[&dir, &&name()[..], &set, &&b"text"[..]])));
        calls.push((Procedure::Mknod, xdr(&[&dir, &&name()[..], &MknodData::Fifo(set)])));
    }
    for word in WORDS {
        let (mut name, none) = (|| hostile.new_name(), Sattr3::default());
        let device = MknodData::Chr(none, Specdata3 { major: word, minor: 1 });
        calls.push((Procedure::Mknod, xdr(&[&dir, &&name()[..], &device])));
        let device = MknodData::Blk(none, Specdata3 { major: 1, minor: word });
        calls.push((Procedure::Mknod, xdr(&[&dir, &&name()[..], &device])));
        calls.push((Procedure::Mknod, xdr(&[&dir, &&name()[..], &word, &none])));
        calls.push((Procedure::Create, xdr(&[&dir, &&name()[..], &word, &none])));
        let exclusive =
            CreateHow::Exclusive([word.to_be_bytes(), word.to_be_bytes()].concat().try_into().unwrap());
        calls.push((Procedure::Create, xdr(&[&dir, &&name()[..], &exclusive])));
    }
    calls.extend(calls_with_names(&dir, &hostile.file));
    calls
}

/// Returns calls of every procedure that takes a name, with invalid names among them.
fn calls_with_names(dir: &FileHandle, file: &FileHandle) -> Calls {
    let long = |len| vec![b'n'; len];
    let names: [Vec<u8>; 10] = [
        vec![],
        b".".into(),
        b"..".into(),
        b"a/b".into(),
        b"a\0b".into(),
        b"\xff\xfe\n".into(),
        long(255),
        long(256),
        long(4096),
        long(65_536),
    ];
    let none = Sattr3::default();
    let mut calls = Calls::new();
    for name in &names {
        let name = &name[..];
        calls.push((Procedure::Lookup, xdr(&[dir, &name])));
        calls.push((Procedure::Create, xdr(&[dir, &name, &0u32, &none])));
        calls.push((Procedure::Remove, xdr(&[dir, &name])));
        calls.push((Procedure::Mkdir, xdr(&[dir, &name, &none])));
        calls.push((Procedure::Rmdir, xdr(&[dir, &name])));
        calls.push((Procedure::Mknod, xdr(&[dir, &name, &MknodData::Sock(none)])));
        calls.push((Procedure::Link, xdr(&[file, dir, &name])));
        calls.push((Procedure::Rename, xdr(&[dir, &&b"file"[..], dir, &name])));
        calls.push((Procedure::Rename, xdr(&[dir, &name, dir, &&b"file"[..]])));
        calls.push((Procedure::Symlink, xdr(&[dir, &&b"link"[..], &none, &name])));
        calls.push((Procedure::Remove, xdr(&[dir, &&b"link"[..]])));
    }
    calls
}

/// A repeatable generator of random numbers, xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.next() % all.len() as u64) as usize]
    }

    /// Returns a boundary, a number near one, or any number.
    fn long(&mut self) -> u64 {
        match self.next() % 4 {
            0 => self.next() >> (self.next() % 64),
            1 => self.of(&LONGS).wrapping_add(self.next() % 8192),
            2 => self.of(&LONGS).wrapping_sub(self.next() % 8192),
            _ => self.of(&LONGS),
        }
    }

    fn word(&mut self) -> u32 {
        if self.next().is_multiple_of(2) { self.of(&WORDS) } else { self.long() as u32 }
    }

    fn time(&mut self) -> SetTime {
        match self.next() % 3 {
            0 => SetTime::DontChange,
            1 => SetTime::ServerTime,
            _ => at(self.word(), self.word()),
        }
    }

    fn attributes(&mut self) -> Sattr3 {
        let mut some = |number: u32| (!self.next().is_multiple_of(3)).then_some(number);
        let [mode, uid, gid] = [some(0), some(0), some(0)];
        let [mode, uid, gid] = [mode, uid, gid].map(|word| word.map(|_| self.word()));
        let size = self.next().is_multiple_of(3).then(|| self.long());
        Sattr3 { mode, uid, gid, size, atime: self.time(), mtime: self.time() }
    }

    /// Returns a call with random numbers in every place.
    fn call(&mut self, hostile: &mut Hostile) -> (Procedure, Vec<u8>) {
        let (dir, file) = (hostile.dir, hostile.file);
        let object = if self.next().is_multiple_of(5) { dir } else { file };
        let (name, data) = (hostile.new_name(), [9; 5000]);
        let (name, data) = (&name[..], &data[..(self.next() % 5000) as usize]);
        let (word, long, set) = (self.word(), self.long(), self.attributes());
        let verifier = self.next().to_be_bytes();
        let stable = self.of(&[StableHow::Unstable, StableHow::DataSync, StableHow::FileSync]);
        match self.next() % 16 {
            0 => (Procedure::Getattr, xdr(&[&object])),
            1 => (Procedure::Setattr, xdr(&[&object, &set, &None::<Nfstime3>])),
            2 => {
                let guard = Nfstime3 { seconds: word, nseconds: self.word() };
                (Procedure::Setattr, xdr(&[&object, &set, &Some(guard)]))
            }
            3 => (Procedure::Access, xdr(&[&object, &word])),
            4 => (Procedure::Read, xdr(&[&object, &long, &word])),
            5..=7 => (Procedure::Write, xdr(&[&object, &long, &(data.len() as u32), &stable, &data])),
            8 | 9 => (Procedure::Commit, xdr(&[&object, &long, &word])),
            10 => (Procedure::Create, xdr(&[&dir, &name, &self.of(&[0u32, 1]), &set])),
            11 => (Procedure::Mkdir, xdr(&[&dir, &name, &set])),
            12 => (Procedure::Symlink, xdr(&[&dir, &name, &set, &data])),
            13 => {
                let device = Specdata3 { major: word, minor: self.word() };
                (Procedure::Mknod, xdr(&[&dir, &name, &MknodData::Chr(set, device)]))
            }
            14 => (Procedure::Readdir, xdr(&[&dir, &long, &verifier, &word])),
            _ => (Procedure::Readdirplus, xdr(&[&dir, &long, &verifier, &word, &self.word()])),
        }
    }
}

/// Makes calls with random numbers. A failure is repeated by setting FOREBAY_TEST_SEED to its seed.
fn nobody_notices_random_numbers(server: &Server) {
    let told = std::env::var("FOREBAY_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut fresh = [0; 8];
    rustix::rand::getrandom(&mut fresh, rustix::rand::GetRandomFlags::empty()).unwrap();
    let seed = told.unwrap_or(u64::from_ne_bytes(fresh)) | 1;
    eprintln!("repeat with FOREBAY_TEST_SEED={seed}");
    let (mut random, mut bystander, mut hostile) =
        (Random(seed), Bystander::new(server), Hostile::new(server));
    for n in 0..300 {
        let (procedure, args) = random.call(&mut hostile);
        hostile.call(procedure, &args);
        if n % 10 == 0 {
            bystander.goes_on(&format!("{procedure:?}"));
        }
    }
    hostile.is_whole(server);
    bystander.saw_nothing("all of it");
}

fn nobody_notices(server: &Server) {
    let mut bystander = Bystander::new(server);
    let mut hostile = Hostile::new(server);
    let root = hostile.client.root();
    let largest = hostile.client.fsinfo(&root).unwrap().maxfilesize;
    let mut calls = calls_on_a_file(&hostile.file, largest);
    calls.extend(calls_on_a_directory(&mut hostile));
    let mut last = None;
    for (procedure, args) in calls {
        if last.replace(procedure) != Some(procedure) {
            bystander.goes_on(&format!("{procedure:?}"));
        }
        hostile.call(procedure, &args);
    }
    for procedure in [Procedure::Fsstat, Procedure::Fsinfo, Procedure::Pathconf, Procedure::Readlink] {
        // A client can invent handles of any length.
        for len in [0, 1, 12, 28, 63, 64] {
            let handle = FileHandle::new(&vec![0xff; len]).unwrap();
            let status = hostile.client.call((PROGRAM, VERSION, procedure as u32), &xdr(&[&handle])).1;
            assert_eq!(status[..4], (Nfsstat3::Badhandle as u32).to_be_bytes(), "{procedure:?}");
        }
    }
    hostile.is_whole(server);
    bystander.saw_nothing("all of it");
}

/// Runs a check on the tests' own directory, and on file systems whose journal orders all changes.
fn everywhere(serve: impl Fn(Serve) -> Serve, check: impl Fn(&Server)) {
    check(&serve(Serve::new()).start());
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not run on ext4 and XFS: needs root");
    }
    for kind in ["ext4", "xfs"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), kind, 320 << 20) else { return };
        std::fs::set_permissions(&disk.at, PermissionsExt::from_mode(0o777)).unwrap();
        check(&serve(disk.serve()).start());
    }
}

#[test]
fn nobody_notices_what_numbers_a_client_sends() {
    everywhere(Serve::plain, nobody_notices);
}

#[test]
fn nobody_notices_what_numbers_a_client_sends_to_a_cache() {
    everywhere(Serve::cached, nobody_notices);
}

#[test]
fn nobody_notices_random_numbers_of_a_client() {
    everywhere(Serve::plain, nobody_notices_random_numbers);
    everywhere(Serve::cached, nobody_notices_random_numbers);
}

/// A COMMIT beyond the largest possible offset is a COMMIT of the whole file, as with a Linux server.
#[test]
fn a_commit_far_behind_the_end_commits() {
    everywhere(Serve::plain, commits_far_behind_the_end);
    everywhere(Serve::cached, commits_far_behind_the_end);
}

fn commits_far_behind_the_end(server: &Server) {
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let verifier = c.write(&file, 0, b"data", StableHow::Unstable).unwrap().verf;
    for (offset, count) in [(1 << 63, 0), (1 << 63, 1), (u64::MAX, u32::MAX), (i64::MAX as u64, 2)] {
        c.write(&file, 0, b"data", StableHow::Unstable).unwrap();
        let committed = c.commit(&file, offset, count);
        let committed = committed.unwrap_or_else(|failed| panic!("{count} bytes at {offset}: {failed:?}"));
        assert_eq!(committed.verf, verifier, "{count} bytes at {offset}");
    }
    assert_eq!(server.status()["health"]["state"], "OK");
}

#[test]
fn a_size_that_no_file_can_have_changes_nothing() {
    everywhere(Serve::plain, nothing_changes_with_a_bad_size);
    everywhere(Serve::cached, nothing_changes_with_a_bad_size);
}

fn nothing_changes_with_a_bad_size(server: &Server) {
    let mut c = server.connect().acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let largest = c.fsinfo(&root).unwrap().maxfilesize;
    let file = c.new_file(&root, b"f", 0o644);
    let before = c.attr(&file);
    let too_large = Sattr3 { size: Some(largest + 1), ..mode(0o600) };
    assert_eq!(c.setattr(&file, too_large).status(), Nfsstat3::Fbig);
    assert_eq!(c.attr(&file), before);
    for how in [CreateHow::Unchecked(too_large), CreateHow::Guarded(too_large)] {
        assert_eq!(c.create(&root, b"g", how).status(), Nfsstat3::Fbig);
        assert_eq!(c.lookup(&root, b"g").status(), Nfsstat3::Noent);
    }
    assert_eq!(c.create(&root, b"f", CreateHow::Unchecked(too_large)).status(), Nfsstat3::Fbig);
    assert_eq!(c.attr(&file), before);
    let device = MknodData::Chr(mode(0o600), Specdata3 { major: 1 << 12, minor: 0 });
    assert_eq!(c.mknod(&root, b"d", device).status(), Nfsstat3::Inval);
    // The file system accepts the size that FSINFO gives as the largest.
    c.setattr(&file, size(largest)).unwrap();
    assert_eq!(c.attr(&file).size, largest);
}
