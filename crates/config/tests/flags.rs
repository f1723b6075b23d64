//! Tests of the settings that flags alone give, and of the mistakes that flags can contain.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use forebay_config::{
    Access, Flags, Place, Squash, default_listen, format_duration, format_size, instance_name,
    parse_duration, parse_listen, parse_size, resolve,
};
use tempfile::TempDir;

fn serving(dir: &Path) -> Flags {
    Flags { dir: Some(dir.to_owned()), ..Flags::default() }
}

/// Returns the flags that have mistakes, each with its message.
fn mistakes(flags: &Flags) -> Vec<(String, String)> {
    let flag = |place| match place {
        Place::Flag(flag) => flag,
        other => panic!("{other:?}"),
    };
    let problems = resolve(flags).unwrap_err().0;
    problems.into_iter().map(|problem| (flag(problem.place), problem.message)).collect()
}

#[test]
fn a_directory_alone_is_served_to_this_host_only() {
    let dir = TempDir::new().unwrap();
    let settings = resolve(&serving(dir.path())).unwrap().settings;
    assert_eq!(settings.listen, default_listen());
    let [export] = &settings.exports[..] else { panic!() };
    assert_eq!(
        (export.name.as_str(), export.path.as_path()),
        ("/", dir.path().canonicalize().unwrap().as_path())
    );
    let rule = export.rule_for("127.1.2.3".parse().unwrap(), |_| false).unwrap();
    assert_eq!((rule.access, rule.squash), (Access::ReadWrite, Squash::Root));
    assert!(export.rule_for("::1".parse().unwrap(), |_| false).is_some());
    assert!(export.rule_for("::ffff:127.0.0.1".parse().unwrap(), |_| false).is_some());
    assert!(export.rule_for("10.0.0.1".parse().unwrap(), |_| false).is_none());
    assert!(settings.state_dir.ends_with(instance_name(&[&export.path])));
    assert_eq!(resolve(&serving(dir.path())).unwrap().settings, settings, "ids and places are stable");
}

#[test]
fn only_the_last_component_of_the_directory_may_be_missing() {
    let dir = TempDir::new().unwrap();
    let real = dir.path().canonicalize().unwrap();
    let settings = resolve(&serving(&real.join("new"))).unwrap().settings;
    assert_eq!(settings.exports[0].path, real.join("new"));
    assert!(!real.join("new").exists(), "resolving makes nothing");
    let id = settings.exports[0].id;
    fs::create_dir(real.join("new")).unwrap();
    assert_eq!(resolve(&serving(&real.join("new"))).unwrap().settings.exports[0].id, id);
    symlink("nowhere", real.join("dangling")).unwrap();
    fs::write(real.join("file"), "").unwrap();
    for bad in ["none/new", "dangling", "file", "file/new", ".."] {
        let result = resolve(&serving(&real.join("none").join(bad)));
        assert!(result.is_err(), "{bad}");
        if bad != ".." {
            assert_eq!(mistakes(&serving(&real.join(bad)))[0].0, "DIR", "{bad}");
        }
    }
}

#[test]
fn other_hosts_need_an_explicit_permission() {
    let dir = TempDir::new().unwrap();
    let mut flags = serving(dir.path());
    flags.listen = vec!["0.0.0.0".into()];
    let told = mistakes(&flags);
    assert!(told[0].0 == "--listen" && told[0].1.contains("add --allow NETWORK"), "{told:?}");
    flags.read_only = true;
    assert_eq!(mistakes(&flags).len(), 1, "a rule without networks permits nobody else");
    flags.allow = vec!["10.0.0.0/8".into(), "fd00::/8".into()];
    let settings = resolve(&flags).unwrap().settings;
    let rule = settings.exports[0].rule_for("10.9.9.9".parse().unwrap(), |_| false).unwrap();
    assert_eq!(rule.access, Access::ReadOnly);
    assert!(
        settings.exports[0].rule_for("127.0.0.1".parse().unwrap(), |_| false).is_none(),
        "--allow replaces loopback"
    );
}

#[test]
fn every_wrong_flag_is_named() {
    let dir = TempDir::new().unwrap();
    let flags = Flags {
        listen: vec!["localhost".into(), "127.0.0.1:99999".into()],
        cache: vec![dir.path().join("cache")],
        ram: Some(1),
        cache_size: Some(1),
        allow: vec!["here".into()],
        export: Some("data".into()),
        state_dir: Some(dir.path().join("state")),
        limits: vec![("threads", "none".into()), ("busy_poll", "1h".into())],
        ..serving(dir.path())
    };
    let mut told: Vec<String> = mistakes(&flags).into_iter().map(|(flag, _)| flag).collect();
    told.sort();
    let expected = [
        "--allow",
        "--busy-poll",
        "--cache",
        "--cache-size",
        "--export",
        "--listen",
        "--listen",
        "--ram",
        "--state-dir",
        "--threads",
    ];
    assert_eq!(told, expected);
    let flags = Flags { read_only: true, squash: Some(Squash::All), ..Flags::default() };
    let told: Vec<String> = mistakes(&flags).into_iter().map(|(flag, _)| flag).collect();
    assert_eq!(told, ["--read-only", "--squash", "DIR"]);
}

#[test]
fn a_state_directory_reached_through_a_symlink_may_not_lie_inside_the_export() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    symlink("data", dir.path().join("link")).unwrap();
    let flags =
        Flags { state_dir: Some(dir.path().join("link/deep/state")), ..serving(&dir.path().join("data")) };
    assert_eq!(mistakes(&flags)[0].0, "--state-dir");
}

#[test]
fn instances_are_named_after_what_they_serve() {
    let name = |paths: &[&str]| instance_name(&paths.iter().map(Path::new).collect::<Vec<_>>());
    assert!(name(&["/srv/my data"]).starts_with("mydata-"));
    assert!(name(&["/"]).starts_with("root-"));
    assert!(name(&["/srv/.hidden"]).starts_with("hidden-"));
    assert!(name(&["/srv/データ"]).starts_with("export-"));
    let hash = |paths| name(paths).rsplit_once('-').unwrap().1.to_owned();
    assert_eq!(hash(&["/a", "/b"]), hash(&["/b", "/a"]));
    assert_ne!(hash(&["/a", "/b"]), hash(&["/a/b"]));
    assert_eq!(name(&["/srv/data"]), "data-8afb40cd", "the name never changes between versions");
}

#[test]
fn sizes_and_durations_are_read_and_written() {
    for (text, bytes) in
        [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("1 GiB", 1 << 30), ("2g", 2 << 30), ("1MB", 1_000_000)]
    {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for bad in ["", "GiB", "-1", "1.5G", "1XB", "99999999999TiB", "1 0"] {
        assert!(parse_size(bad).is_err(), "{bad}");
    }
    for (bytes, text) in
        [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (u64::MAX, "16 EiB")]
    {
        assert_eq!(format_size(bytes), text);
    }
    for text in ["0", "50us", "20ms", "90s", "5m", "2h", "1d"] {
        assert_eq!(format_duration(parse_duration(text).unwrap()), text);
    }
    for bad in ["", "5", "s", "1.5s", "-1s", "1y", "999999999999d"] {
        assert!(parse_duration(bad).is_err(), "{bad}");
    }
}

#[test]
fn listen_addresses_have_a_default_port() {
    for (text, address) in
        [("10.0.0.1", "10.0.0.1:2049"), ("[::1]", "[::1]:2049"), ("::", "[::]:2049"), ("[::1]:0", "[::1]:0")]
    {
        assert_eq!(parse_listen(text).unwrap().to_string(), address);
    }
    for bad in ["", "2049", ":2049", "*", "host:1", "10.0.0.1:", "[10.0.0.1", "1.2.3.4:70000"] {
        assert!(parse_listen(bad).is_err(), "{bad}");
    }
}

#[test]
fn cache_devices_are_absolute_told_apart_and_outside_of_what_is_served() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    symlink(dir.path(), dir.path().join("again")).unwrap();
    let with = |cache: &[&str]| Flags {
        cache: cache.iter().map(|name| dir.path().join(name)).collect(),
        ..serving(&data)
    };
    let settings = resolve(&with(&["a", "b"])).unwrap().settings;
    assert_eq!(settings.mode, forebay_config::Mode::WriteBack);
    assert_eq!(settings.cache.devices, [dir.path().join("a"), dir.path().join("b")]);
    assert_eq!((settings.cache.size, settings.cache.format), (1 << 30, false));
    assert!((64 << 20..=16 << 30).contains(&settings.cache.ram));
    for (wrong, why) in [(["a", "again/a"], "twice"), (["a", "data/b"], "lies inside the exported")] {
        let told = mistakes(&with(&wrong));
        assert!(told.len() == 1 && told[0].0 == "--cache" && told[0].1.contains(why), "{told:?}");
    }
    assert_eq!(mistakes(&Flags { format_cache: true, ..serving(&data) })[0].0, "--format-cache");
}

#[test]
fn an_nbd_export_is_named_by_its_url() {
    let dir = TempDir::new().unwrap();
    let with =
        |cache: &[&str]| Flags { cache: cache.iter().map(Into::into).collect(), ..serving(dir.path()) };
    let (leg, socket) = ("nbd://ssd-host:7/leg", "nbd+unix:///leg?socket=/run/a");
    let settings = resolve(&with(&[leg, socket])).unwrap().settings;
    assert_eq!(settings.cache.devices, [leg, socket].map(std::path::PathBuf::from));
    for (wrong, why) in
        [([leg, "nbd://ssd-host:7/l%65g"], "twice"), ([leg, "nbds://h/x"], "write nbd://HOST")]
    {
        let told = mistakes(&with(&wrong));
        assert!(told.len() == 1 && told[0].0 == "--cache" && told[0].1.contains(why), "{told:?}");
    }
    let file = dir.path().join("forebay.toml");
    let text = |backing: &str| {
        format!(
            "cache = [\"{leg}\"]\n[[export]]\npath = \"{}\"\nname = \"/x\"\n[[volume]]\nname = \"far\"\nbacking = \"{backing}\"\n",
            dir.path().display()
        )
    };
    fs::write(&file, text(socket)).unwrap();
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let settings = resolve(&flags).unwrap().settings;
    assert_eq!(settings.cache.devices, [std::path::PathBuf::from(leg)]);
    assert_eq!(settings.volumes[0].backing, std::path::PathBuf::from(socket));
    fs::write(&file, text("nbd://h:0")).unwrap();
    assert!(resolve(&flags).unwrap_err().0[0].message.contains("write nbd://HOST"));
}
