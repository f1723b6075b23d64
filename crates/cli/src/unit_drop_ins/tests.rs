use std::collections::BTreeMap;
use std::path::Path;

use super::*;

/// The configuration of a server with one export.
fn exporting(path: &str) -> String {
    format!("[[export]]\npath = \"{path}\"\nname = \"/\"\n")
}

/// A host with configurations and states of servers.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["etc", "var/other", "generator"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        Host { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the drop-ins by their paths.
    fn drop_ins(&self) -> BTreeMap<String, String> {
        let dir = self.path("generator");
        fs::remove_dir_all(&dir).ok();
        let args =
            UnitDropInsArgs { dir: dir.clone(), config_dir: self.path("etc"), state_base: self.path("var") };
        unit_drop_ins(&args).unwrap();
        let listed = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = listed(&dir).flat_map(|unit| listed(&unit).collect::<Vec<_>>());
        let named = |path: &Path| path.strip_prefix(&dir).unwrap().to_str().unwrap().to_owned();
        files.map(|path| (named(&path), fs::read_to_string(path).unwrap())).collect()
    }

    /// Returns true if homes are hidden from the server of `forebay.toml` with this text.
    fn hides_homes(&self, text: &str) -> bool {
        fs::write(self.path("etc/forebay.toml"), text).unwrap();
        self.drop_ins().contains_key("forebay.service.d/50-homes.conf")
    }
}

#[test]
fn each_configuration_has_the_unit_that_the_template_gives_it() {
    let unit = |path: &str| served_by(Path::new(path)).map(|served| (served.unit, served.state));
    let named = |unit: &str, state: &str| Some((unit.to_owned(), state.to_owned()));
    assert_eq!(unit("/etc/forebay/forebay.toml"), named("forebay.service", "main"));
    assert_eq!(unit("/etc/forebay/scratch.toml"), named("forebay@scratch.service", "scratch"));
    assert_eq!(unit("/etc/forebay/a-b.toml"), named("forebay@a-b.service", "a-b"));
    assert_eq!(unit("/etc/forebay/a b.toml"), None);
    assert_eq!(unit("/etc/forebay/forebay.toml.dpkg-new"), None);
}

#[test]
fn directories_below_a_mount_that_is_still_missing_are_required() {
    let host = Host::new();
    let text = format!("cache = [\"/none/50 %/leg\", \"/dev/sdx\"]\n{}", exporting("/none/array/data"));
    fs::write(host.path("etc/a-b.toml"), text).unwrap();
    let drop_ins = host.drop_ins();
    let mounts = &drop_ins["forebay@a-b.service.d/50-mounts.conf"];
    let required: Vec<_> = mounts.lines().filter(|line| line.starts_with("RequiresMountsFor=")).collect();
    let expected = ["RequiresMountsFor=\"/none/array/data\"", "RequiresMountsFor=\"/none/50 %%/leg\""];
    assert_eq!(required, expected);
}

#[test]
fn homes_are_hidden_unless_the_configuration_needs_them() {
    let host = Host::new();
    let link = host.path("link");
    std::os::unix::fs::symlink("/home/none/data", &link).unwrap();
    let plain = exporting("/srv/data");
    assert!(host.hides_homes(&plain));
    for export in ["/home/data", "/root", "/srv/../home", link.to_str().unwrap()] {
        assert!(!host.hides_homes(&exporting(export)), "{export}");
    }
    for more in [
        "cache = [\"/home/leg\"]",
        "keytab = \"/root/keytab\"",
        "tls = { certificate = \"/root/tls.pem\", key = \"/etc/tls.key\" }",
        "volume = [{ name = \"v\", backing = \"/home/v\" }]",
        "nbd = { listen = [\"/run/user/0/nbd\"] }",
        "notify = [{ name = \"p\", kind = \"program\", command = [\"/usr/bin/page\"] }]",
        "cash = []",
        "cache = [",
    ] {
        assert!(!host.hides_homes(&format!("{more}\n{plain}")), "{more}");
    }
    assert!(host.hides_homes(&format!("cache = [\"/srv/home/leg\", \"nbd://host/home\"]\n{plain}")));
}

#[test]
fn homes_are_hidden_only_if_the_record_of_volumes_is_known_to_need_none() {
    let host = Host::new();
    let plain = exporting("/srv/data");
    let record = host.path("var/main/volumes.json");
    fs::create_dir(host.path("var/main")).unwrap();
    assert!(host.hides_homes(&plain));
    for (text, hides) in [
        (r#"{"version": 1, "volumes": [{"name": "v", "backing": "/dev/sdx"}]}"#, true),
        (r#"{"version": 1, "volumes": [{"name": "v", "backing": "/home/v"}]}"#, false),
        ("{", false),
    ] {
        fs::write(&record, text).unwrap();
        assert_eq!(host.hides_homes(&plain), hides, "{text}");
    }
    fs::remove_dir_all(host.path("var")).unwrap();
    fs::create_dir(host.path("var")).unwrap();
    assert!(!host.hides_homes(&plain), "the state is perhaps not mounted yet");
}
