//! Small files in directories, and their names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_wire::nfs3::StableHow;

use crate::names::{Names, content_id};
use crate::protocol::Handle;

/// A name that is built without allocation. The longest is `cNNNNNNNNNN-NNNNNNNNNN`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Name {
    bytes: [u8; 24],
    len: u8,
}

impl Name {
    /// Returns the name of a letter for the kind, a client, and a number.
    pub(crate) fn new(letter: char, client: u32, number: u64) -> Self {
        let mut name = Self::default();
        // In practice both numbers have at most ten digits, so the name fits. The server would refuse a truncated
        // duplicate.
        let _ = write!(name, "{letter}{client}-{number}");
        name
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let start = usize::from(self.len);
        let end = start + text.len();
        self.bytes.get_mut(start..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end as u8;
        Ok(())
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

/// The small files of one client, and their directories.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) client: u32,
    /// Directory that contains the directories of files.
    pub(crate) base: Handle,
    /// Handles of the directories, shared between clients or the client's own.
    pub(crate) dirs: Arc<[OnceLock<Handle>]>,
    /// True if this client makes and removes the directories.
    pub(crate) owns_dirs: bool,
    pub(crate) items: u32,
    pub(crate) items_per_dir: u32,
    /// Bytes in each file.
    pub(crate) item_size: u32,
    pub(crate) stable: StableHow,
    /// Promised states of files and of directories, if they are checked.
    pub(crate) names: Option<(Arc<Names>, Arc<Names>)>,
    files: Box<[Item]>,
}

/// A small file and its client's knowledge about it.
#[derive(Debug, Default)]
struct Item {
    handle: OnceLock<Handle>,
    renamed: AtomicBool,
}

impl Tree {
    /// Makes the tree of a client below `base`. `names` are the promised states of its names, if the run checks them.
    pub(crate) fn new(
        client: u32,
        base: Handle,
        dirs: Arc<[OnceLock<Handle>]>,
        owns_dirs: bool,
        options: &crate::options::Options,
        stable: StableHow,
        names: Option<(Arc<Names>, Arc<Names>)>,
    ) -> Self {
        Self {
            client,
            base,
            dirs,
            owns_dirs,
            items: options.items,
            items_per_dir: options.items_per_dir,
            item_size: options.item_size.0 as u32,
            stable,
            names,
            files: (0..options.items).map(|_| Item::default()).collect(),
        }
    }

    /// Returns the present name of an item.
    pub(crate) fn name(&self, item: u32) -> Name {
        let renamed = self.files[item as usize].renamed.load(Ordering::Relaxed);
        if renamed { self.new_name(item) } else { Name::new('f', self.client, item.into()) }
    }

    /// Returns the name that RENAME gives to an item.
    pub(super) fn new_name(&self, item: u32) -> Name {
        Name::new('r', self.client, item.into())
    }

    /// Notes that an item was renamed.
    pub(super) fn renamed(&self, item: u32) {
        self.files[item as usize].renamed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn dir_name(&self, dir: u32) -> Name {
        Name::new('d', if self.owns_dirs { self.client } else { 0 }, dir.into())
    }

    /// Returns the directory of an item. If it was never made, returns an empty handle, which every server refuses.
    pub(crate) fn dir_of(&self, item: u32) -> Handle {
        known(&self.dirs[(item / self.items_per_dir) as usize])
    }

    /// Returns the handle of an item; an empty handle if it was never made.
    pub(crate) fn handle(&self, item: u32) -> Handle {
        known(&self.files[item as usize].handle)
    }

    /// Returns the place for the handle of an item.
    pub(super) fn made(&self, item: u32) -> &OnceLock<Handle> {
        &self.files[item as usize].handle
    }

    /// Returns the number that the content of an item contains.
    pub(super) fn content_id(&self, item: u32) -> u64 {
        content_id(self.client, item.into())
    }
}

fn known(handle: &OnceLock<Handle>) -> Handle {
    handle.get().copied().unwrap_or(Handle::EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_fits() {
        assert_eq!(Name::new('c', u32::MAX, 9_999_999_999).to_string(), "c4294967295-9999999999");
    }
}
