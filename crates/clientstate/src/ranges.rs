//! The byte-range locks of all files: one table for the owners of all protocols.
//!
//! The locks of one owner of one file never overlap. Adjacent ones of one kind are merged. They are in one ordered map,
//! so the locks of an owner are next to each other. For conflicts each file has a treap: a binary tree by first byte,
//! balanced by random priorities, in which each node knows the last byte below it. Finding a conflict, adding and
//! removing a lock take logarithmic time, whatever the number of locks and owners of the file.

use std::collections::BTreeMap;

use slab::Slab;
use smallvec::SmallVec;

use crate::{LockKind, Range};

/// The root of a file without locks.
pub(crate) const EMPTY: u32 = u32::MAX;

/// A lock of an owner of a file, as the owner's own list has it.
#[derive(Clone, Copy, Debug)]
struct Held {
    last: u64,
    kind: LockKind,
    node: u32,
}

/// A lock in the tree of its file.
#[derive(Debug)]
struct Node {
    range: Range,
    /// The last byte of all locks in this subtree.
    last: u64,
    /// The last byte of all write locks in this subtree, plus one; 0 without any.
    last_write: u64,
    owner: u32,
    priority: u32,
    left: u32,
    right: u32,
    kind: LockKind,
}

/// A lock of a file and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    pub(crate) owner: u32,
}

/// The locks of all files.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// By owner, file and first byte.
    held: BTreeMap<(u32, u32, u64), Held>,
    nodes: Slab<Node>,
    seed: u64,
}

impl Ranges {
    /// The seed makes priorities that a client cannot foresee.
    pub(crate) fn new(seed: u64) -> Self {
        Ranges { held: BTreeMap::new(), nodes: Slab::new(), seed }
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns the locks of an owner of a file in order.
    pub(crate) fn of(&self, owner: u32, file: u32) -> impl Iterator<Item = (Range, LockKind)> + '_ {
        let held = self.held.range((owner, file, 0)..=(owner, file, u64::MAX));
        held.map(|(key, held)| (Range { first: key.2, last: held.last }, held.kind))
    }

    /// Returns true if an owner has locks.
    pub(crate) fn any_of(&self, owner: u32) -> bool {
        self.held.range((owner, 0, 0)..=(owner, u32::MAX, u64::MAX)).next().is_some()
    }

    /// Returns the files in which an owner has locks.
    pub(crate) fn files_of(&self, owner: u32) -> Vec<u32> {
        let mut files: Vec<u32> =
            self.held.range((owner, 0, 0)..=(owner, u32::MAX, u64::MAX)).map(|(key, _)| key.1).collect();
        files.dedup();
        files
    }

    /// Replaces the owner's locks in a range: by one of `kind`, or by none.
    pub(crate) fn set(
        &mut self,
        root: &mut u32,
        (owner, file): (u32, u32),
        range: Range,
        kind: Option<LockKind>,
    ) {
        let mut merged = range;
        for (old, old_kind) in self.touched(owner, file, range) {
            let same = Some(old_kind) == kind;
            if !same && !old.overlaps(range) {
                continue;
            }
            self.remove(root, (owner, file), old);
            if same {
                merged = Range { first: merged.first.min(old.first), last: merged.last.max(old.last) };
                continue;
            }
            if old.first < range.first {
                let rest = Range { first: old.first, last: range.first - 1 };
                self.insert(root, (owner, file), rest, old_kind);
            }
            if old.last > range.last
                && !crate::planted_bugs::active("an unlock frees the end of the lock as well")
            {
                let rest = Range { first: range.last + 1, last: old.last };
                self.insert(root, (owner, file), rest, old_kind);
            }
        }
        if let Some(kind) = kind {
            self.insert(root, (owner, file), merged, kind);
        }
    }

    /// Returns the owner's locks that overlap with a range or are adjacent to it.
    fn touched(&self, owner: u32, file: u32, range: Range) -> SmallVec<[(Range, LockKind); 4]> {
        let before = self.held.range((owner, file, 0)..(owner, file, range.first)).next_back();
        let before = before.filter(|(_, held)| held.last >= range.first.saturating_sub(1));
        let inside =
            self.held.range((owner, file, range.first)..=(owner, file, range.last.saturating_add(1)));
        let found = before.into_iter().chain(inside);
        found.map(|(key, held)| (Range { first: key.2, last: held.last }, held.kind)).collect()
    }

    /// Adds a lock that overlaps with no other lock of its owner, to the owner's list and to the tree of the file.
    fn insert(&mut self, root: &mut u32, (owner, file): (u32, u32), range: Range, kind: LockKind) {
        let priority = mix(self.seed ^ mix(range.first ^ u64::from(owner) << 32)) as u32;
        let node = Node {
            range,
            last: range.last,
            last_write: write_end(range, kind),
            owner,
            priority,
            left: EMPTY,
            right: EMPTY,
            kind,
        };
        let node = self.nodes.insert(node) as u32;
        self.held.insert((owner, file, range.first), Held { last: range.last, kind, node });
        let (left, right) = self.split(*root, (range.first, owner));
        let left = self.merge(left, node);
        *root = self.merge(left, right);
    }

    /// Removes the lock of an owner that begins where `range` does, from the list and from the tree. Does nothing
    /// without such a lock.
    fn remove(&mut self, root: &mut u32, (owner, file): (u32, u32), range: Range) {
        let Some(held) = self.held.remove(&(owner, file, range.first)) else { return };
        let (left, rest) = self.split(*root, (range.first, owner));
        let (_, right) = self.split(rest, (range.first, owner.saturating_add(1)));
        *root = self.merge(left, right);
        self.nodes.try_remove(held.node as usize);
    }

    /// Splits a tree into the nodes before a key and all others.
    fn split(&mut self, node: u32, key: (u64, u32)) -> (u32, u32) {
        if node == EMPTY {
            return (EMPTY, EMPTY);
        }
        let at = &self.nodes[node as usize];
        if (at.range.first, at.owner) < key {
            let (middle, right) = self.split(at.right, key);
            self.nodes[node as usize].right = middle;
            self.update(node);
            (node, right)
        } else {
            let (left, middle) = self.split(at.left, key);
            self.nodes[node as usize].left = middle;
            self.update(node);
            (left, node)
        }
    }

    /// Joins two trees, all of the first before all of the second.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == EMPTY || right == EMPTY {
            return if left == EMPTY { right } else { left };
        }
        let (first, second) = (&self.nodes[left as usize], &self.nodes[right as usize]);
        if first.priority >= second.priority {
            let below = self.merge(first.right, right);
            self.nodes[left as usize].right = below;
            self.update(left);
            left
        } else {
            let below = self.merge(left, second.left);
            self.nodes[right as usize].left = below;
            self.update(right);
            right
        }
    }

    /// Computes the ends that a node stores for its subtree: the last byte of any lock, and of any write lock. Its
    /// children are up to date.
    fn update(&mut self, node: u32) {
        let at = &self.nodes[node as usize];
        let (mut last, mut last_write) = (at.range.last, write_end(at.range, at.kind));
        for below in [at.left, at.right].into_iter().filter(|below| *below != EMPTY) {
            let below = &self.nodes[below as usize];
            last = last.max(below.last);
            last_write = last_write.max(below.last_write);
        }
        let at = &mut self.nodes[node as usize];
        (at.last, at.last_write) = (last, last_write);
    }

    /// Calls `found` for the locks that conflict with a lock of `owner`, in order of their first bytes, until it
    /// returns false. Returns false if it did.
    pub(crate) fn conflicts(&self, root: u32, wanted: Lock, found: &mut dyn FnMut(Lock) -> bool) -> bool {
        if root == EMPTY {
            return true;
        }
        let at = &self.nodes[root as usize];
        let reaches = match wanted.kind {
            LockKind::Write => at.last >= wanted.range.first,
            LockKind::Read => at.last_write > wanted.range.first || at.last_write == u64::MAX,
        };
        if !reaches {
            return true;
        }
        if !self.conflicts(at.left, wanted, found) {
            return false;
        }
        if at.range.first > wanted.range.last {
            return true;
        }
        let excludes = wanted.kind == LockKind::Write
            && !crate::planted_bugs::active("read locks do not conflict")
            || at.kind == LockKind::Write;
        if at.range.last >= wanted.range.first && at.owner != wanted.owner && excludes {
            let lock = Lock { range: at.range, kind: at.kind, owner: at.owner };
            if !found(lock) {
                return false;
            }
        }
        self.conflicts(at.right, wanted, found)
    }

    /// Returns the first lock that conflicts with a lock of `wanted.owner`.
    pub(crate) fn conflict(&self, root: u32, wanted: Lock) -> Option<Lock> {
        let mut first = None;
        self.conflicts(root, wanted, &mut |lock| {
            first = Some(lock);
            false
        });
        first
    }

    /// Returns all locks in a tree, in order of their first bytes.
    pub(crate) fn all(&self, root: u32) -> Vec<Lock> {
        let mut locks = Vec::new();
        let (mut stack, mut node) = (Vec::new(), root);
        while node != EMPTY || !stack.is_empty() {
            while node != EMPTY {
                stack.push(node);
                node = self.nodes[node as usize].left;
            }
            let Some(at) = stack.pop().map(|at| &self.nodes[at as usize]) else { break };
            locks.push(Lock { range: at.range, kind: at.kind, owner: at.owner });
            node = at.right;
        }
        locks
    }
}

/// Returns the offset behind a write lock, and 0 for a read lock. The largest value of a subtree tells how far its
/// write locks reach.
fn write_end(range: Range, kind: LockKind) -> u64 {
    // A value of u64::MAX stands for the last offset and the one before it.
    if kind == LockKind::Write { range.last.saturating_add(1) } else { 0 }
}

/// Returns the finalizer of SplitMix64: each bit of the input flips about half of the bits of the output.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
