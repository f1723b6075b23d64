//! The identities by which clients, the log and the cache know the objects of a file system, where these are not the
//! file system's own.

use std::collections::BTreeMap;

use crate::identity::Identity;
use crate::planted_bugs;
use crate::spent::Spent;

/// The identities of one file system. An *outer* identity is known to clients, an *inner* one is the file system's own.
/// The two differ for objects that recovery recreated, and for objects with a number that such an object shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityMap {
    inner: BTreeMap<Identity, Identity>,
    outer: BTreeMap<Identity, Identity>,
    /// The inode numbers that outer identities show, each with the number of identities that show it.
    shown: BTreeMap<u64, usize>,
    /// The file ids, by the inode numbers of inner identities.
    fileids: BTreeMap<u64, u64>,
    spent: Spent,
}

impl IdentityMap {
    /// Makes the map from its durable form: the entries (outer, inner), and the list of spent identities.
    pub fn read(entries: impl IntoIterator<Item = (Identity, Identity)>, spent: &[u8]) -> Self {
        let mut map = IdentityMap::default();
        if !planted_bugs::active("spent identities are forgotten at the next start") {
            map.spent = Spent::decode(spent);
        }
        entries.into_iter().for_each(|(outer, inner)| map.insert(outer, inner));
        map
    }

    /// Returns true if every object is known by its own identity.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty() && self.spent.is_empty()
    }

    /// Returns all entries: outer identity, inner identity.
    pub fn entries(&self) -> impl Iterator<Item = (Identity, Identity)> {
        self.inner.iter().map(|(outer, inner)| (*outer, *inner))
    }

    /// Returns the inner identity in the entry of an outer one.
    pub fn entry(&self, outer: &Identity) -> Option<Identity> {
        self.inner.get(outer).copied()
    }

    /// Returns the spent identities.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Makes `inner` known as `outer`, and no other object.
    pub fn insert(&mut self, outer: Identity, inner: Identity) {
        self.take(&outer);
        self.inner.insert(outer, inner);
        self.outer.insert(inner, outer);
        if let Some(shown) = outer.number() {
            *self.shown.entry(shown).or_default() += 1;
            if let Some(number) = inner.number() {
                self.fileids.insert(number, shown);
            }
        }
    }

    /// Removes the entry of an object that is gone. Its outer identity is spent: the file system may give it to another
    /// object, unless it is made up.
    pub fn remove(&mut self, outer: &Identity) -> Option<Identity> {
        let inner = self.take(outer)?;
        if !outer.is_made_up() && !planted_bugs::active("the identity of a recreated object is not spent") {
            self.spent.add(*outer);
        }
        Some(inner)
    }

    /// Removes an alias with its entries in the reverse tables. Returns the identity that the alias led to.
    fn take(&mut self, outer: &Identity) -> Option<Identity> {
        let inner = self.inner.remove(outer)?;
        self.outer.remove(&inner);
        if let Some(number) = inner.number() {
            self.fileids.remove(&number);
        }
        if let Some(shown) = outer.number()
            && let Some(count) = self.shown.get_mut(&shown)
        {
            *count -= 1;
            if *count == 0 {
                self.shown.remove(&shown);
            }
        }
        Some(inner)
    }

    /// Notes that objects with these identities are gone, and that the file system may give the identities to other
    /// objects.
    pub fn spend(&mut self, gone: impl IntoIterator<Item = Identity>) {
        gone.into_iter().for_each(|identity| self.spent.add(identity));
    }

    /// Notes that the file system has given this identity to an object, and forgets the spent identities that it has
    /// counted past.
    pub fn see(&mut self, given: &Identity) {
        self.spent.see(given);
    }

    /// Returns the identity by which clients know an object. `None` says that the object needs an identity of its own.
    pub fn outer_of(&self, inner: &Identity) -> Option<Identity> {
        match self.outer.get(inner) {
            Some(outer) => Some(*outer),
            None if self.spent.has(inner)
                && !planted_bugs::active("an object with a spent identity keeps it") =>
            {
                None
            }
            None => inner.number().is_none_or(|number| !self.shown.contains_key(&number)).then_some(*inner),
        }
    }

    /// Returns the identity that the file system has for the object that clients know as `outer`. `None` says that
    /// there is no such object: an object that has the identity in the file system is known to clients by another one.
    pub fn resolve(&self, outer: &Identity) -> Option<Identity> {
        let inner = self.inner.get(outer).copied().unwrap_or(*outer);
        // An object that is older than the entry that shows its number keeps its identity, until it gets an entry.
        let known = || self.outer.get(&inner).map_or(!self.spent.has(outer), |known| known == outer);
        (known() || planted_bugs::active("the handle of an object that is known by another identity works"))
            .then_some(inner)
    }

    /// Returns the file id of the object with this inode number.
    pub fn fileid(&self, number: u64) -> u64 {
        self.fileids.get(&number).copied().unwrap_or(number)
    }
}
