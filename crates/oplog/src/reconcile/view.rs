//! The tree in terms of outer identities, which are the identities that clients know. The view records the touched
//! objects.

use std::collections::{BTreeMap, BTreeSet};

use super::fold::Place;
use crate::given::Given;
use crate::identity::Identity;
use crate::object::{Attributes, Kind, New};
use crate::planted_bugs;
use crate::tree::Tree;

pub(super) struct View<'a, T: Tree> {
    tree: &'a mut T,
    /// The directory for objects between two places.
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
        // An alias gave this object's identity to another object.
        if self.outer.get(&inner).is_some_and(|outer| *outer != object) {
            return Ok(None);
        }
        self.tree.attributes(inner)
    }

    pub(super) fn is_directory(&mut self, object: Identity) -> Result<bool, T::Error> {
        Ok(self.attributes(object)?.is_some_and(|it| it.kind == Kind::Directory))
    }

    /// Returns the object that a place leads to. The directory must exist.
    pub(super) fn lookup(&mut self, (dir, name): &Place) -> Result<Option<Identity>, T::Error> {
        let dir = self.inner(*dir);
        let found = self.tree.lookup(dir, name)?;
        Ok(found.map(|inner| self.outer(inner)))
    }

    /// Returns an object's place in the directory for moving.
    pub(super) fn moving(&self, object: Identity) -> Place {
        (self.moving, object.to_name().as_bytes().into())
    }

    /// Returns the names in the directory for moving.
    pub(super) fn in_moving(&mut self) -> Result<Vec<Place>, T::Error> {
        let mut names = self.tree.list(self.moving)?;
        names.sort();
        Ok(names.into_iter().map(|name| (self.moving, name)).collect())
    }

    /// Returns the served directory.
    pub(super) fn root(&mut self) -> Result<Identity, T::Error> {
        let root = self.tree.root()?;
        Ok(self.outer(root))
    }

    /// Returns the present place of a directory.
    pub(super) fn place(&mut self, dir: Identity) -> Result<Place, T::Error> {
        let inner = self.inner(dir);
        let (parent, name) = self.tree.place(inner)?;
        Ok((self.outer(parent), name))
    }

    /// Makes an object whose only place is in the directory for moving. Clients know it as `object`.
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
        // A recovery before a crash may have made the object without its alias.
        let inner = match self.tree.lookup(moving, &name)? {
            Some(inner) => inner,
            None => self.tree.make(moving, &name, kind, new, given)?,
        };
        // The properties come before the alias: otherwise a crash could leave the object without them.
        self.tree.give(inner, given)?;
        if !planted_bugs::active("5: the alias comes last") {
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

    /// Sets the access control list that goes with the mode that the object is about to get.
    pub(super) fn restrict(&mut self, object: Identity, given: &Given) -> Result<(), T::Error> {
        self.touched.insert(object);
        let inner = self.inner(object);
        self.tree.set_acl(inner, given.acl.as_deref())
    }

    /// Drops the aliases of objects that no longer exist. Returns the other aliases, and the outer identities of all
    /// touched objects.
    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    pub(super) fn finish(self) -> Result<(Vec<(Identity, Identity)>, Vec<Identity>), T::Error> {
        let mut aliases = Vec::new();
        for (outer, inner) in self.inner {
            if self.tree.attributes(inner)?.is_some() {
                if planted_bugs::active("5: the alias comes last") {
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
