//! The file `nfs4-clients` of the state directory: the clients that may reclaim state if no log has it, and the number
//! of the last start. docs/on-disk-format.md has its lines.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use forebay_clientstate::OwnerName;
use forebay_common::lock::Mutex;
use forebay_common::state_file;

/// The clients of the file.
pub(super) struct Known {
    /// `None`: nothing is kept.
    path: Option<PathBuf>,
    /// The number of the start before, if there was one.
    pub(super) epoch: Option<u32>,
    inner: Mutex<Inner>,
}

/// The contents of the file.
struct Inner {
    /// The number of the start.
    epoch: u32,
    /// The clients. The file names each of them, durably.
    owners: BTreeSet<Vec<u8>>,
    /// True if the start gave the clients a grace period, and nobody has noted its end. A start after a kill gives
    /// those that have not come back another one.
    in_grace: bool,
    /// True if a line at the end of the file may be cut short, because a write failed.
    is_torn: bool,
}

impl Known {
    /// Reads the file. A power cut may have left a part of the last line, which names no client.
    pub(super) fn open(path: Option<PathBuf>) -> io::Result<Self> {
        let text = path.as_deref().map_or(Ok(None), state_file::read)?.unwrap_or_default();
        let (mut epoch, mut owners, mut in_grace) = (None, BTreeSet::new(), false);
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            match line.split_once(' ') {
                Some(("epoch", number)) => epoch = number.parse().ok(),
                Some(("client", name)) => owners.extend(unhex(name)),
                None if line == "grace" => in_grace = true,
                _ => {}
            }
        }
        let inner = Inner { epoch: epoch.unwrap_or(0), owners, in_grace, is_torn: !text.ends_with('\n') };
        Ok(Known { path, epoch, inner: Mutex::new(inner) })
    }

    /// Returns the clients that the file names.
    pub(super) fn owners(&self) -> Vec<OwnerName> {
        self.inner.lock().owners.iter().filter_map(|name| OwnerName::new(name)).collect()
    }

    /// Returns true if clients have a grace period whose end nobody has noted.
    pub(super) fn in_grace(&self) -> bool {
        self.inner.lock().in_grace
    }

    /// Begins a start with this number, durably. The file names these clients then. `None`: it names those of before,
    /// and they have a grace period.
    pub(super) fn begin(&self, epoch: u32, owners: Option<&[OwnerName]>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.epoch = epoch;
        inner.in_grace = owners.is_none();
        if let Some(owners) = owners {
            inner.owners = owners.iter().map(|owner| owner.as_bytes().to_vec()).collect();
        }
        self.write(&mut inner)
    }

    /// Adds a client, durably, unless the file names it. After an error the client is not known, and the next call
    /// tries again.
    pub(super) fn add(&self, owner: &OwnerName) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.owners.insert(owner.as_bytes().to_vec()) {
            return Ok(());
        }
        // A line behind a torn one would be damaged with it.
        let added = if inner.is_torn { self.write(&mut inner) } else { self.append(owner.as_bytes()) };
        if added.is_err() {
            inner.is_torn = true;
            inner.owners.remove(owner.as_bytes());
        }
        added
    }

    /// Removes all clients but those that `owners` returns, durably, and notes that no client has a grace period. Does
    /// nothing if it returns `None`. No client is added meanwhile.
    pub(super) fn keep(&self, owners: impl FnOnce() -> Option<Vec<OwnerName>>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let Some(owners) = owners() else { return Ok(()) };
        let owners: BTreeSet<&[u8]> = owners.iter().map(OwnerName::as_bytes).collect();
        let before = inner.owners.len();
        inner.owners.retain(|name| owners.contains(&name[..]));
        let was_in_grace = std::mem::take(&mut inner.in_grace);
        if was_in_grace || inner.owners.len() < before { self.write(&mut inner) } else { Ok(()) }
    }

    /// Writes a line for a client at the end of the file, durably.
    fn append(&self, name: &[u8]) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = File::options().append(true).open(path)?;
        file.write_all(line(name).as_bytes())?;
        file.sync_data()
    }

    /// Replaces the file, durably. Does nothing for a server that keeps no file.
    fn write(&self, inner: &mut Inner) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let grace = if inner.in_grace { "grace\n" } else { "" };
        let mut text = format!("epoch {}\n{grace}", inner.epoch);
        for name in &inner.owners {
            text += &line(name);
        }
        state_file::replace(path, text)?;
        inner.is_torn = false;
        Ok(())
    }
}

/// Returns the line of a client.
fn line(name: &[u8]) -> String {
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("client {name}\n")
}

/// Returns the bytes that pairs of hexadecimal digits stand for, or `None` if the text has anything else.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_the_clients_that_may_reclaim() {
        let home = tempfile::tempdir().unwrap();
        let path = Some(home.path().join("nfs4-clients"));
        let owner = |name: &[u8]| OwnerName::new(name).unwrap();
        let known = Known::open(path.clone()).unwrap();
        assert_eq!((known.epoch, known.owners().len()), (None, 0));
        known.begin(7, None).unwrap();
        [&b"one"[..], b"two", b"one"].iter().for_each(|name| known.add(&owner(name)).unwrap());
        let text = std::fs::read_to_string(home.path().join("nfs4-clients")).unwrap();
        assert_eq!(text, "epoch 7\ngrace\nclient 6f6e65\nclient 74776f\n");
        // A line that a power cut has torn names nobody.
        std::fs::write(home.path().join("nfs4-clients"), format!("{text}client 746872")).unwrap();
        let found = Known::open(path.clone()).unwrap();
        assert_eq!((found.epoch, found.owners()), (Some(7), vec![owner(b"one"), owner(b"two")]));
        found.keep(|| None).unwrap();
        assert!(Known::open(path.clone()).unwrap().in_grace());
        found.keep(|| Some(vec![owner(b"two"), owner(b"three")])).unwrap();
        let found = Known::open(path).unwrap();
        assert_eq!((found.owners(), found.in_grace()), (vec![owner(b"two")], false));
    }

    #[test]
    fn a_client_that_could_not_be_written_is_written_by_the_next_attempt() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("nfs4-clients");
        let owner = |name: &[u8]| OwnerName::new(name).unwrap();
        let known = Known::open(Some(path.clone())).unwrap();
        known.begin(7, None).unwrap();
        known.add(&owner(b"one")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        for _ in 0..2 {
            assert!(known.add(&owner(b"two")).is_err());
            assert_eq!(known.owners(), [owner(b"one")]);
        }
        // A full file system takes a part of a line.
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, format!("{text}client 7")).unwrap();
        for name in [&b"two"[..], b"six"] {
            known.add(&owner(name)).unwrap();
        }
        let found = Known::open(Some(path)).unwrap();
        assert_eq!(
            (found.epoch, found.owners()),
            (Some(7), ["one", "six", "two"].map(|name| owner(name.as_bytes())).into())
        );
    }
}
