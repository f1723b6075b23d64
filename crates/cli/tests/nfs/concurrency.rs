//! Tests with many clients at once: exactly one wins, weak cache consistency data is atomic, and no request waits
//! forever.

use std::collections::BTreeSet;
use std::sync::{Barrier, Mutex};

use forebay_wire::xdr::Encode;

use crate::harness::*;

/// Lets `CLIENTS` clients make a request at one time, in `ROUNDS` rounds. Exactly one may succeed in each round.
fn one_wins(
    prepare: impl Fn(&mut Client, &FileHandle, u32) -> FileHandle,
    attempt: impl Fn(&mut Client, &FileHandle, &FileHandle, u32, u32) -> Nfsstat3 + Sync,
    loser: Nfsstat3,
) {
    const CLIENTS: u32 = 8;
    const ROUNDS: u32 = 20;
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    for round in 0..ROUNDS {
        let object = prepare(&mut c, &root, round);
        let barrier = Barrier::new(CLIENTS as usize);
        let mut statuses = std::thread::scope(|scope| {
            let (barrier, attempt, root, object) = (&barrier, &attempt, &root, &object);
            let threads: Vec<_> = (0..CLIENTS)
                .zip(&mut clients)
                .map(|(who, c)| {
                    scope.spawn(move || {
                        barrier.wait();
                        attempt(c, root, object, round, who)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let won = statuses.iter().position(|status| *status == Nfsstat3::Ok).expect("nobody won");
        statuses.remove(won);
        assert!(statuses.iter().all(|status| *status == loser), "round {round}: {statuses:?}");
    }
}

fn numbered(round: u32) -> Vec<u8> {
    format!("f{round}").into_bytes()
}

#[test]
fn one_creates() {
    let guarded = CreateHow::Guarded(mode(0o644));
    let create = |c: &mut Client, root: &FileHandle, _: &FileHandle, round, _| {
        c.create(root, &numbered(round), guarded).status()
    };
    one_wins(|_, root, _| *root, create, Nfsstat3::Exist);
    let exclusive = |c: &mut Client, root: &FileHandle, _: &FileHandle, round, who: u32| {
        c.create(root, &numbered(round), CreateHow::Exclusive([who as u8 + 1; 8])).status()
    };
    one_wins(|_, root, _| *root, exclusive, Nfsstat3::Exist);
}

#[test]
fn one_removes_one_renames_one_links() {
    let new = |c: &mut Client, root: &FileHandle, round| c.new_file(root, &numbered(round), 0o644);
    let remove = |c: &mut Client, root: &FileHandle, _: &FileHandle, round, _| {
        c.remove(root, &numbered(round)).status()
    };
    one_wins(new, remove, Nfsstat3::Noent);
    let rename = |c: &mut Client, root: &FileHandle, _: &FileHandle, round, who: u32| {
        c.rename((root, &numbered(round)), (root, format!("to{who}").as_bytes())).status()
    };
    one_wins(new, rename, Nfsstat3::Noent);
    let link = |c: &mut Client, root: &FileHandle, file: &FileHandle, round: u32, _| {
        c.link(file, root, format!("link{round}").as_bytes()).status()
    };
    one_wins(new, link, Nfsstat3::Exist);
}

#[test]
fn one_passes_the_guard() {
    let new = |c: &mut Client, root: &FileHandle, round| c.new_file(root, &numbered(round), 0o644);
    let guards = Mutex::new(std::collections::HashMap::new());
    let set = |c: &mut Client, _: &FileHandle, file: &FileHandle, round: u32, who: u32| {
        // All clients use the ctime that the first of them saw.
        let guard = *guards.lock().unwrap().entry(round).or_insert_with(|| c.attr(file).ctime);
        c.setattr_guarded(file, mode(0o600 + who), Some(guard)).status()
    };
    one_wins(new, set, Nfsstat3::NotSync);
}

/// Many clients change one directory. Between the attributes before and after one change, no other change may occur.
#[test]
fn attributes_around_changes_of_a_directory_form_a_chain() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o777);
    let pairs = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for who in 0..6 {
            let (server, pairs) = (&server, &pairs);
            scope.spawn(move || {
                let mut c = server.connect();
                for n in 0..30 {
                    let child = format!("{who}-{n}");
                    let made = c.create(&dir, child.as_bytes(), CreateHow::Guarded(mode(0o644))).unwrap();
                    let to = format!("{who}-{n}-renamed");
                    let renamed = c.rename((&dir, child.as_bytes()), (&dir, to.as_bytes())).unwrap();
                    let removed = c.remove(&dir, to.as_bytes()).unwrap();
                    pairs.lock().unwrap().extend([made.dir_wcc, renamed.fromdir_wcc, removed]);
                }
            });
        }
    });
    let chain: Vec<_> = pairs.into_inner().unwrap();
    let after: Vec<Nfstime3> = chain.iter().map(|wcc| wcc.after.unwrap().ctime).collect();
    for wcc in &chain {
        let (before, end) =
            (wcc.before.expect("nothing overlaps in a directory").ctime, wcc.after.unwrap().ctime);
        let within = after.iter().filter(|ctime| before < **ctime && **ctime < end).count();
        assert_eq!(within, 0, "changes between {before:?} and {end:?}");
    }
}

/// Returns a random number of xorshift, so that a run can be repeated.
fn next(seed: &mut u64, below: u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    ((*seed >> 16) % below) as usize
}

/// Every way in which two changes could wait for each other: renames in both directions, links, exclusive
/// directories.
#[test]
fn changes_of_the_same_names_in_all_directions_never_wait_for_each_other_for_ever() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dirs: Vec<FileHandle> = (0..3).map(|n| c.new_dir(&root, format!("d{n}").as_bytes(), 0o777)).collect();
    let names: Vec<String> = (0..4).map(|n| format!("n{n}")).collect();
    std::thread::scope(|scope| {
        for who in 1..=12u64 {
            let (server, dirs, names) = (&server, &dirs, &names);
            scope.spawn(move || {
                let mut c = server.connect();
                let mut seed = who << 32 | 0x7f4a_7c15;
                for _ in 0..150 {
                    let (dir, other) = (&dirs[next(&mut seed, 3)], &dirs[next(&mut seed, 3)]);
                    let (child, to) =
                        (names[next(&mut seed, 4)].as_bytes(), names[next(&mut seed, 4)].as_bytes());
                    match next(&mut seed, 9) {
                        0 => drop(c.create(dir, child, CreateHow::Unchecked(size(0))).status()),
                        1 => drop(c.remove(dir, child).status()),
                        2 | 3 => drop(c.rename((dir, child), (other, to)).status()),
                        4 => drop(c.mkdir(dir, child, mode(0o755)).status()),
                        5 => drop(c.rmdir(dir, child).status()),
                        6 => drop(c.symlink(dir, child, b"x").status()),
                        _ => {
                            if let Ok(found) = c.lookup(dir, child) {
                                let written = c.write(&found.object, 0, b"x", StableHow::Unstable).status();
                                let set = c.setattr(&found.object, mode(0o644)).status();
                                let linked = c.link(&found.object, other, to).status();
                                for status in [written, set, linked] {
                                    assert_ne!(status, Nfsstat3::Io);
                                    assert_ne!(status, Nfsstat3::Jukebox);
                                }
                            }
                        }
                    }
                }
            });
        }
    });
    // The listing must agree with the entries.
    for (n, dir) in dirs.iter().enumerate() {
        let page = c.readdirplus(dir, START, 65_536, 65_536).unwrap();
        assert!(page.eof);
        let listed: BTreeSet<Vec<u8>> = page.entries.into_iter().map(|entry| entry.name).collect();
        let there = std::fs::read_dir(server.data.join(format!("d{n}"))).unwrap();
        let mut there: BTreeSet<Vec<u8>> =
            there.map(|entry| entry.unwrap().file_name().into_encoded_bytes()).collect();
        there.extend([b".".to_vec(), b"..".to_vec()]);
        assert_eq!(listed, there);
    }
}

/// A call is sent on two connections at once. Both must be answered, even if the call is refused before any work.
#[test]
fn a_retransmission_of_what_is_being_refused_is_answered() {
    let server = Serve::new().start();
    let (mut c, mut other) = (server.connect(), server.connect());
    let bad = FileHandle::new(&[7; 28]).unwrap();
    for _ in 0..500 {
        let mut args = Vec::new();
        name(&bad, b"f").encode(&mut args);
        let record = c.call_bytes((PROGRAM, VERSION, Procedure::Remove as u32), &args);
        c.send(&record);
        other.send(&record);
        let reply = c.receive().unwrap();
        assert_eq!(other.receive().unwrap(), reply);
    }
}
