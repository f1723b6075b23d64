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
    /// Objects of an interrupted recovery, by inner identities, which the log may mean for other objects.
    half_made: BTreeSet<Identity>,
    touched: BTreeSet<Identity>,
}

impl<'a, T: Tree> View<'a, T> {
    /// Returns a view of the tree, with the aliases and half-made objects that it has now.
    pub(super) fn new(tree: &'a mut T) -> Result<Self, T::Error> {
        let moving = tree.moving()?;
        let aliases = tree.aliases()?;
        let outer = aliases.iter().map(|(outer, inner)| (*inner, *outer)).collect();
        let inner = aliases.into_iter().collect();
        let mut view =
            View { tree, moving, inner, outer, half_made: BTreeSet::new(), touched: BTreeSet::new() };
        view.find_half_made()?;
        Ok(view)
    }

    /// Finds the objects that an interrupted recovery has made without their entries in the identity map.
    fn find_half_made(&mut self) -> Result<(), T::Error> {
        for name in self.tree.list(self.moving)? {
            let made = self.tree.lookup(self.moving, &name)?;
            let named = Identity::from_name(&name);
            let known = |inner: &Identity| self.outer.get(inner).copied().unwrap_or(*inner);
            self.half_made.extend(made.filter(|inner| named.is_some_and(|named| known(inner) != named)));
        }
        if planted_bugs::active("a half-made object has the identity of another") {
            self.half_made.clear();
        }
        Ok(())
    }

    pub(super) fn inner(&self, object: Identity) -> Identity {
        self.inner.get(&object).copied().unwrap_or(object)
    }

    /// Returns the identity by which clients know an object of the tree. An object that has a spent identity and no
    /// other one gets another one: the log means another object by that identity.
    fn outer(&mut self, inner: Identity) -> Result<Identity, T::Error> {
        if let Some(outer) = self.outer.get(&inner) {
            return Ok(*outer);
        }
        if !self.tree.is_spent(&inner) {
            return Ok(inner);
        }
        let outer = self.tree.make_up(inner)?;
        self.inner.insert(outer, inner);
        self.outer.insert(inner, outer);
        Ok(outer)
    }

    /// Returns the attributes of the object that the log means; `None` if the tree has no such object.
    pub(super) fn attributes(&mut self, object: Identity) -> Result<Option<Attributes>, T::Error> {
        let inner = self.inner(object);
        // An alias gave this object's identity to another object.
        if self.outer.get(&inner).is_some_and(|outer| *outer != object) {
            return Ok(None);
        }
        if inner == object && self.half_made.contains(&inner) {
            return Ok(None);
        }
        // The object that has a spent identity is not the one that the log means.
        if inner == object && self.tree.is_spent(&inner) {
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
        found.map(|inner| self.outer(inner)).transpose()
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
        self.outer(root)
    }

    /// Returns the present place of a directory.
    pub(super) fn place(&mut self, dir: Identity) -> Result<Place, T::Error> {
        let inner = self.inner(dir);
        let (parent, name) = self.tree.place(inner)?;
        Ok((self.outer(parent)?, name))
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
        self.half_made.remove(&inner);
        self.inner.insert(object, inner);
        self.outer.insert(inner, object);
        self.touched.insert(object);
        Ok(())
    }

    /// Returns true if the identity is no outer one of the identity map, and one of those shows its inode number.
    pub(super) fn is_shown_by_another(&self, object: &Identity) -> bool {
        let number = object.number();
        number.is_some()
            && !self.inner.contains_key(object)
            && self.inner.keys().any(|outer| outer.number() == number)
    }

    /// Lets clients know an object by its own identity from now on, whatever other identities show.
    pub(super) fn keep(&mut self, object: Identity) -> Result<(), T::Error> {
        self.tree.alias(object, object)?;
        self.inner.insert(object, object);
        self.outer.insert(object, object);
        Ok(())
    }

    /// Gives an object of the tree another name.
    pub(super) fn link(&mut self, object: Identity, to: &Place) -> Result<(), T::Error> {
        self.touched.extend([object, to.0]);
        let (object, dir) = (self.inner(object), self.inner(to.0));
        self.tree.link(object, dir, &to.1)
    }

    /// Moves an object from one name to another.
    pub(super) fn rename(&mut self, object: Identity, from: &Place, to: &Place) -> Result<(), T::Error> {
        self.touched.extend([object, from.0, to.0]);
        let (from_dir, to_dir) = (self.inner(from.0), self.inner(to.0));
        self.tree.rename((from_dir, &from.1), (to_dir, &to.1))
    }

    /// Removes a name of an object.
    pub(super) fn unlink(&mut self, object: Identity, from: &Place) -> Result<(), T::Error> {
        self.touched.extend([object, from.0]);
        let dir = self.inner(from.0);
        self.tree.unlink(dir, &from.1)
    }

    /// Removes an empty directory. Returns false if the directory is not empty.
    pub(super) fn rmdir(&mut self, from: &Place) -> Result<bool, T::Error> {
        let dir = self.inner(from.0);
        self.tree.rmdir(dir, &from.1)
    }

    /// Sets the attributes of an object.
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
