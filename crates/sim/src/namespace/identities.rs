//! The identity map of a virtual file system: clients know some objects by another identity than the file system does.

use std::sync::Arc;

use forebay_oplog::{Identity, IdentityMap};

use super::volume::Volume;

impl Volume {
    /// Sets or drops an entry of the identity map.
    pub fn set_alias(&mut self, outer: Identity, inner: Option<Identity>) {
        let identities = Arc::make_mut(&mut self.state.identities);
        match inner {
            Some(inner) => identities.insert(outer, inner),
            None => _ = identities.remove(&outer),
        }
        self.committed();
    }

    /// Makes up an identity for an object, and lets clients know the object by it.
    pub fn make_up(&mut self, inner: Identity) -> Identity {
        self.made_up += 1;
        let outer = Identity::made_up(self.made_up);
        self.set_alias(outer, Some(inner));
        outer
    }

    /// Lets identities be spent.
    pub fn spend(&mut self, gone: Vec<Identity>) {
        Arc::make_mut(&mut self.state.identities).spend(gone);
        self.committed();
    }

    /// Reads the identity map again, as a start of the server does.
    pub fn read_identities(&mut self) {
        let identities = &self.state.identities;
        let read = IdentityMap::read(identities.entries(), &identities.spent().encode());
        self.state.identities = Arc::new(read);
    }

    /// Returns the object that clients know as `outer`, if it exists.
    pub fn resolve(&self, outer: Identity) -> Option<Identity> {
        let inner = self.state.identities.resolve(&outer);
        inner.filter(|inner| self.state.inodes.contains_key(inner))
    }

    /// Returns the identity by which clients know an object, or would know it if it did not need another one.
    pub fn outer(&self, inner: Identity) -> Identity {
        self.state.identities.outer_of(&inner).unwrap_or(inner)
    }
}
