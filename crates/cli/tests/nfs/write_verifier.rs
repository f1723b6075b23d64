//! Tests of the write verifier: it changes if acknowledged data may be lost, at a start after a clean stop or with some
//! of the cache devices. Then clients write again what they have not committed.

use std::os::unix::fs::FileExt;

use crate::harness::*;
use crate::pools_in_turn::{server_and_empty_file, use_pool};

/// The contents that a client has not committed.
const UNSTABLE: &[u8] = b"unstable";

/// Has a client write unstable data, stops the server cleanly, and changes something by `meanwhile`. Then the client
/// commits. Returns true if the next server has the data, and true if it has another verifier.
fn committed_after(meanwhile: impl FnOnce(&mut Server)) -> (bool, bool) {
    let (mut server, file) = server_and_empty_file();
    server.flush();
    let wrote = server.connect().write(&file, 0, UNSTABLE, StableHow::Unstable).unwrap();
    server.stop();
    meanwhile(&mut server);
    server.start();
    let mut c = server.connect();
    let verifier = c.commit(&file, 0, 0).unwrap().verf;
    (c.read(&file, 0, 100).unwrap().data == UNSTABLE, verifier != wrote.verf)
}

#[test]
fn with_the_same_cache_it_stays() {
    assert_eq!(committed_after(|_| ()), (true, false));
}

#[test]
fn with_another_cache_it_changes() {
    let format = |server: &mut Server| use_pool(server, "second", &["--format-cache"]);
    assert_eq!(committed_after(format), (false, true));
}

#[test]
fn without_the_cache_it_changes() {
    let give_up = |server: &mut Server| {
        server.set_flags(&["--squash", "none", "--mode", "pass-through"]);
        std::fs::remove_file(server.state.join("cache-in-use")).unwrap();
    };
    assert_eq!(committed_after(give_up), (false, true));
}

/// An administrator removes the record to use devices that missed changes.
#[test]
fn with_a_cache_that_may_have_missed_changes_it_changes() {
    let forget = |server: &mut Server| std::fs::remove_file(server.state.join("cache-epochs")).unwrap();
    assert!(committed_after(forget).1);
}

#[test]
fn with_an_adopted_directory_it_changes() {
    let mut server = Serve::unsquashed().plain().start();
    let verifier = |server: &Server| server.status()["write_verifier"].as_str().unwrap().to_owned();
    let before = verifier(&server);
    server.stop();
    std::fs::rename(&server.data, server.home().join("original")).unwrap();
    std::fs::create_dir(&server.data).unwrap();
    assert!(server.refusal().contains("forebay adopt"));
    server.ask(&["adopt", server.data.to_str().unwrap(), "--same"]);
    server.start();
    let after = verifier(&server);
    assert_ne!(after, before);
    server.stop();
    server.start();
    assert_eq!(verifier(&server), after, "an adoption counts once");
}

/// Two of three devices die while the third one serves on.
#[test]
fn with_the_loss_of_both_copies_it_changes() {
    let mut losses = 0;
    for kept in 0..3 {
        let mut server = Serve::unsquashed().plain().start();
        server.stop();
        let devices = [0, 1, 2].map(|leg| server.home().join(format!("leg-{leg}")));
        let mut flags = vec!["--squash", "none", "--mode", "write-back", "--cache-size", "64MiB"];
        devices.iter().for_each(|device| flags.extend(["--cache", device.to_str().unwrap()]));
        server.set_flags(&flags);
        server.start();
        let mut c = server.connect();
        let root = c.root();
        let file = c.new_file(&root, b"f", 0o644);
        let wrote = c.write(&file, 0, &[1; 65_536], StableHow::Unstable).unwrap();
        // After a restart no block is in memory.
        server.restart();
        let lost = devices.iter().enumerate().filter(|(leg, _)| *leg != kept);
        for (_, device) in lost {
            std::fs::File::options().write(true).open(device).unwrap().set_len(0).unwrap();
        }
        let mut c = server.connect();
        let is_lost = c.read(&file, 0, 65_536).status() != Nfsstat3::Ok;
        let verifier = c.commit(&file, 0, 0).unwrap().verf;
        assert!(!is_lost || verifier != wrote.verf, "only device {kept} is left");
        losses += u32::from(is_lost);
    }
    assert_eq!(losses, 1, "two devices have the copies");
}

/// Both copies of a block rot on devices that answer.
#[test]
fn with_the_damage_of_both_copies_it_changes() {
    const PATTERN: [u8; 4096] = [0xa7; 4096];
    let (mut server, file) = server_and_empty_file();
    let wrote = server.connect().write(&file, 0, &PATTERN, StableHow::Unstable).unwrap();
    // After a restart no block is in memory.
    server.restart();
    for leg in ["first-a", "first-b"] {
        let device = server.home().join(leg);
        let bytes = std::fs::read(&device).unwrap();
        let at = bytes.chunks(PATTERN.len()).position(|block| block == PATTERN).unwrap();
        let device = std::fs::File::options().write(true).open(device).unwrap();
        device.write_all_at(&[0; 4096], (at * PATTERN.len()) as u64).unwrap();
    }
    let mut c = server.connect();
    assert_ne!(c.read(&file, 0, 4096).status(), Nfsstat3::Ok);
    assert_ne!(c.commit(&file, 0, 0).unwrap().verf, wrote.verf);
}
