//! The state directory's records of the exports, and the administrator's decisions about them.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_common::state_file;

use crate::identity::export_identity::ExportIdentity;

const FILE: &str = "identities";
const ADOPT: &str = "adopt";

/// An export as the state directory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownExport {
    /// A value in the export's handles, so that handles of its earlier directory name nothing; 0 for no value.
    pub salt: u64,
    /// The directory.
    pub identity: ExportIdentity,
}

/// All of them, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownExports(pub BTreeMap<u32, KnownExport>);

/// The way in which a directory is accepted under an export that had another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The directory is another one. The cache's data for the old one is set aside.
    New,
    /// The directory holds the recorded files, as an administrator knows. The cache's data goes there.
    Same,
}

/// An administrator's decision that a directory, as it is now, is to be served although it is not the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The export's directory.
    pub path: PathBuf,
    /// The directory that is there.
    pub identity: ExportIdentity,
    /// The way to accept it.
    pub how: How,
}

impl KnownExports {
    /// Reads the file of the state directory; nothing if there is none.
    pub fn read(state_dir: &Path) -> io::Result<Self> {
        let text = state_file::read(&state_dir.join(FILE))?.unwrap_or_default();
        let known = |line: &str| {
            let (numbers, identity) = line.split_once(';')?;
            let (id, salt) = numbers.split_once(' ')?;
            let identity = parse(identity)?;
            Some((id.parse().ok()?, KnownExport { salt: salt.parse().ok()?, identity }))
        };
        let known: Option<_> = text.lines().map(known).collect();
        // An unreadable file must not count as an empty one.
        known.map(KnownExports).ok_or_else(|| damaged(state_dir, FILE))
    }

    /// Writes it, durably.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        if Self::read(state_dir).is_ok_and(|before| before == *self) {
            return Ok(());
        }
        let known = self.0.iter();
        let lines = known.map(|(id, known)| format!("{id} {};{}\n", known.salt, line(&known.identity)));
        state_file::replace(&state_dir.join(FILE), lines.collect::<String>())
    }
}

impl Adoption {
    /// Returns the decisions since the last start.
    pub fn read(state_dir: &Path) -> io::Result<Vec<Self>> {
        let adoption = |line: &str| {
            let (how, rest) = line.split_once(';')?;
            let (path, identity) = rest.split_once(';')?;
            let how = if how == "same" { How::Same } else { How::New };
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(&unhex(path)?));
            Some(Adoption { path, identity: parse(identity)?, how })
        };
        let text = state_file::read(&state_dir.join(ADOPT))?.unwrap_or_default();
        let all: Option<_> = text.lines().map(adoption).collect();
        all.ok_or_else(|| damaged(state_dir, ADOPT))
    }

    /// Writes the decision for the next start, durably.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        let mut all = Self::read(state_dir)?;
        all.retain(|other| other.path != self.path);
        all.push(self.clone());
        let lines = all.iter().map(|it| {
            let how = if it.how == How::Same { "same" } else { "new" };
            let path = it.path.as_os_str().as_bytes().iter();
            let path: String = path.map(|byte| format!("{byte:02x}")).collect();
            format!("{how};{path};{}\n", line(&it.identity))
        });
        state_file::replace(&state_dir.join(ADOPT), lines.collect::<String>())
    }

    /// Removes the decisions, durably, after they were carried out.
    pub fn clear(state_dir: &Path) -> io::Result<()> {
        state_file::remove(&state_dir.join(ADOPT))
    }
}

/// Returns the error for a file of the state directory that cannot be read.
fn damaged(state_dir: &Path, name: &str) -> io::Error {
    state_file::damaged(&state_dir.join(name), "restore it, or remove it")
}

/// Returns an identity as one line of text.
fn line(identity: &ExportIdentity) -> String {
    let ExportIdentity { magic, uuid, part, root, mount_root, source, mounted_at } = identity;
    let plain = |text: &str| text.replace(|c: char| c.is_control() || c == ';', "?");
    let (uuid, mounted) = (u128::from_be_bytes(*uuid), u8::from(*mount_root));
    format!("{magic};{uuid:032x};{part};{root};{mounted};{};{}", plain(source), plain(mounted_at))
}

/// Returns the identity in a line; `None` if the line has none.
fn parse(line: &str) -> Option<ExportIdentity> {
    let mut fields = line.split(';');
    let mut next = || fields.next();
    Some(ExportIdentity {
        magic: next()?.parse().ok()?,
        uuid: u128::from_str_radix(next()?, 16).ok()?.to_be_bytes(),
        part: next()?.parse().ok()?,
        root: next()?.parse().ok()?,
        mount_root: next()? == "1",
        source: next()?.to_owned(),
        mounted_at: next()?.to_owned(),
    })
}

/// Returns the bytes that a text has as hexadecimal digits; `None` if it has other characters.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> ExportIdentity {
        ExportIdentity {
            magic: 0x9123_683e,
            uuid: [0xab; 16],
            part: 256,
            root: u64::MAX,
            mount_root: true,
            source: "/dev/sdb".into(),
            mounted_at: "/srv/with space".into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(KnownExports::read(dir.path()).unwrap(), KnownExports::default());
        let known = KnownExports([(7, KnownExport { salt: u64::MAX, identity: identity() })].into());
        known.write(dir.path()).unwrap();
        assert_eq!(KnownExports::read(dir.path()).unwrap(), known);
        std::fs::write(dir.path().join(FILE), "7 something\n").unwrap();
        assert!(KnownExports::read(dir.path()).is_err(), "damaged, which is not nothing");
    }

    #[test]
    fn an_adoption_is_said_once_for_each_directory() {
        let dir = tempfile::tempdir().unwrap();
        let adoption = |how| Adoption { path: "/srv/a;b".into(), identity: identity(), how };
        adoption(How::New).write(dir.path()).unwrap();
        adoption(How::Same).write(dir.path()).unwrap();
        assert_eq!(Adoption::read(dir.path()).unwrap(), [adoption(How::Same)]);
        Adoption::clear(dir.path()).unwrap();
        Adoption::clear(dir.path()).unwrap();
        assert_eq!(Adoption::read(dir.path()).unwrap(), []);
    }
}
