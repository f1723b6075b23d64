//! Replaces addresses, host names, users and names of served files by pseudonyms.
//!
//! A pseudonym is made of a digest of the name and of this host's machine id, which is not in the archive. So a name
//! has one pseudonym in all archives of a host, and nobody else can try names.

use std::net::IpAddr;

use sha2::{Digest, Sha256};

use super::Piece;

/// Smallest number of a user that is a person (login.defs(5), UID_MIN).
const PEOPLE: u32 = 1000;
/// Number of the user `nobody`.
const NOBODY: u32 = 65_534;

/// The names to replace.
pub(super) struct Redactor {
    key: Vec<u8>,
    host: String,
    users: Vec<String>,
    /// Served directories, longest first. Names below them are replaced.
    served: Vec<String>,
}

impl Redactor {
    /// Returns a redactor for the names of this host and of the exports in the server's status.
    pub(super) fn new(pieces: &[Piece]) -> Self {
        let status = pieces.iter().find(|piece| piece.name == "status.json");
        let status = status.and_then(|piece| serde_json::from_str(piece.text.as_ref().ok()?).ok());
        let status: serde_json::Value = status.unwrap_or_default();
        let exports = status["exports"].as_array().into_iter().flatten();
        let served = exports.filter_map(|export| export["path"].as_str()).map(str::to_owned).collect();
        let key = std::fs::read("/etc/machine-id").unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Self::of(key, host, people(&users), served)
    }

    /// Returns a redactor that replaces these names. `key` is the host's machine id: a name has one pseudonym in all
    /// archives of the host, and another one elsewhere.
    fn of(key: Vec<u8>, host: String, users: Vec<String>, mut served: Vec<String>) -> Self {
        served.retain(|path| path != "/");
        served.sort_by_key(|path| std::cmp::Reverse(path.len()));
        Redactor { key, host, users, served }
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
        // Of two at one place, the longer path is the export.
        found.min_by_key(|(at, end)| (*at, std::cmp::Reverse(*end)))
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
    fn a_name_has_one_pseudonym_and_another_key_another() {
        let one = redactor().redact("192.0.2.7 \"/srv/data/x\" anna");
        assert_eq!(one, redactor().redact("192.0.2.7 \"/srv/data/x\" anna"));
        let key = Redactor { key: b"other".to_vec(), ..redactor() };
        assert_ne!(one, key.redact("192.0.2.7 \"/srv/data/x\" anna"));
        assert!(one.contains("\"/srv/data/name-"), "{one}");
    }
}
