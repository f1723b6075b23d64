//! The operations on a backing file system that reconciliation needs.

use crate::Name;
use crate::given::Given;
use crate::identity::Identity;
use crate::intent::RenameIntent;
use crate::object::{Attributes, Kind, New};

/// A backing file system, as the server itself sees it, without the access rights of a caller.
///
/// All calls name objects by identity, never by path. The identities are the file system's own, except in
/// [`Tree::alias`]. Each change is one transaction, in the order of the calls. A change need not be durable before
/// [`Tree::sync`].
pub trait Tree {
    /// The reason of a failure, and what to do about it.
    type Error: std::error::Error;

    /// Returns the served directory.
    fn root(&mut self) -> Result<Identity, Self::Error>;

    /// Returns the directory for objects between two places, and makes it if it is missing. Clients do not see it.
    fn moving(&mut self) -> Result<Identity, Self::Error>;

    /// Returns the object that a name in a directory leads to. Symbolic links are not followed. `None`: there is no
    /// such name.
    fn lookup(&mut self, dir: Identity, name: &[u8]) -> Result<Option<Identity>, Self::Error>;

    /// Returns an object's attributes. `None`: there is no such object any more.
    fn attributes(&mut self, object: Identity) -> Result<Option<Attributes>, Self::Error>;

    /// Returns the names in a directory except `.` and `..`, in any order.
    fn list(&mut self, dir: Identity) -> Result<Vec<Name>, Self::Error>;

    /// Returns the parent of a directory, and its name there.
    fn place(&mut self, dir: Identity) -> Result<(Identity, Name), Self::Error>;

    /// Makes an object without access rights for any caller, with those of the properties `given` that cannot be set
    /// later. The name must be free.
    fn make(
        &mut self,
        dir: Identity,
        name: &[u8],
        kind: Kind,
        new: &New,
        given: &Given,
    ) -> Result<Identity, Self::Error>;

    /// Sets the properties besides attributes of an object that [`Tree::make`] has just made, and removes all other
    /// properties of these kinds. It may be called repeatedly. A tree whose objects have only attributes need not do
    /// anything.
    fn give(&mut self, _object: Identity, _given: &Given) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Sets an object's access control list, or removes it. The mode is set after that.
    fn set_acl(&mut self, _object: Identity, _acl: Option<&[u8]>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Gives an object that is no directory another name. The name must be free.
    fn link(&mut self, object: Identity, dir: Identity, name: &[u8]) -> Result<(), Self::Error>;

    /// Moves the object under a name. The new name must be free.
    fn rename(&mut self, from: (Identity, &[u8]), to: (Identity, &[u8])) -> Result<(), Self::Error>;

    /// Removes a name of an object that is no directory.
    fn unlink(&mut self, dir: Identity, name: &[u8]) -> Result<(), Self::Error>;

    /// Removes an empty directory. Returns false if the directory is not empty and therefore still there.
    fn rmdir(&mut self, dir: Identity, name: &[u8]) -> Result<bool, Self::Error>;

    /// Sets owner, group, mode and times in this order, as far as they differ. `kind` is the type of the object.
    fn set(&mut self, object: Identity, attributes: &Attributes) -> Result<(), Self::Error>;

    /// Returns the intents in the slots that belong to this log, in any order.
    fn intents(&mut self) -> Result<Vec<RenameIntent>, Self::Error>;

    /// Returns the identities that clients know by another identity: (known to clients, in the file system), in any
    /// order.
    fn aliases(&mut self) -> Result<Vec<(Identity, Identity)>, Self::Error>;

    /// Lets clients know `inner` as `outer` from now on, and no other object as `outer`. One transaction.
    fn alias(&mut self, outer: Identity, inner: Identity) -> Result<(), Self::Error>;

    /// Removes the alias of `outer`.
    fn unalias(&mut self, outer: Identity) -> Result<(), Self::Error>;

    /// Returns true if an existing object is one of the server's own, which no client ever saw.
    fn is_own(&mut self, object: Identity) -> Result<bool, Self::Error>;

    /// Returns true if an identity is spent, so that clients know an object that has it by another one.
    fn is_spent(&mut self, identity: &Identity) -> bool;

    /// Lets these identities be spent from now on, also after a restart. One transaction.
    fn spend(&mut self, gone: Vec<Identity>) -> Result<(), Self::Error>;

    /// Makes up an identity for an object that has a spent one, and lets clients know the object by it. One
    /// transaction.
    fn make_up(&mut self, inner: Identity) -> Result<Identity, Self::Error>;

    /// Makes everything durable.
    fn sync(&mut self) -> Result<(), Self::Error>;
}
