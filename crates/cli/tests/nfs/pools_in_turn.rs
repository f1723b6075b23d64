//! Tests of two caches for one directory, or two directories for one cache, used in turn.

use std::os::unix::fs::FileExt;

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    CreateHow as Create4, Fattr, LockType, Nfsstat4, Op, OpenArgs, OpenClaim, OpenHow, ReclaimCompleteArgs,
    StateOwner, Stateid, share,
};
use forebay_wire::nlm4::Stats;

use crate::harness::*;
use crate::log_faults::marker;
use crate::nfs4::{Client4, putfh};
use crate::volumes::{FUA, Nbd};

/// Makes a stopped server use the pool called `name`.
pub(crate) fn use_pool(server: &mut Server, name: &str, more: &[&str]) {
    let devices = ["a", "b"].map(|leg| server.home().join(format!("{name}-{leg}")));
    let [a, b] = devices.each_ref().map(|path| path.to_str().unwrap());
    let pool =
        ["--squash", "none", "--mode", "write-back", "--cache-size", "64MiB", "--cache", a, "--cache", b];
    server.set_flags(&[&pool, more].concat());
}

/// Returns a server with the pool `first`, and an empty file.
pub(crate) fn server_and_empty_file() -> (Server, FileHandle) {
    let mut server = Serve::unsquashed().plain().start();
    server.stop();
    use_pool(&mut server, "first", &[]);
    server.start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    (server, file)
}

/// Returns a server with the pool `first`, and a file that the pool has cached.
fn server_and_file() -> (Server, FileHandle) {
    let (server, file) = server_and_empty_file();
    write(&server, &file, 1);
    server.flush();
    (server, file)
}

fn write(server: &Server, file: &FileHandle, byte: u8) {
    server.connect().write(file, 0, &[byte; 40_000], StableHow::FileSync).unwrap();
}

fn holds(server: &Server, file: &FileHandle, byte: u8) {
    assert!(server.connect().read(file, 0, 40_000).unwrap().data == [byte; 40_000], "not {byte}");
}

#[test]
fn a_pool_does_not_believe_what_it_had_before_the_directory_was_served_with_another_or_none() {
    let (mut server, file) = server_and_file();
    for (byte, pool) in (2..).zip(["second", "first", "none", "first", "second"]) {
        server.stop();
        match pool {
            "none" => server.set_flags(&["--squash", "none", "--mode", "pass-through"]),
            pool => use_pool(&mut server, pool, &[]),
        }
        server.start();
        holds(&server, &file, byte - 1);
        write(&server, &file, byte);
        if pool != "none" {
            server.flush();
        }
        assert!(std::fs::read(server.data.join("f")).unwrap() == [byte; 40_000]);
    }
}

#[test]
fn a_pool_does_not_believe_what_it_had_of_a_directory_while_it_was_used_for_another() {
    let (mut server, file) = server_and_file();
    server.stop();
    let first = server.data.clone();
    let second = server.home().join("second");
    std::fs::create_dir(&second).unwrap();
    server.data = second;
    server.start();
    let mut c = server.connect();
    let root = c.root();
    let other = c.new_file(&root, b"f", 0o644);
    write(&server, &other, 3);
    // No server owns the first directory now.
    let theirs = std::fs::File::options().write(true).open(first.join("f")).unwrap();
    theirs.write_all_at(&[2; 40_000], 0).unwrap();
    holds(&server, &other, 3);
    server.flush();
    server.stop();
    server.data = first;
    server.start();
    holds(&server, &file, 2);
}

#[test]
fn what_was_there_before_the_first_start_is_warm_after_a_restart() {
    // The file is larger than the 16 MiB of memory that `cached` permits.
    const PIECES: u64 = 640;
    let mut server = Serve::unsquashed().cached().start_on(|data| {
        std::fs::write(data.join("f"), vec![1; PIECES as usize * 65_536]).unwrap();
    });
    let root = server.connect().root();
    let file = server.connect().lookup(&root, b"f").unwrap().object;
    let read = |server: &Server| {
        let mut c = server.connect();
        for piece in 0..PIECES {
            assert!(c.read(&file, piece * 65_536, 65_536).unwrap().data == [1; 65_536]);
        }
    };
    let counters = |server: &Server| server.status()["pool"]["counters"].clone();
    let from_ssd = |server: &Server| counters(server)["blocks_read_ssd"].as_u64().unwrap();
    // Clean blocks are admitted beside the reads, and on a busy machine not all of them.
    wait_for(|| {
        read(&server);
        from_ssd(&server) > 3000
    });
    server.restart();
    read(&server);
    assert_eq!(counters(&server)["changed_outside"], 0, "{}", counters(&server));
    assert!(from_ssd(&server) > 2000, "{}", counters(&server));
}

#[test]
fn changes_that_were_given_up_are_not_made_later_over_what_is_newer() {
    let (mut server, file) = server_and_file();
    write(&server, &file, 2);
    server.kill();
    use_pool(&mut server, "second", &[]);
    assert!(server.refusal().contains("may hold data that the directory lacks"));
    use_pool(&mut server, "second", &["--format-cache"]);
    server.start();
    write(&server, &file, 3);
    server.flush();
    server.stop();
    use_pool(&mut server, "first", &[]);
    for _ in 0..2 {
        let said = server.refusal();
        assert!(said.contains("were given up"), "{said}");
    }
    use_pool(&mut server, "second", &[]);
    server.start();
    holds(&server, &file, 3);
    server.stop();
    use_pool(&mut server, "first", &["--format-cache"]);
    server.start();
    holds(&server, &file, 3);
}

const LOCK: (u64, u64) = (0, 10);

/// Makes a file and locks a part of it.
fn locked(c: &mut Client4) -> (Vec<u8>, Stateid) {
    let make = OpenHow::Create(Create4::Unchecked(Fattr::default()));
    let (open, file) = c.open(b"locked", make, 0).unwrap();
    assert_eq!(c.lock(&file, open, LockType::Write, LOCK.0, LOCK.1), Nfsstat4::Ok);
    (file, open)
}

/// Opens the locked file as a client that has it from before.
fn reclaims(server: &Server, name: &[u8], file: &[u8]) -> Client4 {
    let mut c = Client4::connect_silent(server.connect(), 1, name);
    let open = OpenArgs {
        seqid: 0,
        share_access: share::BOTH | share::WANT_NO_DELEG,
        share_deny: 0,
        owner: StateOwner { clientid: c.id, owner: Opaque(b"owner") },
        how: OpenHow::NoCreate,
        claim: OpenClaim::Previous(forebay_wire::nfs4::DelegationType::None),
    };
    assert_eq!(c.status(&[putfh(file), Op::Open(open)]), Nfsstat4::Ok, "a reclaim");
    let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
    assert_eq!(c.status(&[complete]), Nfsstat4::Ok);
    c
}

/// The log of the first pool has the session, the open and the lock of a client that never went away. Other clients may
/// have had the lock since. A kill of the server at any step of the start leads to the same end.
#[test]
fn the_state_of_clients_in_a_pool_counts_no_more_after_the_directory_was_served_with_another_or_none() {
    let (mut server, _) = server_and_file();
    let mut one = Client4::connect(&server, b"one");
    let (file, _) = locked(&mut one);
    for other in ["second", "none"] {
        use_pool(&mut server, "first", &[]);
        server.flush();
        server.stop();
        match other {
            "none" => server.set_flags(&["--squash", "none", "--mode", "pass-through"]),
            pool => use_pool(&mut server, pool, &[]),
        }
        server.start();
        one.reconnect(&server);
        assert_eq!(one.session_status(), Nfsstat4::Badsession);
        let mut two = Client4::connect(&server, b"two");
        assert_eq!(two.open(b"locked", OpenHow::NoCreate, 0), Err(Nfsstat4::Grace), "the first may reclaim");
        reclaims(&server, b"one", &file).leave();
        let (open, _) = two.open(b"locked", OpenHow::NoCreate, 0).unwrap();
        assert_eq!(two.lock(&file, open, LockType::Write, LOCK.0, LOCK.1), Nfsstat4::Ok);
        server.flush();
        server.stop();
        let last = std::fs::read(server.state.join("cache-last")).unwrap();
        use_pool(&mut server, "first", &[]);
        server.start();
        // The second round is a kill before the start had forgotten the state for good, the third one a kill after it.
        for round in 0..3 {
            for client in [&mut one, &mut two] {
                client.reconnect(&server);
                assert_eq!(client.session_status(), Nfsstat4::Badsession, "round {round} after {other}");
            }
            server.kill();
            if round == 0 {
                std::fs::write(server.state.join("cache-last"), &last).unwrap();
            }
            server.start();
        }
        // The kills have not ended the grace period.
        let mut two = Client4::connect(&server, b"two");
        assert_eq!(two.open(b"locked", OpenHow::NoCreate, 0), Err(Nfsstat4::Grace), "after {other}");
        one = reclaims(&server, b"one", &file);
        locked(&mut one);
    }
}

/// A server after the one with the reply may have carried out the request once more, so the reply is out of date.
#[test]
fn a_reply_in_a_pool_counts_no_more_after_the_directory_was_served_with_another() {
    let (mut server, _) = server_and_file();
    let mut c = server.connect();
    let root = c.root();
    let how = CreateHow::Guarded(mode(0o644));
    let target = name(&root, b"made");
    let request = call(&mut c, Procedure::Create, &CreateArgs { target, how });
    assert_eq!(status_of(&c.exchange(&request)), Nfsstat3::Ok);
    server.flush();
    server.stop();
    use_pool(&mut server, "second", &[]);
    server.start();
    server.connect().remove(&root, b"made").unwrap();
    server.flush();
    server.stop();
    use_pool(&mut server, "first", &[]);
    server.start();
    let reply = server.connect().exchange(&request);
    assert_eq!(status_of(&reply), Nfsstat3::Ok);
    assert!(server.connect().lookup(&root, b"made").is_ok(), "the request was carried out");
    // The log of the first pool has a reply once more, and no other server was there since.
    server.kill();
    server.start();
    assert_eq!(server.connect().exchange(&request), reply);
}

/// Only the log has the new name: its file system was not asked for a commit, and no data is dirty.
#[test]
fn names_that_only_a_pool_has_keep_it_from_being_used_after_another() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    for kind in ["ext4", "xfs"] {
        let Some(array) = Array::instant(kind) else { return };
        let mut server = Serve::unsquashed().plain().data_at(&array.at).start();
        server.stop();
        use_pool(&mut server, "first", &[]);
        server.start();
        let mut c = server.connect();
        let root = c.root();
        let marker = marker(&server, &array.at);
        let flags = ioctl_getflags(&marker).unwrap();
        // With this flag even root cannot change the file.
        ioctl_setflags(&marker, flags | IFlags::IMMUTABLE).unwrap();
        c.new_file(&root, b"made", 0o644);
        server.kill();
        ioctl_setflags(&marker, flags).unwrap();
        drop(marker);
        std::fs::remove_file(server.state.join("cache-in-use")).unwrap();
        server.set_flags(&["--squash", "none", "--mode", "pass-through"]);
        server.start();
        server.stop();
        use_pool(&mut server, "first", &[]);
        for _ in 0..2 {
            let said = server.refusal();
            assert!(said.contains("were given up"), "{said}");
        }
    }
}

#[test]
fn a_pool_does_not_believe_what_it_had_of_a_volume_before_the_volume_was_served_with_another() {
    const LEN: usize = 40_960;
    let (mut server, _) = server_and_file();
    let image = server.home().join("disk.img");
    std::fs::write(&image, [9; LEN]).unwrap();
    let open = |server: &Server| {
        let shown = server.ask(&["volume", "show", "scratch", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        Nbd::open(shown["nbd"].as_str().unwrap(), "scratch").unwrap()
    };
    for (byte, pool) in (1..).zip(["first", "second", "first", "second"]) {
        server.stop();
        use_pool(&mut server, pool, &["--nbd", "127.0.0.1:0"]);
        server.start();
        if byte == 1 {
            server.ask(&["volume", "create", "scratch", "--backing", image.to_str().unwrap()]);
        } else {
            open(&server).holds(&[byte - 1; LEN]);
        }
        open(&server).write(FUA, 0, byte, LEN);
        server.flush();
    }
}

/// The log of the first pool has the locks of a host. The host is told of the start, and may have its locks back.
#[test]
fn locks_of_nfsv3_can_be_reclaimed_after_a_start_with_another_pool_or_none() {
    const ALL: Bytes = (0, 0);
    let (mut server, file) = server_and_file();
    let mut one = Process::new(server.connect(), b"client", 1);
    assert_eq!(one.lock(&file, ALL, true), Stats::Granted);
    for pool in ["second", "none", "first", "second"] {
        server.flush();
        server.stop();
        match pool {
            "none" => server.set_flags(&["--squash", "none", "--mode", "pass-through"]),
            pool => use_pool(&mut server, pool, &[]),
        }
        server.start();
        let mut two = Process::new(server.connect_from([127, 0, 0, 2]), b"elsewhere", 1);
        assert_eq!(two.lock(&file, ALL, true), Stats::DeniedGracePeriod, "with {pool}");
        let mut one = Process::new(server.connect(), b"client", 1);
        assert_eq!(one.reclaim(&file, ALL), Stats::Granted, "with {pool}");
    }
}

/// The start with the older pool fails when it records that clients have a grace period.
#[test]
fn a_start_that_fails_leaves_the_grace_period_to_the_next_one() {
    let (mut server, _) = server_and_file();
    for pool in ["second", "first"] {
        server.flush();
        server.stop();
        use_pool(&mut server, pool, &[]);
        server.start();
    }
    let (file, _) = locked(&mut Client4::connect(&server, b"one"));
    server.flush();
    server.stop();
    use_pool(&mut server, "second", &[]);
    let in_the_way = server.state.join("nfs4-clients.new");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(server.refusal().contains("state directory"));
    std::fs::remove_dir(&in_the_way).unwrap();
    server.start();
    let mut two = Client4::connect(&server, b"two");
    assert_eq!(two.open(b"locked", OpenHow::NoCreate, 0), Err(Nfsstat4::Grace));
    reclaims(&server, b"one", &file);
}

/// Damages the first frame of the log on a cache device. Later frames follow it, so the log has a hole.
fn damage_log(device: &std::path::Path) {
    const BLOCK: usize = 4096;
    let file = std::fs::File::options().read(true).write(true).open(device).unwrap();
    let mut block = [0; BLOCK];
    for at in (0..).step_by(BLOCK) {
        file.read_exact_at(&mut block, at).expect("the device has no frame");
        if block.starts_with(b"FBYFRAME") {
            block[20] ^= 1;
            return file.write_all_at(&block, at).unwrap();
        }
    }
}

/// Returns a server whose only cache device is at the path.
fn with_one_device() -> (Server, std::path::PathBuf) {
    let mut server = Serve::unsquashed().plain().start();
    server.stop();
    let device = server.home().join("device");
    let cache = ["--cache-size", "64MiB", "--cache", device.to_str().unwrap()];
    server.set_flags(&[&["--squash", "none", "--mode", "write-through"][..], &cache].concat());
    server.start();
    (server, device)
}

/// A log with a hole is dropped if its pool has one device, with the state of clients.
#[test]
fn the_state_of_clients_can_be_reclaimed_after_the_log_of_the_only_device_was_dropped() {
    let (mut server, device) = with_one_device();
    let (file, _) = locked(&mut Client4::connect(&server, b"one"));
    server.kill();
    damage_log(&device);
    // The start fails after it has begun a new log. So the next one finds a log without a hole.
    let in_the_way = server.state.join("nfs4-clients.new");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(server.refusal().contains("state directory"));
    std::fs::remove_dir(&in_the_way).unwrap();
    for round in 0..2 {
        server.start();
        let mut two = Client4::connect(&server, b"two");
        assert_eq!(two.open(b"locked", OpenHow::NoCreate, 0), Err(Nfsstat4::Grace), "round {round}");
        server.kill();
    }
    server.start();
    reclaims(&server, b"one", &file);
}

#[test]
fn locks_of_nfsv3_can_be_reclaimed_after_the_log_of_the_only_device_was_dropped() {
    const ALL: Bytes = (0, 0);
    let (mut server, device) = with_one_device();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o666);
    let mut one = Process::new(c, b"client", 1);
    assert_eq!(one.lock(&file, ALL, true), Stats::Granted);
    server.kill();
    damage_log(&device);
    server.start();
    let mut two = Process::new(server.connect_from([127, 0, 0, 2]), b"elsewhere", 1);
    assert_eq!(two.lock(&file, ALL, true), Stats::DeniedGracePeriod);
    let mut one = Process::new(server.connect(), b"client", 1);
    assert_eq!(one.reclaim(&file, ALL), Stats::Granted);
}
