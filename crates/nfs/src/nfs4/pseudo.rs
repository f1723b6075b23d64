//! The directories above the exports (RFC 8881 section 7.3): a client that mounts `/` sees the exports by their names.
//!
//! If one export is `/`, its directory is the root, and other exports are found in it by their first name. Otherwise
//! the root is a directory of the server's own, with the names on the way to the exports.

use std::collections::BTreeMap;

use forebay_vfs::{Export, Exports};
use forebay_wire::nfs3::FileHandle;
use xxhash_rust::xxh3::xxh3_64;

/// The first byte of the handles of directories above the exports. Handles of inodes begin with another one.
const FORMAT: u8 = 0xf4;

/// A directory above the exports. A directory that no longer leads to an export is empty, and keeps its number.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The names in it, in their order.
    pub(super) names: BTreeMap<Vec<u8>, Entry>,
    /// The directory above; the root is its own.
    pub(super) parent: usize,
    /// The path, for the handle.
    path: Vec<u8>,
}

/// The thing that a name above the exports leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A directory above the exports.
    Node(usize),
    /// The root of the export with this id.
    Export(u32),
}

/// All directories above the exports.
#[derive(Default)]
pub(super) struct Pseudo {
    nodes: Vec<Node>,
    /// The id of the export that is `/`.
    root_export: Option<u32>,
    /// The number of changes of the exports since the start.
    changes: u32,
}

impl Pseudo {
    /// Returns the directories above these exports.
    pub(super) fn new(exports: &Exports) -> Self {
        let root = Node { path: b"/".to_vec(), ..Node::default() };
        Pseudo { nodes: vec![root], ..Pseudo::default() }.of(named(exports))
    }

    /// Returns the directories above other exports. The directories of before keep their numbers and handles.
    pub(super) fn changed(&self, exports: &Exports) -> Self {
        self.emptied().of(named(exports))
    }

    /// Returns the directories without names.
    fn emptied(&self) -> Self {
        let empty =
            |node: &Node| Node { names: BTreeMap::new(), parent: node.parent, path: node.path.clone() };
        Pseudo { nodes: self.nodes.iter().map(empty).collect(), root_export: None, changes: self.changes + 1 }
    }

    /// Enters the names of the exports, each with its id.
    fn of<'a>(mut self, exports: impl Iterator<Item = (&'a str, u32)>) -> Self {
        for (name, id) in exports {
            let names: Vec<_> = name.split('/').filter(|name| !name.is_empty()).collect();
            let Some((last, above)) = names.split_last() else {
                self.root_export = Some(id);
                continue;
            };
            let mut at = 0;
            for name in above {
                let Some(next) = self.enter(at, name.as_bytes()) else { break };
                at = next;
            }
            self.nodes[at].names.entry(last.as_bytes().to_vec()).or_insert(Entry::Export(id));
        }
        self
    }

    /// Returns the directory with this name, which it makes if there is none; `None` if an export has the name.
    fn enter(&mut self, at: usize, name: &[u8]) -> Option<usize> {
        match self.nodes[at].names.get(name) {
            Some(Entry::Node(node)) => return Some(*node),
            Some(Entry::Export(_)) => return None,
            None => {}
        }
        let mut path = self.nodes[at].path.clone();
        path.extend_from_slice(name);
        path.push(b'/');
        let known = self.nodes.iter().position(|node| node.path == path);
        let number = known.unwrap_or(self.nodes.len());
        if known.is_none() {
            self.nodes.push(Node { parent: at, path, ..Node::default() });
        }
        self.nodes[at].names.insert(name.to_vec(), Entry::Node(number));
        Some(number)
    }

    /// Returns the root that clients see.
    pub(super) fn root(&self) -> Entry {
        self.root_export.map_or(Entry::Node(0), Entry::Export)
    }

    /// Returns the change attribute of a directory above the exports. It is another one after each start.
    pub(super) fn change(&self) -> u64 {
        u64::from(std::process::id()) << 32 | u64::from(self.changes)
    }

    /// Returns true if a handle may be that of a directory above the exports.
    pub(super) fn is_handle(handle: &[u8]) -> bool {
        handle.first() == Some(&FORMAT)
    }

    pub(super) fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// Returns the entry of a name in the server's own root. It also lies over the export `/`.
    pub(super) fn over_root(&self, name: &[u8]) -> Option<Entry> {
        self.nodes[0].names.get(name).copied()
    }

    /// Returns true if an export is the one that clients see as the root.
    pub(super) fn is_root(&self, export: &Export) -> bool {
        self.root_export == Some(export.id)
    }

    /// Returns the directory that is above an export's root.
    pub(super) fn above(&self, export: &Export) -> Entry {
        let holds = |node: &Node| node.names.values().any(|entry| *entry == Entry::Export(export.id));
        match self.nodes.iter().position(holds) {
            Some(0) | None => self.root(),
            Some(node) => Entry::Node(node),
        }
    }

    /// Returns the file handle of a directory above the exports. It depends on the path only, so that clients may
    /// keep it over a restart.
    pub(super) fn handle(&self, number: usize) -> FileHandle {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&xxh3_64(&self.nodes[number].path).to_be_bytes());
        FileHandle::new(&bytes).unwrap_or_else(|| unreachable!("nine bytes fit a handle"))
    }

    /// Returns the directory with a handle.
    pub(super) fn find(&self, handle: &[u8]) -> Option<usize> {
        let hash = handle.strip_prefix(&[FORMAT])?;
        (0..self.nodes.len()).find(|number| xxh3_64(&self.nodes[*number].path).to_be_bytes() == hash)
    }

    /// Returns the number that stands for a directory's inode; never 0.
    pub(super) fn fileid(number: usize) -> u64 {
        number as u64 + 1
    }
}

/// Returns the names of the exports with their ids.
fn named(exports: &Exports) -> impl Iterator<Item = (&str, u32)> {
    exports.iter().map(|export| (export.name.as_str(), export.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_keep_their_numbers_when_exports_come_and_go() {
        let root = Node { path: b"/".to_vec(), ..Node::default() };
        let before = Pseudo { nodes: vec![root], ..Pseudo::default() };
        let before = before.of([("/a/b", 1), ("/c/d/e", 2)].into_iter());
        let [Entry::Node(a), Entry::Node(c)] = [&b"a"[..], b"c"].map(|name| before.nodes[0].names[name])
        else {
            panic!("names lead elsewhere")
        };
        let after = before.emptied().of([("/x/y", 3), ("/c/z", 4), ("/", 5)].into_iter());
        assert_eq!(after.find(before.handle(c).as_bytes()), Some(c));
        assert_eq!(after.nodes[c].names.keys().collect::<Vec<_>>(), [b"z"]);
        // A client may still be in a directory that leads nowhere now.
        assert_eq!(after.find(before.handle(a).as_bytes()), Some(a));
        assert!(after.nodes[a].names.is_empty() && !after.nodes[0].names.contains_key(&b"a"[..]));
        assert_eq!((after.root(), before.root()), (Entry::Export(5), Entry::Node(0)));
        assert_ne!(after.change(), before.change());
    }
}
