//! The tree as it is called outside: by outer identities. Remembers what was touched.

use std::collections::{BTreeMap, BTreeSet};

use super::fold::Place;
use crate::given::Given;
use crate::identity::Identity;
use crate::object::{Attributes, Kind, New};
use crate::plant;
use crate::tree::Tree;

pub(super) struct View<'a, T: Tree> {
    tree: &'a mut T,
    /// The directory for what is between two places.
    moving: Identity,
    inner: BTreeMap<Identity, Identity>,
    outer: BTreeMap<Identity, Identity>,
    touched: BTreeSet<Identity>,
}

impl<'a, T: Tree> View<'a, T> {
    pub(super) fn new(tree: &'a mut T) -> Result<Self, T::Error> {
        let moving = tree.moving()?;
        let aliases = tree.aliases()?;
        let outer = aliases.iter().map(|(outer, inner)| (*inner, *outer)).collect();
        let inner = aliases.into_iter().collect();
        Ok(View { tree, moving, inner, outer, touched: BTreeSet::new() })
    }

    pub(super) fn inner(&self, object: Identity) -> Identity {
        self.inner.get(&object).copied().unwrap_or(object)
    }

    fn outer(&self, object: Identity) -> Identity {
        self.outer.get(&object).copied().unwrap_or(object)
    }

    pub(super) fn attributes(&mut self, object: Identity) -> Result<Option<Attributes>, T::Error> {
        let inner = self.inner(object);
        // An alias took its identity from it.
        if self.outer.get(&inner).is_some_and(|outer| *outer != object) {
            return Ok(None);
        }
        self.tree.attributes(inner)
    }

    pub(super) fn is_directory(&mut self, object: Identity) -> Result<bool, T::Error> {
        Ok(self.attributes(object)?.is_some_and(|it| it.kind == Kind::Directory))
    }

    /// What a place leads to; the directory is there.
    pub(super) fn lookup(&mut self, (dir, name): &Place) -> Result<Option<Identity>, T::Error> {
        let dir = self.inner(*dir);
        let found = self.tree.lookup(dir, name)?;
        Ok(found.map(|inner| self.outer(inner)))
    }

    /// Where in the directory for moving an object has its place.
    pub(super) fn moving(&self, object: Identity) -> Place {
        (self.moving, object.to_name().as_bytes().into())
    }

    /// The names in the directory for moving.
    pub(super) fn in_moving(&mut self) -> Result<Vec<Place>, T::Error> {
        let mut names = self.tree.list(self.moving)?;
        names.sort();
        Ok(names.into_iter().map(|name| (self.moving, name)).collect())
    }

    /// The directory that is served.
    pub(super) fn root(&mut self) -> Result<Identity, T::Error> {
        let root = self.tree.root()?;
        Ok(self.outer(root))
    }

    /// Where a directory is now.
    pub(super) fn place(&mut self, dir: Identity) -> Result<Place, T::Error> {
        let inner = self.inner(dir);
        let (parent, name) = self.tree.place(inner)?;
        Ok((self.outer(parent), name))
    }

    /// Makes an object with nothing but a place in the directory for moving; it is known outside as `object`.
    pub(super) fn make(
        &mut self,
        object: Identity,
        kind: Kind,
        new: &New,
        given: Option<&Given>,
    ) -> Result<(), T::Error> {
        let nothing = Given::default();
        let given = given.unwrap_or(&nothing);
        let (moving, name) = self.moving(object);
        // Made before a crash, and not yet known as what it is.
        let inner = match self.tree.lookup(moving, &name)? {
            Some(inner) => inner,
            None => self.tree.make(moving, &name, kind, new, given)?,
        };
        // Before it is known as what it is: else a crash could leave it without.
        self.tree.give(inner, given)?;
        if !plant::active("5: the alias comes last") {
            self.tree.alias(object, inner)?;
        }
        self.inner.insert(object, inner);
        self.outer.insert(inner, object);
        self.touched.insert(object);
        Ok(())
    }

    pub(super) fn link(&mut self, object: Identity, to: &Place) -> Result<(), T::Error> {
        self.touched.extend([object, to.0]);
        let (object, dir) = (self.inner(object), self.inner(to.0));
        self.tree.link(object, dir, &to.1)
    }

    pub(super) fn rename(&mut self, object: Identity, from: &Place, to: &Place) -> Result<(), T::Error> {
        self.touched.extend([object, from.0, to.0]);
        let (from_dir, to_dir) = (self.inner(from.0), self.inner(to.0));
        self.tree.rename((from_dir, &from.1), (to_dir, &to.1))
    }

    pub(super) fn unlink(&mut self, object: Identity, from: &Place) -> Result<(), T::Error> {
        self.touched.extend([object, from.0]);
        let dir = self.inner(from.0);
        self.tree.unlink(dir, &from.1)
    }

    pub(super) fn rmdir(&mut self, from: &Place) -> Result<bool, T::Error> {
        let dir = self.inner(from.0);
        self.tree.rmdir(dir, &from.1)
    }

    pub(super) fn set(&mut self, object: Identity, attributes: &Attributes) -> Result<(), T::Error> {
        self.touched.insert(object);
        let inner = self.inner(object);
        self.tree.set(inner, attributes)
    }

    /// Gives an object the access control list that goes with the mode it is about to get.
    pub(super) fn restrict(&mut self, object: Identity, given: &Given) -> Result<(), T::Error> {
        self.touched.insert(object);
        let inner = self.inner(object);
        self.tree.set_acl(inner, given.acl.as_deref())
    }

    /// Drops the aliases of what is gone. Returns the others, and the outer identities of all that was touched.
    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    pub(super) fn finish(self) -> Result<(Vec<(Identity, Identity)>, Vec<Identity>), T::Error> {
        let mut aliases = Vec::new();
        for (outer, inner) in self.inner {
            if self.tree.attributes(inner)?.is_some() {
                if plant::active("5: the alias comes last") {
                    self.tree.alias(outer, inner)?;
                }
                aliases.push((outer, inner));
            } else {
                self.tree.unalias(outer)?;
            }
        }
        Ok((aliases, self.touched.into_iter().filter(|object| *object != self.moving).collect()))
    }
}
