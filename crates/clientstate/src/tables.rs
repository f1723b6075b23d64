//! Files and owners: each has one entry, and a number by which the state refers to it.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use slab::Slab;

use crate::ranges::EMPTY;
use crate::{ClientId, FileKey, OwnerName, READ, Share, WRITE};

/// A map by hash. No result depends on the order of its entries.
pub(crate) type Map<K, V> = HashMap<K, V, FixedState>;

/// A file with any state.
#[derive(Debug)]
pub(crate) struct File {
    /// The key, with the handle of its delegations, or any of its handles if there are none.
    pub(crate) key: FileKey,
    /// True if clients know the file by several handles. It gets no delegation: all delegations have one handle.
    pub(crate) has_handles: bool,
    /// The tree of its locks.
    pub(crate) root: u32,
    /// Opens and NLM shares with access for reading, for writing, and that deny reading, writing.
    pub(crate) counts: [u32; 4],
    /// Opens and NLM shares.
    pub(crate) opens: u32,
    pub(crate) delegations: u32,
    pub(crate) waiters: u32,
}

impl File {
    /// Counts a share in or out.
    pub(crate) fn count(&mut self, share: Share, is_added: bool) {
        let bits = [share.access & READ, share.access & WRITE, share.deny & READ, share.deny & WRITE];
        for (count, bit) in self.counts.iter_mut().zip(bits) {
            if bit != 0 {
                *count = if is_added { *count + 1 } else { count.saturating_sub(1) };
            }
        }
    }

    /// Returns true if a share conflicts with the counted ones, after those of `own` are counted out.
    pub(crate) fn excludes(&self, wanted: Share, own: Share) -> bool {
        let less = |count: u32, bits: u8, bit: u8| count > u32::from(bits & bit != 0);
        let [readers, writers, no_readers, no_writers] = self.counts;
        wanted.access & READ != 0 && less(no_readers, own.deny, READ)
            || wanted.access & WRITE != 0 && less(no_writers, own.deny, WRITE)
            || wanted.deny & READ != 0 && less(readers, own.access, READ)
            || wanted.deny & WRITE != 0 && less(writers, own.access, WRITE)
    }

    fn is_idle(&self) -> bool {
        self.root == EMPTY && self.opens == 0 && self.delegations == 0 && self.waiters == 0
    }
}

/// The files with any state.
#[derive(Debug, Default)]
pub(crate) struct Files {
    slab: Slab<File>,
    by_key: Map<FileKey, u32>,
}

impl Files {
    pub(crate) fn find(&self, key: &[u8]) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Returns the number of a file, which gets an entry if it has none. Remembers whether its handles differ.
    pub(crate) fn get_or_add(&mut self, key: &FileKey) -> u32 {
        if let Some(number) = self.find(key) {
            let file = self.at_mut(number);
            file.has_handles |= file.key.handle() != key.handle();
            return number;
        }
        let file = File {
            key: key.clone(),
            has_handles: false,
            root: EMPTY,
            counts: [0; 4],
            opens: 0,
            delegations: 0,
            waiters: 0,
        };
        let number = self.slab.insert(file) as u32;
        self.by_key.insert(key.clone(), number);
        number
    }

    pub(crate) fn at(&self, number: u32) -> &File {
        &self.slab[number as usize]
    }

    pub(crate) fn at_mut(&mut self, number: u32) -> &mut File {
        &mut self.slab[number as usize]
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.slab.contains(number as usize)
    }

    /// Removes a file without any state.
    pub(crate) fn remove_if_idle(&mut self, number: u32) {
        if self.slab.get(number as usize).is_some_and(File::is_idle) {
            let file = self.slab.remove(number as usize);
            self.by_key.remove(&file.key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &File)> {
        self.slab.iter().map(|(number, file)| (number as u32, file))
    }
}

/// A client or an NLM host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Holder {
    /// An NFSv4 client.
    Client(ClientId),
    /// An NLM host, by its number.
    Host(u32),
}

/// The kind of an owner. Open owners and lock owners have names of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OwnerKind {
    Open,
    Lock,
    /// With the number that tells processes apart.
    Nlm(i32),
}

/// The identity of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerKey {
    pub(crate) holder: Holder,
    pub(crate) kind: OwnerKind,
    pub(crate) name: OwnerName,
}

#[derive(Debug)]
struct Owner {
    key: OwnerKey,
    /// States, locks' files, shares and waiters that refer to this owner.
    uses: u32,
}

/// The owners of opens and locks.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    slab: Slab<Owner>,
    by_key: Map<OwnerKey, u32>,
}

impl Owners {
    pub(crate) fn find(&self, key: &OwnerKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Returns the number of an owner, which gets an entry without uses if it has none.
    pub(crate) fn get_or_add(&mut self, key: &OwnerKey) -> u32 {
        if let Some(number) = self.find(key) {
            return number;
        }
        let number = self.slab.insert(Owner { key: key.clone(), uses: 0 }) as u32;
        self.by_key.insert(key.clone(), number);
        number
    }

    pub(crate) fn key(&self, number: u32) -> &OwnerKey {
        &self.slab[number as usize].key
    }

    pub(crate) fn holder(&self, number: u32) -> Holder {
        self.key(number).holder
    }

    pub(crate) fn add_use(&mut self, number: u32) {
        self.slab[number as usize].uses += 1;
    }

    /// Ends one use of an owner. The owner is forgotten with its last use.
    pub(crate) fn remove_use(&mut self, number: u32) {
        if let Some(owner) = self.slab.get_mut(number as usize) {
            owner.uses = owner.uses.saturating_sub(1);
        }
        self.remove_if_idle(number);
    }

    /// Forgets an owner that nothing uses, such as one that was only looked up for a refused request.
    pub(crate) fn remove_if_idle(&mut self, number: u32) {
        if self.slab.get(number as usize).is_some_and(|owner| owner.uses == 0) {
            let owner = self.slab.remove(number as usize);
            self.by_key.remove(&owner.key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &OwnerKey, u32)> {
        self.slab.iter().map(|(number, owner)| (number as u32, &owner.key, owner.uses))
    }
}
