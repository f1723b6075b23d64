//! A server that is killed while it carries a change out: the next one knows what became of it, and a client that asks
//! again is told what it would have been told.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;

/// Enough for several to hit a change between the directory and the log.
const KILLS: u32 = 40;
/// A change takes less than this from the client's sending it.
const LONGEST: u64 = 400;

/// Change `n` of a client that makes, renames, links and removes one thing of each kind again and again: each would fail
/// if it was carried out twice.
fn change(c: &mut Client, root: &FileHandle, n: u64) -> Vec<u8> {
    let place = |child: &'static str| name(root, child.as_bytes());
    let attributes = mode(0o640);
    let nothing = Sattr3::default();
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
            call(c, Procedure::Symlink, &SymlinkArgs { target: place("l"), attributes: nothing, path: b"to" })
        }
        9 => call(c, Procedure::Mknod, &MknodArgs { target: place("p"), what: MknodData::Fifo(attributes) }),
        10 => call(c, Procedure::Remove, &place("l")),
        _ => call(c, Procedure::Remove, &place("p")),
    }
}

/// Kills the server a `moment` after change `last` was sent, which comes after `first` and those between. Returns it, if it
/// was not answered.
fn until_killed(server: &mut Server, first: u64, last: u64, moment: Duration) -> Option<Vec<u8>> {
    let mut c = server.connect();
    let root = c.root();
    for n in first..last {
        let record = change(&mut c, &root, n);
        assert_eq!(status_of(&c.exchange(&record)), Nfsstat3::Ok, "change {n}");
    }
    let record = change(&mut c, &root, last);
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

fn killed_again_and_again(mut server: Server) {
    let mut random = 7u64;
    let mut next = 0;
    for kill in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let last = next + (random >> 33) % 12;
        let moment = Duration::from_micros((random >> 40) % LONGEST);
        if let Some(record) = until_killed(&mut server, next, last, moment) {
            let reply = server.connect().exchange(&record);
            assert_eq!(status_of(&reply), Nfsstat3::Ok, "change {last}, {moment:?} before kill {kill}");
        }
        next = last + 1;
    }
}

#[test]
fn what_a_kill_cuts_short_is_carried_out_once() {
    killed_again_and_again(Serve::unsquashed().cached().start());
}

#[test]
fn also_where_the_log_makes_changes_durable() {
    needs_root!();
    for kind in ["xfs", "ext4"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), kind, 320 << 20) else { return };
        killed_again_and_again(disk.serve().cached().start());
    }
}
