//! Tests of two servers whose directories are in one another.

use std::path::{Path, PathBuf};

use crate::harness::*;

/// Returns a directory `outer` with a directory `inner` in it.
fn nested() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let outer = home.path().canonicalize().unwrap().join("outer");
    let inner = outer.join("some/inner");
    std::fs::create_dir_all(&inner).unwrap();
    (home, outer, inner)
}

fn serve(data: &Path) -> Serve {
    Serve::new().data_at(data)
}

#[test]
fn directories_in_one_another_have_one_server_in_either_order() {
    let (_home, outer, inner) = nested();
    let mut first = serve(&outer).start();
    let second = serve(&inner).prepared();
    let said = second.refusal();
    assert!(
        said.contains(&format!("it lies in {}, which another forebay serves", outer.display())),
        "{said}"
    );
    first.stop();
    let mut second = second;
    second.start();
    let said = first.refusal();
    assert!(said.contains("another forebay serves a directory in it"), "{said}");
    // A directory beside it is nobody's.
    let beside = outer.join("some/beside");
    std::fs::create_dir(&beside).unwrap();
    serve(&beside).start();
    second.kill();
    first.start();
}

#[test]
fn a_directory_of_another_server_is_a_mistake_at_a_reload() {
    let (_home, outer, inner) = nested();
    let export = |path: &Path, name: &str| {
        let path = path.display();
        format!("[[export]]\npath = '{path}'\nname = '{name}'\n[[export.client]]\nnetworks = ['127.0.0.1']\n")
    };
    let elsewhere = outer.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let mut first = Serve::new().plain().exports(&export(&elsewhere, "/elsewhere")).start();
    let second = serve(&inner).start();
    let both = export(&elsewhere, "/elsewhere") + &export(&outer, "/outer");
    first.configure(&both);
    let refused = first.try_ask(&["reload"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("serves a directory in it"), "{said}");
    drop(second);
    // One server may export directories in one another, also if the outer one comes later.
    first.ask(&["reload"]);
    let said = serve(&inner).prepared().refusal();
    assert!(said.contains("which another forebay serves"), "{said}");
    first.restart();
}

#[test]
fn state_is_kept_apart_from_other_servers_and_their_clients() {
    let (_home, outer, inner) = nested();
    let with_state = |at: &Path| {
        let mut server = Serve::new().plain().prepared();
        server.state = at.to_owned();
        server
    };
    let mut first = serve(&outer).start();
    let mut served = with_state(&inner.join("new"));
    let said = served.refusal();
    assert!(said.contains(&format!("lies in {}, which another forebay serves", outer.display())), "{said}");
    assert!(!inner.join("new").exists(), "nothing is left in the directory of the other server");
    first.stop();
    served.start();
    let said = first.refusal();
    assert!(said.contains("or keeps its state or cache there"), "{said}");
    served.kill();
    let below = first.state.join("below");
    let said = with_state(&below).refusal();
    assert!(said.contains("is the state directory of another server"), "{said}");
    assert!(!below.exists());
    let said = with_state(first.state.parent().unwrap()).refusal();
    assert!(said.contains("is the state directory of another server"), "{said}");
}

#[test]
fn cache_files_are_kept_apart_from_the_clients_of_other_servers() {
    let (_home, outer, inner) = nested();
    let cache = inner.join("cache");
    let flags = ["--mode", "write-back", "--cache", cache.to_str().unwrap(), "--cache-size", "64MiB"];
    let mut first = serve(&outer).start();
    let mut second = Serve::new().flags(&flags).prepared();
    let said = second.refusal();
    assert!(said.contains(&format!("lies in {}, which another forebay serves", outer.display())), "{said}");
    assert!(!cache.exists(), "nothing is left in the directory of the other server");
    first.stop();
    second.start();
    let said = first.refusal();
    assert!(said.contains("or keeps its state or cache there"), "{said}");
    second.kill();
    first.start();
}
