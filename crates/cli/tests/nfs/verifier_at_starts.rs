//! Tests of the write verifier at starts after a clean stop: it changes if the start may lack data that the last server
//! acknowledged. Then clients write again what they have not committed.

use crate::harness::*;
use crate::pools_in_turn::use_pool;

/// The contents that a client has not committed.
const UNSTABLE: &[u8] = b"unstable";

/// Has a client write unstable data, stops the server cleanly, and changes something by `meanwhile`. Then the client
/// commits. Returns true if the next server has the data, and true if it has another verifier.
fn committed_after(meanwhile: impl FnOnce(&mut Server)) -> (bool, bool) {
    let mut server = Serve::unsquashed().plain().start();
    server.stop();
    use_pool(&mut server, "first", &[]);
    server.start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
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
