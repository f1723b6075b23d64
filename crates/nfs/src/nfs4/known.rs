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
    /// The clients that the file names, as in the file.
    inner: Mutex<(u32, BTreeSet<Vec<u8>>)>,
}

impl Known {
    /// Reads the file.
    pub(super) fn open(path: Option<PathBuf>) -> io::Result<Self> {
        let text = path.as_deref().map_or(Ok(None), state_file::read)?.unwrap_or_default();
        let (mut epoch, mut owners) = (None, BTreeSet::new());
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("epoch", number)) => epoch = number.parse().ok(),
                Some(("client", name)) => owners.extend(unhex(name)),
                _ => {}
            }
        }
        Ok(Known { path, epoch, inner: Mutex::new((epoch.unwrap_or(0), owners)) })
    }

    /// Returns the clients that the file names.
    pub(super) fn owners(&self) -> Vec<OwnerName> {
        self.inner.lock().1.iter().filter_map(|name| OwnerName::new(name)).collect()
    }

    /// Begins a start with this number, durably. The file names these clients then, or those of before.
    pub(super) fn begin(&self, epoch: u32, owners: Option<&[OwnerName]>) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.0 = epoch;
        if let Some(owners) = owners {
            inner.1 = owners.iter().map(|owner| owner.as_bytes().to_vec()).collect();
        }
        self.write(&inner)
    }

    /// Adds a client at the end of the file, durably, unless the file names it.
    pub(super) fn add(&self, owner: &OwnerName) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.1.insert(owner.as_bytes().to_vec()) {
            return Ok(());
        }
        let Some(path) = &self.path else { return Ok(()) };
        let mut file = File::options().append(true).open(path)?;
        file.write_all(line(owner.as_bytes()).as_bytes())?;
        file.sync_data()
    }

    /// Removes all clients but these, durably.
    pub(super) fn keep(&self, owners: &[OwnerName]) -> io::Result<()> {
        let owners: BTreeSet<&[u8]> = owners.iter().map(OwnerName::as_bytes).collect();
        let mut inner = self.inner.lock();
        let before = inner.1.len();
        inner.1.retain(|name| owners.contains(&name[..]));
        if inner.1.len() < before { self.write(&inner) } else { Ok(()) }
    }

    /// Replaces the file by this epoch and these client owners, durably. Does nothing for a server that keeps no
    /// file.
    fn write(&self, (epoch, owners): &(u32, BTreeSet<Vec<u8>>)) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut text = format!("epoch {epoch}\n");
        for name in owners {
            text += &line(name);
        }
        state_file::replace(path, text)
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
        assert_eq!(text, "epoch 7\nclient 6f6e65\nclient 74776f\n");
        // A line that a power cut has torn names nobody.
        std::fs::write(home.path().join("nfs4-clients"), format!("{text}client 7")).unwrap();
        let found = Known::open(path.clone()).unwrap();
        assert_eq!((found.epoch, found.owners()), (Some(7), vec![owner(b"one"), owner(b"two")]));
        found.keep(&[owner(b"two"), owner(b"three")]).unwrap();
        assert_eq!(Known::open(path).unwrap().owners(), [owner(b"two")]);
    }
}
