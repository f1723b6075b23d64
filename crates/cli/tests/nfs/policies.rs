//! Tests of `forebay policy` with a real server: what is cached how, by directory, by file and by export.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::*;

/// Bytes of a test file.
const SIZE: usize = 256 << 10;

fn asked(server: &Server, words: &[&str], path: &Path) -> Value {
    let words = [words, &[path.to_str().unwrap(), "--json"]].concat();
    serde_json::from_str(&server.ask(&words)).unwrap()
}

/// Returns what `forebay cached` says of a path.
fn cached(server: &Server, path: &str) -> Value {
    asked(server, &["cached"], &server.data.join(path))
}

fn policy(server: &Server, verb: &str, path: &str, rule: &[&str]) -> Value {
    asked(server, &[&["policy", verb], rule].concat(), &server.data.join(path))
}

/// Returns the bytes that are cached of a path: on the devices and in memory.
fn held(server: &Server, path: &str) -> (u64, u64) {
    let cached = cached(server, path);
    (cached["ssd_bytes"].as_u64().unwrap(), cached["ram_bytes"].as_u64().unwrap())
}

fn fill(c: &mut Client, file: &FileHandle, byte: u8) {
    for offset in (0..SIZE).step_by(64 << 10) {
        c.write(file, offset as u64, &[byte; 64 << 10], StableHow::FileSync).unwrap();
    }
}

/// Reads a file, each part twice.
fn read(c: &mut Client, file: &FileHandle, byte: u8) {
    for offset in (0..SIZE).step_by(32 << 10) {
        for _ in 0..2 {
            assert!(c.read(file, offset as u64, 32 << 10).unwrap().data == [byte; 32 << 10]);
        }
    }
}

#[test]
fn a_directory_whose_data_is_never_kept_holds_nothing_in_the_cache() {
    let mut server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"scratch", 0o755);
    let other = c.new_file(&root, b"other", 0o644);
    let shown = policy(&server, "set", "scratch", &["--cache", "never"]);
    assert_eq!(shown["in_force"]["cache"]["value"], "never");
    let file = c.new_file(&dir, b"f", 0o644);
    for file in [&file, &other] {
        fill(&mut c, file, 1);
    }
    assert!(server.status()["pool"]["dirty_bytes"].as_u64().unwrap() > 0, "writes go through the log");
    server.flush();
    read(&mut c, &file, 1);
    assert_eq!(held(&server, "scratch"), (0, 0));
    assert_eq!(held(&server, "other").0, SIZE as u64);
    // After a restart a client uses its handle without a look at the name.
    server.restart();
    let mut c = server.connect();
    read(&mut c, &file, 1);
    read(&mut c, &other, 1);
    fill(&mut c, &file, 2);
    server.flush();
    assert_eq!(held(&server, "scratch"), (0, 0));
    assert_eq!(held(&server, "other").0, SIZE as u64);
    // The rule follows the directory; a new directory with the old name has none.
    c.rename((&root, b"scratch"), (&root, b"renamed")).unwrap();
    let again = c.new_dir(&root, b"scratch", 0o755);
    let kept = c.new_file(&again, b"f", 0o644);
    let renamed = c.find(&root, b"renamed");
    let more = c.new_file(&renamed, b"more", 0o644);
    for file in [&kept, &more] {
        fill(&mut c, file, 3);
    }
    server.flush();
    assert_eq!((held(&server, "renamed"), held(&server, "scratch").0), ((0, 0), SIZE as u64));
    let why = cached(&server, "renamed/more")["policy"]["cache"].clone();
    assert_eq!(why, json!({"value": "never", "source": "command", "path": server.data.join("renamed")}));
    // A file that moves gets the policy of its new directory.
    c.rename((&again, b"f"), (&renamed, b"moved")).unwrap();
    assert_eq!(held(&server, "renamed/moved"), (0, 0));
    c.rename((&renamed, b"more"), (&again, b"more")).unwrap();
    read(&mut c, &more, 3);
    assert_eq!(held(&server, "scratch/more").1, SIZE as u64);
    policy(&server, "unset", "renamed", &[]);
    let moved = c.find(&renamed, b"moved");
    read(&mut c, &moved, 3);
    assert_eq!(held(&server, "renamed/moved").1, SIZE as u64);
}

#[test]
fn a_directory_that_moves_into_another_policy_takes_its_files_along() {
    let server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let [from, scratch] = [&b"from"[..], b"scratch"].map(|name| c.new_dir(&root, name, 0o755));
    let tree = c.new_dir(&from, b"tree", 0o755);
    let inner = c.new_dir(&tree, b"inner", 0o755);
    let file = c.new_file(&inner, b"f", 0o644);
    policy(&server, "set", "scratch", &["--cache", "never"]);
    fill(&mut c, &file, 1);
    server.flush();
    assert_eq!(held(&server, "from").0, SIZE as u64);
    c.rename((&from, b"tree"), (&scratch, b"tree")).unwrap();
    wait_for(|| held(&server, "scratch") == (0, 0));
    read(&mut c, &file, 1);
    assert_eq!(held(&server, "scratch"), (0, 0));
    c.rename((&scratch, b"tree"), (&from, b"tree")).unwrap();
    read(&mut c, &file, 1);
    assert_eq!(held(&server, "from").1, SIZE as u64);
}

#[test]
fn pinned_data_stays_while_other_data_turns_the_cache_over() {
    let mut server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"pinned", 0o755);
    let (file, normal) = (c.new_file(&dir, b"f", 0o644), c.new_file(&root, b"normal", 0o644));
    let big = c.new_file(&root, b"big", 0o644);
    policy(&server, "set", "pinned", &["--cache", "pin"]);
    for file in [&file, &normal] {
        fill(&mut c, file, 1);
    }
    server.flush();
    let pinned = policy(&server, "show", "pinned", &[])["pinned_bytes"].clone();
    assert_eq!(pinned, SIZE);
    for round in 0..2 {
        // The rule counts after a restart as well, for files that nobody has used since.
        if round == 1 {
            server.restart();
            c = server.connect();
            wait_for(|| policy(&server, "show", "pinned", &[])["pinned_bytes"] == SIZE);
        }
        // More than half of the devices is in use then, so there is no room for all data.
        for number in 0..18 {
            for offset in 0..256 {
                let at = (number % 6 * 256 + offset) << 16;
                c.write(&big, at, &[number as u8; 64 << 10], StableHow::FileSync).unwrap();
            }
            server.flush();
        }
        wait_for(|| held(&server, "pinned").0 == SIZE as u64);
        assert_eq!(held(&server, "normal").0, 0, "round {round}");
    }
    read(&mut c, &file, 1);
}

#[test]
fn a_long_read_fills_a_cache_without_room_only_where_streams_are_cached() {
    let server = Serve::unsquashed().cached().start_on(|data| {
        for (dir, files) in [("past", 8), ("cached", 1)] {
            std::fs::create_dir(data.join(dir)).unwrap();
            for n in 0..files {
                std::fs::write(data.join(dir).join(format!("f{n}")), vec![7; 8 << 20]).unwrap();
            }
        }
        std::fs::File::create(data.join("filler")).unwrap().set_len(192 << 20).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    policy(&server, "set", "cached", &["--streams", "cache"]);
    // As long as there is unused space, every stream is cached.
    let filler = c.find(&root, b"filler");
    for offset in 0..192 << 4 {
        assert_eq!(c.read(&filler, offset << 16, 64 << 10).unwrap().data.len(), 64 << 10);
    }
    let mut read = |dir: &str, file: &str| {
        let dir = c.find(&root, dir.as_bytes());
        let file = c.find(&dir, file.as_bytes());
        for offset in 0..128 {
            assert!(c.read(&file, offset << 16, 64 << 10).unwrap().data == [7; 64 << 10]);
        }
    };
    let all = |path: &str| {
        let (ssd, ram) = held(&server, path);
        ssd + ram
    };
    // The first ones may find space that the blocks before have not reached yet. Of a stream that goes past the cache,
    // only the blocks are there that came before the stream was known as one.
    let mut goes_past = |n: usize| {
        let file = format!("f{n}");
        read("past", &file);
        all(&format!("past/{file}")) <= 2 << 20
    };
    assert!((0..8).any(&mut goes_past), "{} bytes", all("past"));
    read("cached", "f0");
    // A block on its way from memory to the devices counts nowhere.
    wait_for(|| all("cached") >= 8 << 20);
}

#[test]
fn the_configuration_has_a_rule_for_an_export_and_the_nearest_rule_counts() {
    let toml = |policy: &str| {
        format!(
            "[[export]]\npath = \"@/data\"\nname = \"/\"\n{policy}\n[[export.client]]\nnetworks = [\"127.0.0.1\"]\nsquash = \"none\"\n"
        )
    };
    let with = toml("policy = { cache = \"never\", streams = \"cache\" }");
    let server = Serve::new().cached().exports(&with).start_on(|data| {
        std::fs::create_dir(data.join("dir")).unwrap();
    });
    let export = json!({"value": "never", "source": "configuration", "path": server.data});
    assert_eq!(cached(&server, "dir")["policy"]["cache"], export);
    let shown = policy(&server, "set", "dir", &["--cache", "normal"]);
    assert_eq!(shown["in_force"]["cache"]["value"], "normal");
    assert_eq!(shown["in_force"]["streams"]["source"], "configuration");
    assert_eq!(shown["rules"].as_array().unwrap().len(), 2);
    assert!(server.ask(&["config", "show"]).contains("policy.cache = \"never\""));
    let text = server.ask(&["policy", "show"]);
    assert!(text.contains("configuration") && text.contains("command"), "{text}");
    let mut c = server.connect();
    let root = c.root();
    let dir = c.find(&root, b"dir");
    let files = [c.new_file(&root, b"f", 0o644), c.new_file(&dir, b"f", 0o644)];
    for file in &files {
        fill(&mut c, file, 1);
    }
    server.flush();
    assert_eq!((held(&server, "f"), held(&server, "dir").0), ((0, 0), SIZE as u64));
    let home = server.home().to_str().unwrap();
    std::fs::write(server.home().join("forebay.toml"), toml("").replace('@', home)).unwrap();
    let reloaded = String::from_utf8(server.try_ask(&["reload"]).stderr).unwrap();
    assert!(reloaded.contains("policy.cache: \"never\" -> none"), "{reloaded}");
    assert_eq!(cached(&server, "f")["policy"]["cache"]["source"], "default");
    read(&mut c, &files[0], 1);
    assert_eq!(held(&server, "f").1, SIZE as u64);
}

#[test]
fn a_rule_for_what_is_not_served_or_not_there_is_refused_and_changes_nothing() {
    let mut server = Serve::unsquashed().cached().start_on(|data| {
        std::fs::create_dir(data.join("dir")).unwrap();
        std::os::unix::fs::symlink("nowhere", data.join("link")).unwrap();
    });
    let refusal = |words: &[&str]| {
        let output = server.try_ask(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let path = |name: &str| server.data.join(name).to_str().unwrap().to_owned();
    let set = |path: &str| refusal(&["policy", "set", path, "--cache", "pin"]);
    assert!(set(&path("missing")).contains("No such file"));
    assert!(set(&path("link")).contains("No such file"));
    assert!(set("/").contains("not in a directory that this server serves"));
    assert!(refusal(&["policy", "unset", &path("dir")]).contains("has no rule of its own"));
    assert!(!server.state.join("policies.json").exists());
    // A rule whose directory is gone is shown as such, and removed by its last path.
    policy(&server, "set", "dir", &["--cache", "pin"]);
    let mut c = server.connect();
    let root = c.root();
    c.rmdir(&root, b"dir").unwrap();
    assert!(server.ask(&["policy", "show"]).contains("does not exist any more"));
    c.new_dir(&root, b"dir", 0o755);
    assert_eq!(cached(&server, "dir")["policy"]["cache"]["source"], "default");
    server.ask(&["policy", "unset", &path("dir")]);
    assert!(!server.ask(&["policy", "show"]).contains("dir"));
    // A damaged file is not an empty one.
    let file = server.state.join("policies.json");
    server.stop();
    let good = std::fs::read(&file).unwrap();
    std::fs::write(&file, &good[..good.len() / 2]).unwrap();
    assert!(server.refusal().contains("policies.json is damaged"));
    std::fs::write(&file, good).unwrap();
    server.start();
}

#[test]
fn a_directory_has_a_mode_of_its_own_unless_the_server_uses_the_cache_less() {
    let server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"logs", 0o755);
    policy(&server, "set", "logs", &["--mode", "write-around"]);
    let (inside, outside) = (c.new_file(&dir, b"f", 0o644), c.new_file(&root, b"f", 0o644));
    for file in [&inside, &outside] {
        fill(&mut c, file, 1);
    }
    let dirty = |path: &str| cached(&server, path)["dirty_files"].as_u64().unwrap();
    assert_eq!((dirty("logs"), dirty("f")), (0, 1));
    assert_eq!(held(&server, "logs"), (0, 0));
    assert!(std::fs::read(server.data.join("logs/f")).unwrap() == [1; SIZE]);
    let why = |path: &str| cached(&server, path)["policy"]["mode"].clone();
    let rule = json!({"value": "write-around", "source": "command", "path": server.data.join("logs")});
    assert_eq!(why("logs/f"), rule);
    assert_eq!(why("f"), json!({"value": "write-back", "source": "server"}));
    server.ask(&["mode", "pass-through"]);
    assert_eq!(why("logs/f"), json!({"value": "pass-through", "source": "server"}));
    server.ask(&["mode", "write-back"]);
    policy(&server, "unset", "logs", &[]);
    fill(&mut c, &inside, 2);
    assert_eq!(dirty("logs"), 1);
}

#[test]
fn a_priority_is_inherited_and_survives_renames_and_restarts() {
    let toml = "[[export]]\npath = \"@/data\"\nname = \"/\"\npolicy = { priority = \"low\" }\n\
                [[export.client]]\nnetworks = [\"127.0.0.1\"]\nsquash = \"none\"\n";
    let mut server = Serve::new().cached().exports(toml).start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"home", 0o755);
    let (inside, outside) = (c.new_file(&dir, b"f", 0o644), c.new_file(&root, b"f", 0o644));
    let why = |server: &Server, path: &str| cached(server, path)["policy"]["priority"].clone();
    let configured = json!({"value": "low", "source": "configuration", "path": server.data});
    assert_eq!(why(&server, "home/f"), configured);
    let path = server.data.join("home").to_str().unwrap().to_owned();
    // A wrong value is a sentence, and changes nothing.
    let wrong = server.try_ask(&["policy", "set", &path, "--priority", "urgent"]);
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(
        wrong.status.code() == Some(2) && said.contains("[possible values: low, normal, high]"),
        "{said}"
    );
    assert_eq!(why(&server, "home"), configured);
    let shown = policy(&server, "set", "home", &["--priority", "high"]);
    assert_eq!(shown["in_force"]["priority"]["value"], "high");
    assert_eq!(shown["rules"][0]["priority"], "high");
    // Another part of the rule leaves the priority as it is.
    policy(&server, "set", "home", &["--streams", "cache"]);
    let rule = |path: &str| json!({"value": "high", "source": "command", "path": server.data.join(path)});
    let (before, after) = (rule("home"), rule("renamed"));
    assert_eq!((why(&server, "home/f"), why(&server, "f")), (before, configured.clone()));
    for file in [&inside, &outside] {
        fill(&mut c, file, 1);
    }
    server.flush();
    assert_eq!(policy(&server, "show", "home", &[])["high_bytes"], SIZE);
    c.rename((&root, b"home"), (&root, b"renamed")).unwrap();
    for restart in [false, true] {
        if restart {
            server.restart();
        }
        assert_eq!((why(&server, "renamed/f"), why(&server, "f")), (after.clone(), configured.clone()));
        wait_for(|| policy(&server, "show", "renamed", &[])["high_bytes"] == SIZE);
    }
    let text = server.ask(&["policy", "show", server.data.join("renamed").to_str().unwrap()]);
    assert!(
        text.contains("priority     high (rule for") && text.contains("Of high priority: 256 KiB"),
        "{text}"
    );
    assert_eq!(server.status()["pool"]["counters"]["blocks_kept_by_priority"], 0);
    policy(&server, "unset", "renamed", &[]);
    assert_eq!(why(&server, "renamed/f"), configured);
    assert_eq!(policy(&server, "show", "renamed", &[])["high_bytes"], 0);
    // Pinned data is not counted twice.
    policy(&server, "set", "renamed", &["--priority", "high", "--cache", "pin"]);
    let shown = policy(&server, "show", "renamed", &[]);
    assert_eq!((&shown["pinned_bytes"], &shown["high_bytes"]), (&SIZE.into(), &0.into()));
}

/// Returns the report of `forebay warm`.
fn warm(server: &Server, words: &[&str]) -> Value {
    serde_json::from_str(&server.ask(&[&["warm", "--json"], words].concat())).unwrap()
}

#[test]
fn warming_brings_files_to_the_devices_and_says_what_did_not_fit() {
    const BIG: usize = 200 << 20;
    let server = Serve::unsquashed().cached().start_on(|data| {
        for (file, byte) in [("a", 1), ("b", 2)] {
            std::fs::create_dir_all(data.join("dir/inner")).unwrap();
            std::fs::write(data.join("dir/inner").join(file), vec![byte; SIZE - 100]).unwrap();
        }
        std::fs::write(data.join("dir/never"), [3; 5000]).unwrap();
        std::fs::File::create(data.join("big")).unwrap().set_len(BIG as u64).unwrap();
    });
    let path = |name: &str| server.data.join(name).to_str().unwrap().to_owned();
    policy(&server, "set", "dir/never", &["--cache", "never"]);
    let report = warm(&server, &[&path("dir")]);
    assert_eq!((&report["files"], &report["brought_bytes"]), (&3.into(), &(2 * SIZE).into()));
    assert_eq!((&report["left_bytes"], &report["had_bytes"]), (&5000.into(), &0.into()));
    wait_for(|| held(&server, "dir").0 == 2 * SIZE as u64);
    assert_eq!(warm(&server, &[&path("dir/inner")])["had_bytes"], 2 * SIZE);
    // The reads of clients come from the devices.
    let before = server.status()["pool"]["counters"]["blocks_read_backing"].clone();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.find(&root, b"dir");
    let inner = c.find(&dir, b"inner");
    for (name, byte) in [(b"a", 1), (b"b", 2)] {
        let file = c.find(&inner, name);
        let read = c.read(&file, 0, 1 << 20).unwrap().data;
        assert!(read == [byte; SIZE - 100], "{}", read.len());
    }
    assert_eq!(server.status()["pool"]["counters"]["blocks_read_backing"], before);
    // A file that does not fit takes the unused space, and nothing else leaves for it.
    let report = warm(&server, &[&path("big")]);
    let [brought, left] = ["brought_bytes", "left_bytes"].map(|name| report[name].as_u64().unwrap());
    assert!(brought > 32 << 20 && left > 32 << 20 && brought + left == BIG as u64, "{report}");
    assert_eq!(held(&server, "dir").0, 2 * SIZE as u64);
    let refused = server.try_ask(&["warm", "/"]);
    assert!(
        String::from_utf8(refused.stderr).unwrap().contains("not in a directory that this server serves")
    );
}

#[test]
fn warming_from_the_profile_brings_what_clients_have_read() {
    let mut server = Serve::unsquashed().cached().start_on(|data| {
        for file in ["read", "unread"] {
            std::fs::write(data.join(file), [1; SIZE]).unwrap();
        }
    });
    let none = server.try_ask(&["warm", "--from-profile"]);
    assert!(String::from_utf8(none.stderr).unwrap().contains("name a path instead"));
    let mut c = server.connect();
    let root = c.root();
    let file = c.find(&root, b"read");
    assert_eq!(c.read(&file, 0, 4096).unwrap().data, [1; 4096]);
    let report = warm(&server, &["--from-profile"]);
    assert_eq!((&report["files"], &report["brought_bytes"]), (&1.into(), &SIZE.into()));
    wait_for(|| held(&server, "read").0 == SIZE as u64);
    assert_eq!(held(&server, "unread"), (0, 0));
    // The next server knows that before a client has read anything.
    server.restart();
    server.ask(&["invalidate", server.data.to_str().unwrap()]);
    assert_eq!(held(&server, "read"), (0, 0));
    let report = warm(&server, &["--from-profile"]);
    assert_eq!((&report["files"], &report["brought_bytes"]), (&1.into(), &SIZE.into()));
    server.ask(&["profile", "reset"]);
    assert_eq!(warm(&server, &["--from-profile"])["files"], 1);
}

#[test]
fn data_reaches_the_directory_after_its_dirty_time_while_other_data_stays_dirty() {
    let toml = "[[export]]\npath = \"@/data\"\nname = \"/\"\npolicy = { dirty_time = \"1h\" }\n\
                [[export.client]]\nnetworks = [\"127.0.0.1\"]\nsquash = \"none\"\n";
    let server = Serve::new().cached().exports(toml).start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"results", 0o755);
    let shown = policy(&server, "set", "results", &["--dirty-time", "1s"]);
    assert_eq!(shown["in_force"]["dirty_seconds"]["value"], 1);
    let text = server.ask(&["policy", "show", server.data.join("results").to_str().unwrap()]);
    assert!(text.contains("dirty time   1s (rule for"), "{text}");
    let (file, other) = (c.new_file(&dir, b"f", 0o644), c.new_file(&root, b"other", 0o644));
    // The other file is written first, so its data is the older.
    for (file, byte) in [(&other, 1), (&file, 2)] {
        fill(&mut c, file, byte);
    }
    let written = server.data.join("results/f");
    wait_for(|| std::fs::read(&written).unwrap() == [2; SIZE]);
    wait_for(|| cached(&server, "results")["dirty_bytes"] == 0);
    assert_eq!(cached(&server, "other")["dirty_bytes"], SIZE);
    assert_eq!(cached(&server, "other")["policy"]["dirty_seconds"]["source"], "configuration");
    assert_eq!(std::fs::metadata(server.data.join("other")).unwrap().len(), 0);
    // The rule counts for a file that came by a rename, and while its data waits.
    let moved = c.new_file(&root, b"moved", 0o644);
    fill(&mut c, &moved, 3);
    c.rename((&root, b"moved"), (&dir, b"moved")).unwrap();
    let written = server.data.join("results/moved");
    wait_for(|| std::fs::read(&written).unwrap() == [3; SIZE]);
    assert_eq!(cached(&server, "other")["dirty_bytes"], SIZE);
}

#[test]
fn a_directory_has_at_most_its_share_of_the_cache_and_keeps_its_least_against_others() {
    let server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let [home, archive] = [&b"home"[..], b"archive"].map(|name| c.new_dir(&root, name, 0o755));
    policy(&server, "set", "home", &["--cache-min", "1MiB"]);
    let shown = policy(&server, "set", "archive", &["--cache-max", "1MiB"]);
    assert_eq!(shown["in_force"]["share"]["max_bytes"], 1 << 20);
    let wrong = server.try_ask(&[
        "policy",
        "set",
        server.data.join("archive").to_str().unwrap(),
        "--cache-min",
        "2MiB",
    ]);
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("more than cache_max"));
    let kept = c.new_file(&home, b"f", 0o644);
    fill(&mut c, &kept, 1);
    for number in 0..16_u8 {
        let file = c.new_file(&archive, &[b'a' + number], 0o644);
        fill(&mut c, &file, number);
    }
    server.flush();
    let held = |name| policy(&server, "show", name, &[])["in_force"]["share"]["held_bytes"].as_u64().unwrap();
    wait_for(|| held("archive") <= 1 << 20);
    assert!(held("archive") > 0 && held("home") == SIZE as u64);
    let text = server.ask(&["policy", "show", server.data.join("home/f").to_str().unwrap()]);
    assert!(text.contains("256 KiB on the cache devices now, at least 1 MiB (rule for"), "{text}");
    // A change of the limit counts for cached data, and a rule that is gone limits nothing.
    policy(&server, "set", "archive", &["--cache-max", "2MiB"]);
    policy(&server, "unset", "archive", &[]);
    assert_eq!(policy(&server, "show", "archive", &[])["in_force"]["share"], Value::Null);
    for number in 0..16_u8 {
        let file = c.find(&archive, &[b'a' + number]);
        fill(&mut c, &file, number);
    }
    server.flush();
    assert_eq!(cached(&server, "archive")["ssd_bytes"], 16 * SIZE);
}
