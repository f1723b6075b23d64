//! Tests of the entries of a configuration: they are complete, they name their sources, and what a reload says about
//! them is what it does.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use forebay_config::{Change, Flags, KEYS, Mode, Reloaded, Settings, Source, describe, resolve_text};
use tempfile::TempDir;

fn settings(dir: &Path, text: &str, flags: Flags) -> Settings {
    let flags = Flags { config: Some(dir.join("f.toml")), state_dir: Some("/var/lib/x".into()), ..flags };
    resolve_text(&flags, Some(text)).unwrap().settings
}

/// A file that gives every key a value that is not its default.
fn full(dir: &Path) -> String {
    format!(
        r#"listen = ["127.0.0.1:12049"]
mode = "write-through"
cache = ["/a/1", "/a/2"]
cache_size = "1536MiB"
ram = "65MiB"
miss_ratio_curve = false
portmap = "off"
locks = false
nfs4 = false
nfs4_delegations = false
profile = false
sandbox = "off"
keytab = "/etc/other.keytab"
realms = ["EXAMPLE.ORG"]
idmap_domain = "example.org"
[limits]
threads = 3
workers = 33
worker_queue = 17
memory = "17MiB"
connection_memory = "5MiB"
connections = 5
inflight = 6
shared_inflight = 7
reply_cache_entries = 65
reply_cache_memory = "65KiB"
metadata_memory = "3MiB"
open_files = 17
busy_poll = "3us"
lease = "11s"
idle_timeout = "12s"
stall_timeout = "13s"
drain_timeout = "14s"
[log]
level = "debug"
format = "json"
[tls]
certificate = "/c"
key = "/k"
client_ca = "/a"
kernel = false
[http]
listen = "127.0.0.1:9050"
token_file = "/t"
hosts = ["head.example.org"]
tls = true
[nbd]
listen = ["127.0.0.1:10810"]
insecure = true
client_certificate = false
[[notify]]
name = "page"
kind = "program"
severity = "error"
per_minute = 3
timeout = "20s"
command = ["/bin/page", "a b"]
[[notify]]
name = "chat"
kind = "slack"
severity = "info"
per_minute = 4
timeout = "21s"
url = "/etc/forebay/url"
token_file = "/etc/forebay/token"
ca_file = "/etc/forebay/ca.pem"
[[notify]]
name = "log"
kind = "syslog"
severity = "error"
per_minute = 5
timeout = "22s"
socket = "/run/log"
[[rate_limit]]
name = "desktops"
networks = ["10.1.0.0/16"]
requests_per_second = 1000
bytes_per_second = "100MiB"
burst = "2s"
[[rate_limit]]
name = "scratch"
export = "/data"
requests_per_second = 1001
bytes_per_second = "101MiB"
burst = "3s"
[[policy]]
path = "{}/scratch"
cache = "never"
priority = "low"
streams = "cache"
mode = "write-through"
dirty_time = "32s"
cache_min = "4 MiB"
cache_max = "5 MiB"
[[volume]]
name = "v"
backing = "/dev/v"
mode = "write-through"
read_only = true
[[export]]
path = {dir:?}
name = "/data"
aliases = ["/a \"b\""]
id = 7
tls = "mutual"
delegations = false
policy.cache = "pin"
policy.priority = "high"
policy.streams = "cache"
policy.mode = "write-around"
policy.dirty_time = "31s"
policy.cache_min = "2 MiB"
policy.cache_max = "3 MiB"
[[export.client]]
networks = ["127.0.0.0/8", "tls:host.example.org"]
access = "ro"
squash = "all"
anonuid = 5
anongid = 6
privileged_port = true
manage_gids = true
sec = ["krb5", "sys"]
"#,
        dir.display()
    )
}

fn plain(dir: &Path) -> String {
    format!("[[export]]\npath = {dir:?}\nname = \"/data\"\nid = 7\n")
}

#[test]
fn what_is_described_yields_the_same_settings() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    for text in [full(&dir), plain(&dir)] {
        let first = settings(&dir, &text, Flags::default());
        let again = settings(&dir, &describe(&first.entries(), true), Flags::default());
        let values = |settings: &Settings| {
            settings.entries().into_iter().map(|it| (it.table, it.key, it.value)).collect::<Vec<_>>()
        };
        assert_eq!(values(&first), values(&again), "{}", describe(&first.entries(), true));
    }
}

#[test]
fn every_key_of_a_full_file_is_an_entry_that_names_the_file() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let entries = settings(&dir, &full(&dir), Flags::default()).entries();
    for entry in &entries {
        let expected = if entry.key == "state_dir" { Source::Flag } else { Source::File };
        assert_eq!(entry.source, expected, "{} {}", entry.table, entry.key);
        assert!(entry.value.is_some(), "{} {}", entry.table, entry.key);
    }
    let keys = full(&dir).lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(entries.len(), keys + 1, "the state directory is a flag here");
    let once = entries.iter().filter(|entry| entry.table.numbers.is_empty());
    let once: Vec<_> = once.map(|entry| format!("{}.{}", entry.table.name, entry.key)).collect();
    let once: Vec<_> = once.iter().map(|path| path.trim_start_matches('.')).collect();
    assert_eq!(once, KEYS);
}

#[test]
fn flags_override_the_file_and_a_directory_replaces_its_exports() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let flags = Flags {
        dir: Some(dir.clone()),
        mode: Some(Mode::PassThrough),
        limits: vec![("lease", "20s".to_owned())],
        ..Flags::default()
    };
    let entries = settings(&dir, &format!("nfs4 = false\n{}", plain(&dir)), flags).entries();
    let source = |name: &str, key: &str| {
        entries.iter().find(|entry| entry.table.name == name && entry.key == key).unwrap().source
    };
    assert_eq!((source("", "mode"), source("limits", "lease")), (Source::Flag, Source::Flag));
    assert_eq!((source("", "nfs4"), source("", "locks")), (Source::File, Source::Default));
    assert_eq!((source("export", "path"), source("export", "id")), (Source::Flag, Source::Default));
}

/// Checks that a reload changes exactly the entries that it names.
fn check(before: &Settings, wanted: &Settings) -> Reloaded {
    let reloaded = before.reloaded(wanted, |_| true);
    let after = reloaded.settings.entries();
    for new in wanted.entries() {
        let same = |entry: &&forebay_config::Entry| entry.table.of == new.table.of && entry.key == new.key;
        let same = |entry: &&forebay_config::Entry| same(entry) && entry.table.name == new.table.name;
        let before = before.entries().iter().find(same).cloned();
        let now = after.iter().find(same).map(|entry| entry.value.clone());
        let change = before.as_ref().map_or(new.change, |before| before.change);
        let expected = match change {
            Change::InService => Some(new.value.clone()),
            Change::NeedsRestart => before.map(|before| before.value),
        };
        assert_eq!(now, expected, "{} {}", new.table, new.key);
    }
    reloaded
}

#[test]
fn a_reload_does_what_its_differences_say() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let (one, other) = (full(&dir), plain(&dir));
    let [one, other] = [one, other].map(|text| settings(&dir, &text, Flags::default()));
    let there = check(&other, &one);
    check(&one, &other);
    let again = one.reloaded(&one, |_| true);
    assert!(again.in_service.is_empty() && again.at_next_start.is_empty());
    let lines = |differences: &[forebay_config::Difference]| {
        differences.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let (now, later) = (lines(&there.in_service), lines(&there.at_next_start));
    for line in [
        "mode: \"write-back\" -> \"write-through\"",
        "[limits] connections: 16384 -> 5",
        "[tls] certificate: none -> \"/c\"",
        "[[export]] /data tls: \"optional\" -> \"mutual\"",
        "[[export]] /data delegations: true -> false",
        "nfs4_delegations: true -> false",
        "idmap_domain: none -> \"example.org\"",
        "[[export.client]] /data rule 1 squash: \"root\" -> \"all\"",
    ] {
        assert!(now.iter().any(|it| it == line), "{line}: {now:#?}");
    }
    for line in ["cache: none -> [\"/a/1\", \"/a/2\"]", "nfs4: true -> false"] {
        assert!(later.iter().any(|it| it == line), "{line}: {later:#?}");
    }
}

#[test]
fn rules_and_exports_come_and_go_in_service() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let rule = "[[export.client]]\nnetworks = [\"192.0.2.0/24\"]\n";
    let now = settings(&dir, &plain(&dir), Flags::default());
    let more =
        settings(&dir, &format!("{}{rule}{}", plain(&dir), rule.replace(".2.", ".3.")), Flags::default());
    let added = check(&now, &more);
    assert_eq!(
        added.in_service.last().unwrap().to_string(),
        "[[export.client]] /data rule 2: added with networks = [\"192.0.3.0/24\"]"
    );
    assert_eq!(check(&more, &now).settings.exports, now.exports);

    std::fs::create_dir(dir.join("b")).unwrap();
    let beside = format!("{}[[export]]\npath = {:?}\nname = \"/b\"\n", plain(&dir), dir.join("b"));
    let two = settings(&dir, &beside, Flags::default());
    assert_eq!(now.added_exports(&two).map(|export| &*export.name).collect::<Vec<_>>(), ["/b"]);
    let line = |differences: &[forebay_config::Difference]| differences[0].to_string();
    let added = now.reloaded(&two, |export| export.name == "/b");
    assert_eq!(added.settings.exports, two.exports);
    assert!(line(&added.in_service).starts_with("[[export]] /b: added with path = "), "{added:?}");
    assert!(added.at_next_start.is_empty(), "{added:?}");
    let refused = now.reloaded(&two, |_| false);
    assert_eq!(refused.settings.exports, now.exports);
    assert!(line(&refused.at_next_start).starts_with("[[export]] /b: added"), "{refused:?}");
    let gone = two.reloaded(&now, |_| true);
    assert_eq!(gone.settings.exports, now.exports);
    assert!(line(&gone.in_service).starts_with("[[export]] /b: removed"), "{gone:?}");
    assert!(gone.at_next_start.is_empty(), "{gone:?}");
}

/// Until the next start the present export has the directory and its id.
#[test]
fn an_export_with_the_directory_of_a_present_one_waits_for_the_next_start() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    std::fs::create_dir(dir.join("b")).unwrap();
    let now = settings(&dir, &plain(&dir), Flags::default());
    // The present export is elsewhere at the next start, and another one is where it is now.
    let moved = plain(&dir.join("b"));
    let text = format!("{moved}[[export]]\npath = {:?}\nname = \"/c\"\n", now.exports[0].path);
    let wanted = settings(&dir, &text, Flags::default());
    assert_ne!(wanted.exports[0].path, now.exports[0].path);
    assert_eq!(now.added_exports(&wanted).count(), 0);
    let found = now.reloaded(&wanted, |_| true);
    assert_eq!(found.settings.exports, now.exports);
    assert!(found.in_service.is_empty(), "{found:?}");
}
