//! Tests that every kind of mistake in a configuration file is reported with its line, column and remedy.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use forebay_config::{
    Access, Flags, Mode, Place, Portmap, PrivilegedPort, Problem, Resolved, Squash, resolve,
};
use tempfile::TempDir;

/// A directory with `data` and `more` to export, and a configuration file. In the file's text `@` stands for the
/// directory.
struct Site {
    dir: TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        for name in ["data", "more"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn flags(&self, text: &str) -> Flags {
        let file = self.path("forebay.toml");
        let root = self.path("");
        fs::write(&file, text.replace('@', root.to_str().unwrap().trim_end_matches('/'))).unwrap();
        Flags { config: Some(file), state_dir: Some(self.path("state")), ..Flags::default() }
    }

    fn problems(&self, text: &str) -> Vec<Problem> {
        resolve(&self.flags(text)).unwrap_err().0
    }
}

/// Returns the line, column and message of each problem in the file.
fn placed(problems: &[Problem]) -> Vec<(usize, usize, &str)> {
    let place = |problem: &Problem| match &problem.place {
        Place::File { line, column, .. } => (*line, *column),
        other => panic!("not in the file: {other:?}: {}", problem.message),
    };
    problems.iter().map(|problem| (place(problem).0, place(problem).1, problem.message.as_str())).collect()
}

const GOOD: &str = "[[export]]\npath = \"@/data\"\nname = \"/data\"\n";

/// Asserts that a file with `text` and a good export has exactly one mistake. The text comes before the export, or
/// after it if the text starts with a table.
fn assert_one(text: &str, line: usize, column: usize, parts: &[&str]) {
    let site = Site::new();
    let whole = if text.starts_with('[') { format!("{text}\n{GOOD}") } else { format!("{text}\n\n{GOOD}") };
    let problems = site.problems(&whole);
    let [(at_line, at_column, message)] = placed(&problems)[..] else { panic!("{whole}\n{problems:#?}") };
    assert_eq!((at_line, at_column), (line, column), "{message}\n{whole}");
    parts.iter().for_each(|part| assert!(message.contains(part), "`{part}` in: {message}"));
}

#[test]
fn mistakes_of_top_level_keys() {
    assert_one("lisen = [\"127.0.0.1\"]", 1, 1, &["unknown key `lisen`", "did you mean `listen`?"]);
    assert_one("\nzzz = 1", 2, 1, &["unknown key `zzz`", "allowed: listen, state_dir, mode"]);
    assert_one("listen = \"127.0.0.1\"", 1, 10, &["is a string", "write an array"]);
    assert_one("listen = []", 1, 10, &["is empty"]);
    assert_one(
        "listen = [\"127.0.0.1\", \"localhost\"]",
        1,
        24,
        &["`localhost` is not a listen address", "ADDR:PORT"],
    );
    assert_one("listen = [\"127.0.0.1:1\",\n  \"127.0.0.2:1\", true]", 2, 18, &["a boolean"]);
    assert_one("state_dir = \"state\"", 1, 13, &["not an absolute path"]);
    assert_one("mode = \"writeback\"", 1, 8, &["write-back, write-through, write-around, pass-through"]);
    assert_one("cache = [\"relative\"]", 1, 10, &["absolute"]);
    assert_one("cache_size = \"1MiB\"", 1, 14, &["64 MiB and 16 TiB"]);
    assert_one("ram = \"lots\"", 1, 7, &["is not a size"]);
    assert_one("portmap = true", 1, 11, &["a boolean"]);
    assert_one("portmap = \"on\"", 1, 11, &["off, register, answer"]);
    // A message stays on its line, and changes nothing in a terminal.
    assert_one("mode = \"a\\nb\\u001b[2J\"", 1, 8, &["`a\\nb\\u{1b}[2J` is not one of"]);
}

#[test]
fn mistakes_of_limits_and_log() {
    assert_one("limits = 5", 1, 10, &["write a table: [limits]"]);
    assert_one("[limits]\nmemory = \"lots\"", 2, 10, &["`lots` is not a size", "64MiB"]);
    assert_one("[limits]\nmemory = \"1MiB\"", 2, 10, &["1 MiB is out of range; allowed: 16 MiB to 64 TiB"]);
    assert_one("[limits]\nthreads = 0", 2, 11, &["allowed: 1 to 1024"]);
    assert_one("[limits]\nthreads = 2.5", 2, 11, &["a float"]);
    assert_one("[limits]\nbusy_poll = 50", 2, 13, &["`50` is not a duration"]);
    assert_one("[limits]\nbusy_poll = \"1s\"", 2, 13, &["allowed: 0 to 10ms"]);
    assert_one("[limits]\nconnection_memory = \"1GiB\"", 2, 21, &["more than `memory`"]);
    assert_one("[limits]\nconections = 5", 2, 1, &["did you mean `connections`?"]);
    assert_one("[log]\nlevel = \"loud\"", 2, 9, &["error, warn, info, debug, trace"]);
    assert_one("[log]\nfile = \"x\"", 2, 1, &["unknown key `file` in [log]", "allowed: level, format"]);
}

#[test]
fn mistakes_of_nbd() {
    let door = "[nbd]\nlisten = [\"127.0.0.1\"]\n";
    assert_one("[nbd]\nlisten = [\"x\"]", 2, 11, &["is no place for NBD"]);
    let both = format!("{door}insecure = true\nclient_certificate = true");
    assert_one(&both, 4, 22, &["clients without TLS need no certificate"]);
}

#[test]
fn mistakes_of_exports() {
    assert_one("[[export]]\nname = \"/x\"", 1, 1, &["no `path`"]);
    assert_one("[[export]]\npath = \"@/more\"", 1, 1, &["no `name`"]);
    assert_one("[[export]]\npath = \"@/none\"\nname = \"/x\"", 2, 8, &["does not exist"]);
    assert_one("[[export]]\npath = \"@/forebay.toml\"\nname = \"/x\"", 2, 8, &["is not a directory"]);
    assert_one("[[export]]\npath = \"more\"\nname = \"/x\"", 2, 8, &["not an absolute path"]);
    for name in ["x", "", "/x/", "/a//b", "/a/../b", "/."] {
        let text = format!("[[export]]\npath = \"@/more\"\nname = {name:?}");
        assert_one(&text, 3, 8, &["is not an export name"]);
    }
    let long = format!("[[export]]\npath = \"@/more\"\nname = \"/{}\"", "x".repeat(1024));
    assert_one(&long, 3, 8, &["has 1025 bytes"]);
    assert_one("[[export]]\npath = \"@/more\"\nname = \"/x\"\nid = 0", 4, 6, &["1 to 4294967295"]);
    assert_one("[[export]]\npath = \"@/more\"\nname = \"/x\"\nids = 1", 4, 1, &["did you mean `id`?"]);
    assert_one("[[export]]\npath = \"@/more\"\nname = \"/data\"", 6, 8, &["/data is already used (line 3)"]);
    assert_one(
        "[[export]]\npath = \"@/more\"\nname = \"/x\"\naliases = [\"/y\", \"/y\"]",
        4,
        18,
        &["/y is already used"],
    );
    assert_one(
        "[[export]]\npath = \"@/data\"\nname = \"/x\"",
        5,
        8,
        &["already exported (line 2)", "aliases"],
    );
    assert_one("[export]\npath = \"@/more\"\n#", 4, 3, &["duplicate key"]);
}

#[test]
fn mistakes_of_clients() {
    let one = |client: &str, line, column, parts: &[&str]| {
        let text = format!("[[export]]\npath = \"@/more\"\nname = \"/x\"\n[[export.client]]\n{client}");
        assert_one(&text, line, column, parts);
    };
    one("access = \"rw\"", 4, 1, &["no `networks`", "[\"*\"] for all"]);
    one("networks = []", 5, 12, &["is empty"]);
    one("networks = [\"10.0.0.0/33\"]", 5, 13, &["is not a network"]);
    one("networks = [\"10.0.0.1/24\"]", 5, 13, &["bits right of its prefix; write 10.0.0.0/24"]);
    one("networks = [\"*\"]\naccess = \"yes\"", 6, 10, &["ro, rw"]);
    one("networks = [\"*\"]\nsquash = \"some\"", 6, 10, &["root, none, all"]);
    one("networks = [\"*\"]\nanonuid = 4294967295", 6, 11, &["0 to 4294967294"]);
    one("networks = [\"*\"]\nanongid = \"no such group\"", 6, 11, &["`no such group` is no group"]);
    one("networks = [\"*\"]\nprivileged_port = \"yes\"", 6, 19, &["write true or false"]);
    one("networks = [\"*\"]\nsquish = 1", 6, 1, &["did you mean `squash`?"]);
    let shadowed = "networks = [\"10.0.0.0/8\"]\n[[export.client]]\nnetworks = [\"10.1.0.0/16\"]";
    one(shadowed, 6, 1, &["never used"]);
}

#[test]
fn mistakes_across_settings() {
    assert_one("listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]", 1, 26, &["overlaps with 127.0.0.1:1 (line 1)"]);
    assert_one("listen = [\"0.0.0.0:1\"]", 1, 11, &["which may use the export /data", "[[export.client]]"]);
    let site = Site::new();
    let mut flags = site.flags(&format!("state_dir = \"@/data/state\"\n{GOOD}"));
    flags.state_dir = None;
    let problems = resolve(&flags).unwrap_err().0;
    let [(1, 13, message)] = placed(&problems)[..] else { panic!("{problems:?}") };
    assert!(message.contains("lies inside the exported"), "{message}");
}

#[test]
fn wildcards_overlap_with_their_own_family_only() {
    let site = Site::new();
    let with = |listen: &str| format!("listen = {listen}\n{GOOD}[[export.client]]\nnetworks = [\"*\"]\n");
    let problems = site.problems(&with("[\"127.0.0.1:1\", \"0.0.0.0:1\"]"));
    let [(1, 26, message)] = placed(&problems)[..] else { panic!("{problems:?}") };
    assert!(message.contains("0.0.0.0:1 overlaps with 127.0.0.1:1"), "{message}");
    for good in [
        "[\"0.0.0.0:1\", \"[::]:1\"]",
        "[\"0.0.0.0:1\", \"0.0.0.0:2\"]",
        "[\"127.0.0.1:0\", \"127.0.0.1:0\"]",
    ] {
        assert!(resolve(&site.flags(&with(good))).is_ok(), "{good}");
    }
}

#[test]
fn every_mistake_is_told_at_once_in_the_order_of_the_file() {
    let site = Site::new();
    let text = "mode = \"x\"\nlisen = 1\n[limits]\nthreads = -1\n[[export]]\npath = \"@/none\"\n[[export.client]]\naccess = 1\n";
    let problems = site.problems(text);
    let lines: Vec<usize> = placed(&problems).iter().map(|(line, ..)| *line).collect();
    assert_eq!(lines, [1, 2, 4, 5, 6, 7, 8], "{problems:#?}");
}

#[test]
fn what_is_not_toml_is_placed_too() {
    let site = Site::new();
    let problems = site.problems("listen = [\"127.0.0.1\"\nmode = \n\n[limits\n");
    assert!(placed(&problems).iter().all(|(line, ..)| (1..=4).contains(line)), "{problems:?}");
    let shown = problems[0].to_string();
    assert!(shown.contains("forebay.toml:") && !shown.contains('\n'), "{shown}");
    fs::write(site.path("binary"), [0xff, 0xfe]).unwrap();
    for (name, part) in [("binary", "not UTF-8"), ("absent", "cannot read"), ("data", "cannot read")] {
        let flags = Flags { config: Some(site.path(name)), ..Flags::default() };
        let problems = resolve(&flags).unwrap_err().0;
        assert!(problems.len() == 1 && problems[0].to_string().contains(part), "{problems:?}");
    }
}

#[test]
fn the_file_is_read_whole_and_flags_override_it() {
    let site = Site::new();
    let text = "
listen = [\"127.0.0.1:1\", \"[::]\", \"0.0.0.0\"]
mode = \"pass-through\"
portmap = \"register\"
[limits]
threads = 3
memory = \"1GiB\"
idle_timeout = 0
[[export]]
path = \"@/data\"
name = \"/data\"
aliases = [\"/\"]
id = 7
[[export.client]]
networks = [\"10.0.0.0/8\", \"::1\"]
access = \"ro\"
squash = \"all\"
anonuid = 1000
privileged_port = true
[[export.client]]
networks = [\"*\"]
";
    let mut flags = site.flags(text);
    let settings = resolve(&flags).unwrap().settings;
    let listen: Vec<String> = settings.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.1:1", "[::]:2049", "0.0.0.0:2049"]);
    assert_eq!((settings.mode, settings.portmap), (Mode::PassThrough, Portmap::Register));
    assert_eq!((settings.limits.threads, settings.limits.memory), (3, 1 << 30));
    assert!(settings.limits.idle_timeout.is_zero());
    let [export] = &settings.exports[..] else { panic!("{:?}", settings.exports) };
    assert_eq!((export.path.as_path(), export.id), (site.path("data").as_path(), 7));
    assert_eq!(export.names().collect::<Vec<_>>(), ["/data", "/"]);
    let rule = export.rule_for("::ffff:10.2.3.4".parse().unwrap(), |_| false).unwrap();
    assert_eq!((rule.access, rule.squash), (Access::ReadOnly, Squash::All));
    assert_eq!((rule.anonuid, rule.anongid), (1000, 65534));
    assert_eq!(rule.privileged_port, PrivilegedPort::Always);
    let rule = export.rule_for("2001:db8::1".parse().unwrap(), |_| false).unwrap();
    assert_eq!((rule.access, rule.squash), (Access::ReadWrite, Squash::Root));

    flags.listen = vec!["127.0.0.1:9".into()];
    flags.portmap = Some(Portmap::Off);
    flags.limits = vec![("threads", "5".into())];
    flags.dir = Some(site.path("more"));
    let Resolved { settings, notices } = resolve(&flags).unwrap();
    assert_eq!(settings.listen, ["127.0.0.1:9".parse().unwrap()]);
    assert_eq!(
        (settings.portmap, settings.limits.threads, settings.limits.memory),
        (Portmap::Off, 5, 1 << 30)
    );
    assert_eq!(
        (settings.exports[0].path.as_path(), settings.exports[0].name.as_str()),
        (site.path("more").as_path(), "/")
    );
    assert!(notices.len() == 1 && notices[0].contains("instead of the 1 export"), "{notices:?}");
}

#[test]
fn the_packaged_example_is_good_and_its_comments_state_the_defaults() {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/forebay.toml");
    let flags = Flags {
        config: Some(packaged.clone()),
        state_dir: Some("/var/empty-state".into()),
        ..Flags::default()
    };
    let settings = resolve(&flags).unwrap().settings;
    assert_eq!((settings.exports[0].name.as_str(), settings.exports[0].clients.len()), ("/data", 2));
    let text = fs::read_to_string(packaged).unwrap();
    for limit in forebay_config::LIMITS {
        let prefix = format!("# {} = ", limit.key);
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        let value =
            line.unwrap_or_else(|| panic!("{} is not in the example", limit.key)).split('#').next().unwrap();
        let mut limits = settings.limits.clone();
        limit.set(&mut limits, value.trim().trim_matches('"')).unwrap();
        assert!(limit.per_machine || limits == settings.limits, "{} is not the default", limit.key);
    }
}

#[test]
fn tls_needs_its_files() {
    let tls = |table: &str, export: &str| {
        let site = Site::new();
        let text = format!("{table}\n{GOOD}{export}\n");
        resolve(&site.flags(&text)).map_err(|problems| problems.0[0].message.clone())
    };
    let whole = "[tls]\ncertificate = \"/c\"\nkey = \"/k\"\n";
    let with_ca = format!("{whole}client_ca = \"/a\"\n");
    for (table, export, part) in [
        ("[tls]\ncertificate = \"/c\"", "", "has no key"),
        ("[tls]\nkey = \"/k\"", "", "has no certificate"),
        ("[tls]\nclient_ca = \"/a\"", "", "name `certificate` and `key`"),
        ("[tls]\nkey = \"k\"", "", "not an absolute path"),
        ("", "tls = \"required\"", "name `certificate` and `key`"),
        ("", "tls = \"always\"", "not one of off, optional, required, mutual"),
        (whole, "tls = \"mutual\"", "name `client_ca`"),
        (whole, "[[export.client]]\nnetworks = [\"tls:a.example\"]", "no client can show tls:a.example"),
        (&with_ca, "[[export.client]]\nnetworks = [\"tls:sha256:12\"]", "64 hexadecimal digits"),
    ] {
        let message = tls(table, export).unwrap_err();
        assert!(message.contains(part), "{table} {export}: {message}");
    }
    let settings =
        tls(&with_ca, "tls = \"mutual\"\n[[export.client]]\nnetworks = [\"tls:*\"]").unwrap().settings;
    assert_eq!(settings.tls.unwrap().client_ca, Some(PathBuf::from("/a")));
    let rule = &settings.exports[0].clients[0];
    assert!(rule.networks.is_empty(), "no address is in the rule: {rule:?}");
    assert_eq!(rule.clients().collect::<Vec<_>>(), ["tls:*"]);
    // A rule is not useless because its networks are covered, if it has certificates.
    let twice =
        "[[export.client]]\nnetworks = [\"*\"]\n[[export.client]]\nnetworks = [\"10.0.0.1\", \"tls:*\"]";
    assert!(tls(&with_ca, twice).is_ok());
}
