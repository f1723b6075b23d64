//! Replaces addresses, host names, users and names of served files by pseudonyms.
//!
//! A pseudonym is made of a digest of the name and of this host's machine id, which is not in the archive. So a name
//! has one pseudonym in all archives of a host, and nobody else can try names.

use std::net::IpAddr;
use std::path::Path;

use forebay_config::{Flags, resolve};
use sha2::{Digest, Sha256};

use super::Piece;
use crate::support_args::SupportArgs;

/// Smallest number of a user that is a person (login.defs(5), UID_MIN).
const PEOPLE: u32 = 1000;
/// Number of the user `nobody`.
const NOBODY: u32 = 65_534;

/// Directories at the root that have no served files. Paths in them stay if no export is known.
const OF_THE_SYSTEM: &[&str] =
    &["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr"];

/// The names to replace.
pub(super) struct Redactor {
    key: Vec<u8>,
    host: String,
    users: Vec<String>,
    /// Served directories, longest first. Names below them are replaced.
    served: Vec<String>,
    /// True if the exports are not known, or one is `/`. All paths are replaced then, except those of the system.
    everywhere: bool,
    /// Directories whose paths stay even if all others are replaced.
    kept: Vec<String>,
}

impl Redactor {
    /// Returns a redactor for the names of this host and of the exports: those in the server's status, those of the
    /// configuration file, and those that earlier servers served.
    pub(super) fn new(pieces: &[Piece], args: &SupportArgs) -> Self {
        let text_of = |name| {
            let piece = pieces.iter().find(|piece| piece.name == name);
            piece.and_then(|piece| piece.text.as_deref().ok()).unwrap_or_default()
        };
        let status: serde_json::Value = serde_json::from_str(text_of("status.json")).unwrap_or_default();
        let exports = status["exports"].as_array().into_iter().flatten();
        let mut served: Vec<String> =
            exports.filter_map(|export| export["path"].as_str()).map(str::to_owned).collect();
        served.extend(configured(&args.config));
        served.extend(once_served(text_of("events.jsonl")));
        let state_dir = status["state_dir"].as_str().map(str::to_owned);
        let named = args.target.state_dir.iter().map(|dir| dir.display().to_string());
        let key = std::fs::read("/etc/machine-id").unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let kept = state_dir.into_iter().chain(named).collect();
        Redactor { kept, ..Self::of(key, host, people(&users), served) }
    }

    /// Returns a redactor that replaces these names. `key` is the host's machine id: a name has one pseudonym in all
    /// archives of the host, and another one elsewhere.
    fn of(key: Vec<u8>, host: String, users: Vec<String>, mut served: Vec<String>) -> Self {
        let everywhere = served.is_empty() || served.iter().any(|path| path == "/");
        served.retain(|path| path != "/");
        served.sort_by_key(|path| std::cmp::Reverse(path.len()));
        Redactor { key, host, users, served, everywhere, kept: Vec::new() }
    }

    /// Returns the sentences of README.txt about paths.
    pub(super) fn about_paths(&self) -> &'static str {
        match self.everywhere {
            false => "Paths of exports, of cache devices and of the state directory are as they are.\n",
            true => {
                "The exports are not known, or one is `/`: all names in paths are pseudonyms, except the first name of a path, and \
                 paths of the system and of the state directory.\n"
            }
        }
    }

    /// Returns text with pseudonyms.
    pub(super) fn redact(&self, text: &str) -> String {
        let text = self.files(text);
        self.words(&text)
    }

    /// Returns the pseudonym of a name of a kind.
    fn pseudonym(&self, kind: &str, name: &str) -> String {
        let digest = Sha256::new().chain_update(&self.key).chain_update([0]).chain_update(name).finalize();
        let digits: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        format!("{kind}-{digits}")
    }

    /// Replaces the names below served directories. Where a name ends is not certain in a sentence, since a name may
    /// have spaces: everything up to a quote, a comma, a semicolon, a colon, a bracket or the end of the line counts.
    fn files(&self, text: &str) -> String {
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((at, end)) = self.next_served(rest) {
            redacted.push_str(&rest[..end]);
            let names = &rest[end..];
            let length = names.find(['"', '\'', '`', ',', ';', ':', '(', ')', '\n']).unwrap_or(names.len());
            debug_assert!(at < end);
            for (number, name) in names[..length].split('/').enumerate() {
                if number > 0 {
                    redacted.push('/');
                    if !name.is_empty() {
                        redacted.push_str(&self.pseudonym("name", name));
                    }
                }
            }
            rest = &names[length..];
        }
        redacted + rest
    }

    /// Returns the place of the next served directory that a slash follows, and its end.
    fn next_served(&self, text: &str) -> Option<(usize, usize)> {
        let found = self.served.iter().filter_map(|path| {
            let mut from = 0;
            loop {
                let at = from + text[from..].find(path.as_str())?;
                let end = at + path.len();
                if text[end..].starts_with('/') {
                    return Some((at, end));
                }
                from = end;
            }
        });
        let anywhere = self.everywhere.then(|| self.next_path(text)).flatten();
        // Of two at one place, the longer path is the export.
        found.chain(anywhere).min_by_key(|(at, end)| (*at, std::cmp::Reverse(*end)))
    }

    /// Returns the place of the next absolute path that is not of the system, and the end of its first name.
    fn next_path(&self, text: &str) -> Option<(usize, usize)> {
        let is_inside =
            |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '~' | '+' | '@' | '%');
        let below = |rest: &str, dir: &String| {
            rest.strip_prefix(dir.as_str())
                .is_some_and(|rest| !rest.starts_with(is_inside) || rest.starts_with('/'))
        };
        text.match_indices('/').find_map(|(at, _)| {
            let rest = &text[at + 1..];
            let name = &rest[..rest.find(|c: char| !is_inside(c) || c == '/')?];
            let is_path =
                !text[..at].ends_with(is_inside) && !name.is_empty() && rest[name.len()..].starts_with('/');
            let stays = OF_THE_SYSTEM.contains(&name) || self.kept.iter().any(|dir| below(&text[at..], dir));
            (is_path && !stays).then_some((at, at + 1 + name.len()))
        })
    }

    /// Replaces addresses, the host's name and users, which are words of their own.
    fn words(&self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_' | '%');
        let mut redacted = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let word = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            redacted.push_str(&self.word(&rest[..word]));
            rest = &rest[word..];
            let gap = rest.find(is_part).unwrap_or(rest.len());
            redacted.push_str(&rest[..gap]);
            rest = &rest[gap..];
        }
        redacted
    }

    /// Returns a word, or its pseudonym with the punctuation and the port behind it.
    fn word(&self, word: &str) -> String {
        let bare = word.trim_end_matches(['.', ':']);
        let (name, port) = match bare.split_once(':') {
            Some((name, port)) if !port.is_empty() && !port.contains(':') => (name, &bare[name.len()..]),
            _ => (bare, ""),
        };
        let behind = &word[bare.len()..];
        if let Ok(address) = name.parse::<IpAddr>() {
            let plain = address.is_loopback() || address.is_unspecified();
            let shown = if plain { name.to_owned() } else { self.pseudonym("host", &address.to_string()) };
            return format!("{shown}{port}{behind}");
        }
        if !self.host.is_empty() && name == self.host {
            return format!("{}{port}{behind}", self.pseudonym("host", name));
        }
        match self.users.iter().any(|user| user == name) {
            true => format!("{}{port}{behind}", self.pseudonym("user", name)),
            false => word.to_owned(),
        }
    }
}

/// Returns the exports of a configuration file; none if it has mistakes.
fn configured(file: &Path) -> Vec<String> {
    let flags = Flags { config: Some(file.to_owned()), ..Flags::default() };
    let exports = resolve(&flags).map(|resolved| resolved.settings.exports).unwrap_or_default();
    exports.iter().map(|export| export.path.display().to_string()).collect()
}

/// Returns the directories that servers served, by their events, one event per line.
fn once_served(events: &str) -> Vec<String> {
    let served = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        let message = event["message"].as_str().filter(|_| event["kind"] == "started")?;
        Some(message.strip_prefix("serving ")?.to_owned())
    };
    let mut found: Vec<String> = events.lines().filter_map(served).collect();
    found.sort_unstable();
    found.dedup();
    found.iter().flat_map(|paths| paths.split(", ")).map(str::to_owned).collect()
}

/// Returns the users of /etc/passwd that are people.
fn people(passwd: &str) -> Vec<String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?.parse::<u32>().ok()?);
        (number >= PEOPLE && number != NOBODY).then(|| name.to_owned())
    };
    passwd.lines().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let users =
            people("root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/sh\nnobody:x:65534:1:::\n");
        assert_eq!(users, ["anna"]);
        Redactor::of(b"key".to_vec(), "head1".into(), users, vec!["/srv".into(), "/srv/data".into()])
    }

    #[test]
    fn names_are_replaced_and_what_describes_the_setup_stays() {
        let told = "client 192.0.2.7:1023 wrote /srv/data/secret plan/a.txt: no space; 127.0.0.1:2049 [fd00::7] /srv /dev/sda1";
        let redacted = redactor().redact(told);
        for word in ["192.0.2.7", "secret", "plan", "a.txt", "fd00::7"] {
            assert!(!redacted.contains(word), "{redacted}");
        }
        for part in
            [":1023 wrote /srv/data/name-", "/name-", ": no space; 127.0.0.1:2049 [host-", "] /srv /dev/sda1"]
        {
            assert!(redacted.contains(part), "{part}: {redacted}");
        }
        let redacted = redactor().redact("head1: anna logged in at /home/anna, not annabel, 10:15:02.");
        assert!(!redacted.contains("head1") && !redacted.contains("/anna,"), "{redacted}");
        assert!(redacted.contains("not annabel, 10:15:02."), "{redacted}");
    }

    #[test]
    fn without_known_exports_all_paths_are_replaced_but_those_of_the_system() {
        let kept = vec!["/var/lib/forebay/main".to_owned()];
        for served in [vec![], vec!["/".to_owned()]] {
            let redactor =
                Redactor { kept: kept.clone(), ..Redactor::of(vec![1], String::new(), vec![], served) };
            let told = "lost /srv/data/plan; \"/mnt/secret\" /dev/sda1 /etc/x/y /var/lib/forebay/main/events.jsonl read/write 10.0.0.0/8/9";
            let redacted = redactor.redact(told);
            for word in ["plan", "secret", "/data"] {
                assert!(!redacted.contains(word), "{redacted}");
            }
            for part in [
                "lost /srv/name-",
                "/name-",
                "; \"/mnt/name-",
                "\" /dev/sda1 /etc/x/y /var/lib/forebay/main/events.jsonl read/write",
            ] {
                assert!(redacted.contains(part), "{part}: {redacted}");
            }
            assert!(redactor.about_paths().contains("not known"));
        }
    }

    #[test]
    fn directories_that_were_served_once_count() {
        let event =
            |kind: &str, message: &str| format!("{{\"kind\":\"{kind}\",\"message\":\"{message}\"}}\n");
        let events =
            [event("started", "serving /a, /b/c"), event("x", "serving /d"), "no json\n".into()].concat();
        assert_eq!(once_served(&events), ["/a", "/b/c"]);
    }

    #[test]
    fn a_name_has_one_pseudonym_and_another_key_another() {
        let one = redactor().redact("192.0.2.7 \"/srv/data/x\" anna");
        assert_eq!(one, redactor().redact("192.0.2.7 \"/srv/data/x\" anna"));
        let key = Redactor { key: b"other".to_vec(), ..redactor() };
        assert_ne!(one, key.redact("192.0.2.7 \"/srv/data/x\" anna"));
        assert!(one.contains("\"/srv/data/name-"), "{one}");
    }
}
