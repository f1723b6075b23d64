//! Tests of a server that is killed while it carries out a change. The next server knows the result of the change,
//! and a client that retransmits gets the original reply.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;

/// Number of kills, enough for several to hit a change between the directory and the log.
const KILLS: u32 = 40;
/// Longest time in microseconds from sending a change to its end.
const LONGEST: u64 = 400;

/// Makes change `n` of a client that makes, renames, links and removes one object of each kind in turn. Each change
/// would fail if it were carried out twice. New objects get `attributes`.
fn change(c: &mut Client, root: &FileHandle, n: u64, attributes: Sattr3) -> Vec<u8> {
    let place = |child: &'static str| name(root, child.as_bytes());
    match n % 12 {
        0 => {
            let how = CreateHow::Guarded(attributes);
            call(c, Procedure::Create, &CreateArgs { target: place("f"), how })
        }
        1 => call(c, Procedure::Mkdir, &MkdirArgs { target: place("d"), attributes }),
        2 => {
            let dir = c.find(root, b"d");
            call(c, Procedure::Rename, &RenameArgs { from: place("f"), to: name(&dir, b"g") })
        }
        3 => {
            let dir = c.find(root, b"d");
            call(c, Procedure::Rename, &RenameArgs { from: name(&dir, b"g"), to: place("h") })
        }
        4 => {
            let file = c.find(root, b"h");
            call(c, Procedure::Link, &LinkArgs { file, link: place("i") })
        }
        5 => call(c, Procedure::Rmdir, &place("d")),
        6 => call(c, Procedure::Remove, &place("h")),
        7 => call(c, Procedure::Remove, &place("i")),
        8 => {
            let attributes = Sattr3 { mode: None, ..attributes };
            call(c, Procedure::Symlink, &SymlinkArgs { target: place("l"), attributes, path: b"to" })
        }
        9 => call(c, Procedure::Mknod, &MknodArgs { target: place("p"), what: MknodData::Fifo(attributes) }),
        10 => call(c, Procedure::Remove, &place("l")),
        _ => call(c, Procedure::Remove, &place("p")),
    }
}

/// Checks the object that change `n` has just made.
fn check_made(c: &mut Client, root: &FileHandle, n: u64, attributes: Sattr3) {
    let (made, is_link) = match n % 12 {
        0 => (b"f", false),
        1 => (b"d", false),
        8 => (b"l", true),
        9 => (b"p", false),
        _ => return,
    };
    let object = c.find(root, made);
    let attr = c.attr(&object);
    assert!(is_link || attributes.mode == Some(attr.mode), "change {n}: mode {:o}", attr.mode);
    assert!(attributes.gid.is_none_or(|gid| gid == attr.gid), "change {n}: group {}", attr.gid);
    assert!(
        !n.is_multiple_of(12) || attributes.size.is_none_or(|size| size == attr.size),
        "change {n}: {}",
        attr.size
    );
    if let SetTime::ClientTime(time) = attributes.mtime {
        assert_eq!(attr.mtime, time, "change {n}");
    }
}

/// Kills the server a `moment` after change `last` was sent. Changes `first` to `last` are sent before. Returns the
/// change that was not answered, if any.
fn until_killed(
    server: &mut Server,
    (first, last): (u64, u64),
    attributes: Sattr3,
    moment: Duration,
) -> Option<Vec<u8>> {
    let mut c = server.connect();
    let root = c.root();
    for n in first..last {
        let record = change(&mut c, &root, n, attributes);
        assert_eq!(status_of(&c.exchange(&record)), Nfsstat3::Ok, "change {n}");
        check_made(&mut c, &root, n, attributes);
    }
    let record = change(&mut c, &root, last, attributes);
    let pid = Pid::from_raw(server.pid().try_into().unwrap()).unwrap();
    let reply = std::thread::scope(|scope| {
        let sent = Instant::now();
        scope.spawn(move || {
            while sent.elapsed() < moment {
                std::hint::spin_loop();
            }
            kill_process(pid, Signal::KILL).unwrap();
        });
        c.try_exchange(&record)
    });
    server.wait();
    server.start();
    match reply {
        Some(reply) => {
            assert_eq!(status_of(&reply), Nfsstat3::Ok, "change {last}");
            None
        }
        None => Some(record),
    }
}

fn killed_again_and_again(mut server: Server, attributes: Sattr3) {
    let mut random = 7u64;
    let mut next = 0;
    for kill in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let last = next + (random >> 33) % 12;
        let moment = Duration::from_micros((random >> 40) % LONGEST);
        let unanswered = until_killed(&mut server, (next, last), attributes, moment);
        let mut c = server.connect();
        if let Some(record) = unanswered {
            let reply = c.exchange(&record);
            assert_eq!(status_of(&reply), Nfsstat3::Ok, "change {last}, {moment:?} before kill {kill}");
        }
        let root = c.root();
        check_made(&mut c, &root, last, attributes);
        next = last + 1;
    }
}

#[test]
fn what_a_kill_cuts_short_is_carried_out_once() {
    killed_again_and_again(Serve::unsquashed().cached().start(), mode(0o640));
}

#[test]
fn also_where_the_log_makes_changes_durable() {
    needs_root!();
    for kind in ["xfs", "ext4"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), kind, 320 << 20) else { return };
        killed_again_and_again(disk.serve().cached().start(), mode(0o640));
    }
}

/// Each creation takes several system calls, so the server is also killed between them.
#[test]
fn creations_with_more_attributes_than_a_mode_are_carried_out_once() {
    needs_root!();
    let mtime = SetTime::ClientTime(Nfstime3 { seconds: 1_000_000_000, nseconds: 5 });
    let attributes =
        Sattr3 { mode: Some(0o2750), gid: Some(1234), size: Some(5000), mtime, ..Sattr3::default() };
    killed_again_and_again(Serve::unsquashed().cached().start(), attributes);
}
