//! The directories above the exports (RFC 8881 section 7.3): a client that mounts `/` sees the exports by their names.
//!
//! If one export is `/`, its directory is the root, and other exports are found in it by their first name. Otherwise
//! the root is a directory of the server's own, with the names on the way to the exports.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_vfs::Export;
use forebay_wire::nfs3::FileHandle;
use xxhash_rust::xxh3::xxh3_64;

/// The first byte of the handles of directories above the exports. Handles of inodes begin with another one.
const FORMAT: u8 = 0xf4;

/// A directory above the exports.
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
    /// The root of the export with this index.
    Export(usize),
}

/// All directories above the exports.
pub(super) struct Pseudo {
    nodes: Vec<Node>,
    pub(super) exports: Vec<Arc<Export>>,
    /// The export that is `/`.
    root_export: Option<usize>,
}

impl Pseudo {
    pub(super) fn new(exports: &[Arc<Export>]) -> Self {
        let mut pseudo = Pseudo {
            nodes: vec![Node { path: b"/".to_vec(), ..Node::default() }],
            exports: exports.to_vec(),
            root_export: None,
        };
        for (index, export) in exports.iter().enumerate() {
            let names: Vec<_> = export.name.split('/').filter(|name| !name.is_empty()).collect();
            let Some((last, above)) = names.split_last() else {
                pseudo.root_export = Some(index);
                continue;
            };
            let mut at = 0;
            for name in above {
                let Some(next) = pseudo.enter(at, name.as_bytes()) else { break };
                at = next;
            }
            pseudo.nodes[at].names.entry(last.as_bytes().to_vec()).or_insert(Entry::Export(index));
        }
        pseudo
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
        let number = self.nodes.len();
        self.nodes.push(Node { parent: at, path, ..Node::default() });
        self.nodes[at].names.insert(name.to_vec(), Entry::Node(number));
        Some(number)
    }

    /// Returns the root that clients see.
    pub(super) fn root(&self) -> Entry {
        self.root_export.map_or(Entry::Node(0), Entry::Export)
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
        self.root_export.is_some_and(|root| self.exports[root].id == export.id)
    }

    /// Returns the directory that is above an export's root.
    pub(super) fn above(&self, export: &Export) -> Entry {
        let holds = |node: &Node| {
            node.names
                .values()
                .any(|entry| matches!(entry, Entry::Export(index) if self.exports[*index].id == export.id))
        };
        match self.nodes.iter().position(holds) {
            Some(0) | None => self.root(),
            Some(node) => Entry::Node(node),
        }
    }

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
