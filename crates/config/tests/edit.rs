//! Tests of changing one setting in the text of a configuration file.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

use forebay_config::set_in_text;

const FILE: &str = r#"# The server of the lab.
mode = "write-back" # two SSDs
listen = ["127.0.0.1:2049"]

# connections = 5
[limits]
connections = 1024   # enough
# inflight = 256

[[export]]
path = "/srv/a" # the array
name = "/a.b"

[[export.client]]
networks = ["192.0.2.0/24"]

[[export]]
path = "/srv/c"
name = "/c"

[[policy]]
path = "/srv/a/x.y"
cache = "pin"

[[policy]]
path = "/srv/a/z"
cache = "never"
"#;

#[test]
fn one_value_changes_and_the_rest_stays_to_the_letter() {
    for (name, value, line, changed) in [
        (
            "mode",
            "write-through",
            r#"mode = "write-back" # two SSDs"#,
            r#"mode = "write-through" # two SSDs"#,
        ),
        ("limits.connections", "2048", "connections = 1024   # enough", "connections = 2048   # enough"),
        ("listen", "127.0.0.1,::1", r#"["127.0.0.1:2049"]"#, r#"["127.0.0.1", "::1"]"#),
        ("export[/a.b].path", "/srv/b", r#"path = "/srv/a" # the array"#, r#"path = "/srv/b" # the array"#),
        ("export[2].name", "/d", r#"name = "/c""#, r#"name = "/d""#),
        ("policy[/srv/a/x.y].cache", "normal", r#"cache = "pin""#, r#"cache = "normal""#),
        ("policy[2].cache", "normal", r#"cache = "never""#, r#"cache = "normal""#),
        ("export[1].client[1].networks", "*", r#"["192.0.2.0/24"]"#, r#"["*"]"#),
        ("export[/a.b].client.networks", r#"["*"]"#, r#"["192.0.2.0/24"]"#, r#"["*"]"#),
    ] {
        assert!(FILE.contains(line));
        assert_eq!(set_in_text(FILE, name, value).unwrap(), FILE.replacen(line, changed, 1), "{name}");
    }
}

#[test]
fn new_keys_and_tables_are_added() {
    let text = set_in_text(FILE, "limits.idle_timeout", "2h").unwrap();
    assert!(text.contains("connections = 1024   # enough\nidle_timeout = \"2h\"\n"), "{text}");
    let text = set_in_text(FILE, "log.level", "debug").unwrap();
    assert!(text.contains("[log]\nlevel = \"debug\"\n"), "{text}");
    let text = set_in_text(FILE, "nfs4", "false").unwrap();
    assert!(text.contains("nfs4 = false\n"), "{text}");
    assert!(
        text.find("nfs4 = false").unwrap() < text.find("[limits]").unwrap(),
        "it is a key of the root: {text}"
    );
    let text = set_in_text("", "http.listen", "127.0.0.1:9050").unwrap();
    assert_eq!(text, "[http]\nlisten = \"127.0.0.1:9050\"\n", "one address, unlike the list of NFS");
    let text = set_in_text("", "nbd.listen", "127.0.0.1:10810").unwrap();
    assert_eq!(text, "[nbd]\nlisten = [\"127.0.0.1:10810\"]\n");
    let text = set_in_text("", "limits.lease", "45s").unwrap();
    assert_eq!(text, "[limits]\nlease = \"45s\"\n");
}

#[test]
fn names_that_fit_nothing_are_refused_with_what_there_is() {
    for (name, says) in [
        ("", "names no key"),
        ("limits.", "names no key"),
        ("export[/a.b]", "names no key"),
        ("export[/a.b", "bracket"),
        ("export[/a.b]x", "export[/NAME].KEY"),
        ("export.tls", "/a.b, /c"),
        ("export[/x].tls", "it has: /a.b, /c"),
        ("export[0].tls", "it has: /a.b, /c"),
        ("export[3].tls", "it has: /a.b, /c"),
        ("export[/c].client[1].squash", "has no [[client]]"),
        ("limits", "is a table"),
        ("mode.x", "is not a table"),
    ] {
        let error = set_in_text(FILE, name, "1").unwrap_err();
        assert!(error.contains(says), "{name}: {error}");
    }
    assert!(set_in_text("a = ", "a", "1").unwrap_err().contains("is not TOML"));
}
