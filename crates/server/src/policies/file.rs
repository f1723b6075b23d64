//! Rules in a file of the state directory, which is replaced atomically and durably.

use std::io;
use std::path::{Path, PathBuf};

use forebay_common::state_file;
use forebay_config::Policy;
use forebay_vfs::PolicyRoot;
use serde::{Deserialize, Serialize};

/// The version of the file. A later version is refused.
const VERSION: u32 = 1;

/// A rule about a file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The file or directory.
    #[serde(with = "text")]
    pub(super) root: PolicyRoot,
    /// The last known path of it.
    pub(super) path: PathBuf,
    #[serde(flatten)]
    pub(super) rule: Policy,
}

#[derive(Serialize, Deserialize)]
struct Records {
    version: u32,
    rules: Vec<Record>,
}

/// Reads the rules from their file. A missing file means no rules. Fails for a damaged file, and for one of a later
/// version.
pub(super) fn read(path: &Path) -> io::Result<Vec<Record>> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Some(text) = state_file::read(path)? else { return Ok(Vec::new()) };
    let broken = |error: serde_json::Error| {
        state_file::damaged(path, &format!("restore it, or remove it to begin without its rules ({error})"))
    };
    let Versioned { version } = serde_json::from_str(&text).map_err(broken)?;
    if version != VERSION {
        let message = format!("{} is of a later version of Forebay; start that version", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(serde_json::from_str::<Records>(&text).map_err(broken)?.rules)
}

/// Replaces the file of the rules, durably.
pub(super) fn write(path: &Path, rules: &[Record]) -> io::Result<()> {
    let text = serde_json::to_string_pretty(&Records { version: VERSION, rules: rules.to_vec() })?;
    state_file::replace(path, text + "\n")
}

/// Writes the root of a rule as text.
mod text {
    use forebay_vfs::PolicyRoot;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(root: &PolicyRoot, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(root)
    }

    /// Reads a directory's identity from the text that `serialize` has written.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyRoot, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| serde::de::Error::custom("no file or directory"))
    }
}

#[cfg(test)]
mod tests {
    use forebay_config::{Keep, Mode};

    use super::*;

    #[test]
    fn rules_are_read_as_they_were_written_and_a_damaged_file_is_no_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policies.json");
        assert_eq!(read(&path).unwrap(), []);
        let rule = Policy { cache: Some(Keep::Pin), mode: Some(Mode::WriteAround), ..Policy::default() };
        let root = "070000000100aabbccddeeff0011".parse().unwrap();
        let record = Record { root, path: "/srv/data\n1".into(), rule };
        write(&path, std::slice::from_ref(&record)).unwrap();
        assert_eq!(read(&path).unwrap(), [record]);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("later version"));
        for damaged in ["", &text[..text.len() / 2], &text.replace("0700", "zz")] {
            std::fs::write(&path, damaged).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("damaged"), "{damaged}");
        }
    }
}
