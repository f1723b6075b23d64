//! Tests of `[[policy]]` in the configuration with a real server: what is cached how, by paths below exports.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::*;

/// Bytes of a test file.
const SIZE: usize = 64 << 10;

/// Returns a configuration with an export and further tables.
pub(crate) fn toml(more: &str) -> String {
    format!(
        "[[export]]\npath = \"@/data\"\nname = \"/\"\n[[export.client]]\nnetworks = [\"127.0.0.1\"]\nsquash = \"none\"\n{more}"
    )
}

fn rule(path: &str, part: &str) -> String {
    format!("[[policy]]\npath = \"@/data/{path}\"\n{part}\n")
}

/// Replaces the configuration, and returns what `forebay reload` says.
fn reload(server: &Server, more: &str) -> String {
    let home = server.home().to_str().unwrap();
    std::fs::write(server.home().join("forebay.toml"), toml(more).replace('@', home)).unwrap();
    String::from_utf8(server.try_ask(&["reload"]).stderr).unwrap()
}

fn asked(server: &Server, words: &[&str], path: &Path) -> Value {
    let words = [words, &[path.to_str().unwrap(), "--json"]].concat();
    serde_json::from_str(&server.ask(&words)).unwrap()
}

fn cached(server: &Server, path: &str) -> Value {
    asked(server, &["cached"], &server.data.join(path))
}

/// Returns the rule for keeping data that holds at a path, with its reason.
fn keep(server: &Server, path: &str) -> Value {
    cached(server, path)["policy"]["cache"].clone()
}

/// Returns the bytes that are cached of a path.
fn held(server: &Server, path: &str) -> u64 {
    let cached = cached(server, path);
    cached["ssd_bytes"].as_u64().unwrap() + cached["ram_bytes"].as_u64().unwrap()
}

fn from_file(server: &Server, value: &str, path: &str) -> Value {
    json!({"value": value, "source": "configuration", "path": server.data.join(path)})
}

fn new_file(c: &mut Client, dir: &FileHandle) -> FileHandle {
    let file = c.new_file(dir, b"f", 0o644);
    c.write(&file, 0, &[1; SIZE], StableHow::FileSync).unwrap();
    file
}

#[test]
fn a_path_has_the_policy_of_the_configuration_also_once_it_is_made_or_renamed() {
    let mut server = Serve::new()
        .cached()
        .exports(&toml(&(rule("scratch", "cache = \"never\"") + &rule("late/inner", "cache = \"pin\""))))
        .start_on(|data| std::fs::create_dir(data.join("scratch")).unwrap());
    let mut c = server.connect();
    let root = c.root();
    let scratch = c.find(&root, b"scratch");
    new_file(&mut c, &scratch);
    server.flush();
    assert_eq!(
        (keep(&server, "scratch/f"), held(&server, "scratch")),
        (from_file(&server, "never", "scratch"), 0)
    );
    // A path that nothing has is shown as such, and an event names it.
    let text = server.ask(&["policy", "show"]);
    assert!(text.contains("late/inner") && text.contains("configuration; nothing has the path"), "{text}");
    let events = server.ask(&["events"]);
    assert!(events.contains("holds for nothing") && events.contains("late/inner"), "{events}");
    let late = c.new_dir(&root, b"late", 0o755);
    c.new_dir(&late, b"inner", 0o755);
    wait_for(|| keep(&server, "late/inner") == from_file(&server, "pin", "late/inner"));

    // The rule follows a rename, over a restart as well.
    c.rename((&root, b"scratch"), (&root, b"renamed")).unwrap();
    for _ in 0..2 {
        assert_eq!(keep(&server, "renamed/f"), from_file(&server, "never", "renamed"));
        server.restart();
    }
    let events = server.ask(&["events"]);
    assert!(events.contains("keeps the policy until something else has the path"), "{events}");
    // A new directory with the path takes the rule over. The files of the other one learn that.
    let mut c = server.connect();
    let again = c.new_dir(&root, b"scratch", 0o755);
    wait_for(|| keep(&server, "scratch") == from_file(&server, "never", "scratch"));
    assert_eq!(keep(&server, "renamed/f")["source"], "default");
    let renamed = c.find(&root, b"renamed");
    let file = c.find(&renamed, b"f");
    c.write(&file, 0, &[2; SIZE], StableHow::FileSync).unwrap();
    new_file(&mut c, &again);
    server.flush();
    assert_eq!((held(&server, "scratch"), held(&server, "renamed") >= SIZE as u64), (0, true));
}

#[test]
fn a_rule_of_the_command_comes_before_the_one_of_the_configuration() {
    let file = rule("dir", "cache = \"never\"\nstreams = \"cache\"\nmode = \"write-through\"");
    let server = Serve::new()
        .cached()
        .exports(&toml(&file))
        .start_on(|data| std::fs::create_dir(data.join("dir")).unwrap());
    let set = |words: &[&str]| asked(&server, &[&["policy"], words].concat(), &server.data.join("dir"));
    let shown = set(&["set", "--cache", "pin", "--mode", "write-back"]);
    assert_eq!(shown["in_force"]["cache"]["value"], "pin");
    assert_eq!(shown["in_force"]["streams"]["source"], "configuration");
    assert_eq!(shown["in_force"]["mode"], from_file(&server, "write-through", "dir"));
    let shown = set(&["unset"]);
    assert_eq!(shown["in_force"]["cache"], from_file(&server, "never", "dir"));
    let path = server.data.join("dir");
    let refused = server.try_ask(&["policy", "unset", path.to_str().unwrap()]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("rules of the configuration are changed there"), "{said}");
}

#[test]
fn a_reload_changes_policies_of_paths_and_one_with_a_mistake_changes_nothing() {
    let never = rule("dir", "cache = \"never\"");
    let server = Serve::new().cached().exports(&toml("")).start_on(|data| {
        std::fs::create_dir(data.join("dir")).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let dir = c.find(&root, b"dir");
    new_file(&mut c, &dir);
    server.flush();
    assert!(held(&server, "dir") >= SIZE as u64);
    let path = server.data.join("dir");
    let said = reload(&server, &never);
    assert!(said.contains(&format!("[[policy]] {}: added", path.display())), "{said}");
    assert_eq!(keep(&server, "dir/f"), from_file(&server, "never", "dir"));
    let said = reload(&server, &rule("dir", "cache = \"pin\""));
    assert!(said.contains(&format!("[[policy]] {} cache: \"never\" -> \"pin\"", path.display())), "{said}");
    let elsewhere = "[[policy]]\npath = \"/elsewhere\"\ncache = \"never\"\n";
    for (mistake, told) in [
        (elsewhere.to_owned(), "/elsewhere is below no export"),
        (never.clone() + &never, "already has a [[policy]]"),
        (rule("", "cache = \"never\""), "is an export; write its policy into [[export]]"),
    ] {
        let said = reload(&server, &mistake);
        assert!(said.contains(told), "{said}");
        assert_eq!(keep(&server, "dir/f"), from_file(&server, "pin", "dir"));
    }
    let said = reload(&server, "");
    assert!(said.contains("removed"), "{said}");
    assert_eq!(keep(&server, "dir/f")["source"], "default");
}

/// A client made the link, so it must neither stop the start nor lead a rule out of the export.
#[test]
fn a_symbolic_link_at_a_path_is_no_mistake_and_has_no_policy() {
    let file = rule("link", "cache = \"never\"") + &rule("out/x", "cache = \"never\"");
    let server = Serve::new().cached().exports(&toml(&file)).start_on(|data| {
        std::fs::create_dir(data.join("dir")).unwrap();
        std::os::unix::fs::symlink("dir", data.join("link")).unwrap();
        std::os::unix::fs::symlink("/", data.join("out")).unwrap();
    });
    assert_eq!(keep(&server, "dir")["source"], "default");
    let text = server.ask(&["policy", "show"]);
    assert_eq!(text.matches("nothing has the path").count(), 2, "{text}");
    // The paths that a damaged file of the state directory forgets are found again.
    let mut server = server;
    server.stop();
    std::fs::write(server.state.join("policy-paths.json"), "{").unwrap();
    server.start();
    assert!(server.ask(&["events"]).contains("policy-paths.json is damaged"));
}

#[test]
fn a_served_file_system_that_does_not_answer_holds_up_no_reload() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(silent) = Silent::mount_answering(home.path()) else { return };
    let at = silent.at.display().to_string();
    let more = format!(
        "[[export]]\npath = '{at}'\nname = '/silent'\n[[policy]]\npath = '{at}/later'\ncache = 'never'\n"
    );
    let well = Serve::new().cached().exports(&toml(&more));
    let server = well.start_on(|data| std::fs::create_dir(data.join("dir")).unwrap());
    // Dropped before the server: that would wait for it.
    let silent = silent;
    silent.fall_silent();
    wait_for(|| silent.is_awaited());
    let home = server.home().to_str().unwrap();
    let exports = toml(&(more + &rule("dir", "cache = 'never'"))).replace('@', home);
    std::fs::write(server.home().join("forebay.toml"), exports).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
    let mut reload = command.arg("reload").arg("--state-dir").arg(&server.state).spawn().unwrap();
    wait_for(|| reload.try_wait().unwrap().is_some_and(|status| status.success()));
    assert_eq!(keep(&server, "dir"), from_file(&server, "never", "dir"));
    let later = format!("{at}/later");
    let asked: [&[&str]; 3] = [
        &["policy", "show", &later],
        &["policy", "set", &later, "--cache", "pin"],
        &["policy", "unset", &later],
    ];
    std::thread::scope(|scope| {
        let asked = asked.map(|words| scope.spawn(|| server.try_ask(words)));
        for asked in asked {
            let refused = asked.join().unwrap();
            let said = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.code(), Some(1), "{said}");
            assert!(said.contains("the file system does not answer") && said.contains("again"), "{said}");
        }
    });
}
