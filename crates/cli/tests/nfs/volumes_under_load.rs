//! Tests of volumes whose clients, or those of an export, have many requests in flight.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_wire::nfs3::{Procedure, StableHow, WriteArgs};
use rustix::process::Signal;

use crate::harness::*;
use crate::nbd_client;
use crate::volumes::{Nbd, READ, Rig, WRITE};

const BLOCK: usize = 4096;

#[test]
fn a_resize_ends_beside_writes_past_the_log() {
    let rig = Rig::new();
    let mut nbd = rig.create();
    rig.volume(&["mode", "scratch", "write-through"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = DoneAtEnd(&done);
        for at in 0..4 {
            let (mut nbd, done) = (rig.open().unwrap(), &done);
            scope.spawn(move || {
                let begin = |nbd: &mut Nbd, n: usize| {
                    nbd.send(WRITE, 0, (at * 32 + n % 32) * BLOCK, BLOCK, &[1; BLOCK])
                };
                (0..32).for_each(|n| begin(&mut nbd, n));
                for n in 0.. {
                    assert_eq!(nbd.error(), 0);
                    if done.load(Ordering::SeqCst) {
                        break;
                    }
                    begin(&mut nbd, n);
                }
            });
        }
        wait_for(|| rig.volume(&["show", "scratch"])["writes"].as_u64() > Some(1000));
        assert_eq!(rig.volume(&["resize", "scratch", "8MiB"])["size_bytes"], 8 << 20);
    });
    assert_eq!(rig.open().unwrap().size, 8 << 20);
    assert!(nbd.read(0, 128 * BLOCK) == [1; 128 * BLOCK]);
}

/// The requests of both doors wait for the same devices.
#[test]
fn a_busy_client_of_an_export_is_held_back_while_a_client_of_a_volume_is_active() {
    let rig = nbd_client::Rig::new(nbd_client::PLAIN);
    // The client of the volume always has a request in flight.
    let mut light = rig.open();
    rig.export.signal(Signal::STOP);
    light.begin(READ, 0, BLOCK);
    let mut busy = rig.server.connect_from([127, 0, 0, 2]);
    let root = busy.root();
    let file = busy.new_file(&root, b"file", 0o644);
    let data = [7; BLOCK];
    let args = WriteArgs { file, offset: 0, count: BLOCK as u32, stable: StableHow::FileSync, data: &data };
    wait_for(|| {
        let calls: Vec<_> = (0..64).map(|_| call(&mut busy, Procedure::Write, &args)).collect();
        calls.iter().for_each(|call| busy.send(call));
        (0..64).for_each(|_| _ = busy.receive().unwrap());
        rig.server.status()["held_back"].as_u64() > Some(0)
    });
    rig.export.signal(Signal::CONT);
    assert_eq!(light.error(), 0);
}
