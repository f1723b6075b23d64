//! What reconciliation needs of a backing file system.

use crate::Name;
use crate::given::Given;
use crate::identity::Identity;
use crate::intent::RenameIntent;
use crate::object::{Attributes, Kind, New};

/// A backing file system, as the server itself (not as some caller) sees it. Everything is told and done by identity, never
/// by path; identities are the file system's own, [`Tree::alias`] apart. Each change is one transaction, in the order of
/// the calls; nothing need be durable before [`Tree::sync`].
pub trait Tree {
    /// Why an operation failed, and what to do about it.
    type Error: std::error::Error;

    /// The directory that is served.
    fn root(&mut self) -> Result<Identity, Self::Error>;

    /// The directory for what is between two places; made if it is not there. Clients do not see it.
    fn moving(&mut self) -> Result<Identity, Self::Error>;

    /// What a name in a directory leads to, without following symbolic links. `None`: there is no such name.
    fn lookup(&mut self, dir: Identity, name: &[u8]) -> Result<Option<Identity>, Self::Error>;

    /// An object's attributes. `None`: there is no such object (any more).
    fn attributes(&mut self, object: Identity) -> Result<Option<Attributes>, Self::Error>;

    /// The names in a directory, but for `.` and `..`, in any order.
    fn list(&mut self, dir: Identity) -> Result<Vec<Name>, Self::Error>;

    /// Where a directory is: its parent and its name there.
    fn place(&mut self, dir: Identity) -> Result<(Identity, Name), Self::Error>;

    /// Makes an object with no rights for anybody, and as much of `given` as cannot be given later. The name is free.
    fn make(
        &mut self,
        dir: Identity,
        name: &[u8],
        kind: Kind,
        new: &New,
        given: &Given,
    ) -> Result<Identity, Self::Error>;

    /// Gives an object that [`Tree::make`] has just made what it is to have besides its attributes, and nothing else of the kind.
    /// May be called again. A tree whose objects have no more than attributes need not do anything.
    fn give(&mut self, _object: Identity, _given: &Given) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Sets an object's access control list, or takes it away. The mode is set after that.
    fn set_acl(&mut self, _object: Identity, _acl: Option<&[u8]>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Gives what is no directory another name. The name is free.
    fn link(&mut self, object: Identity, dir: Identity, name: &[u8]) -> Result<(), Self::Error>;

    /// Moves what is under a name. The new name is free.
    fn rename(&mut self, from: (Identity, &[u8]), to: (Identity, &[u8])) -> Result<(), Self::Error>;

    /// Removes a name of what is no directory.
    fn unlink(&mut self, dir: Identity, name: &[u8]) -> Result<(), Self::Error>;

    /// Removes an empty directory. `false`: it is not empty, and still there.
    fn rmdir(&mut self, dir: Identity, name: &[u8]) -> Result<bool, Self::Error>;

    /// Sets owner, group, mode and times, as far as they differ, in this order; `kind` is what the object is.
    fn set(&mut self, object: Identity, attributes: &Attributes) -> Result<(), Self::Error>;

    /// What the slots say of operations of this log, in any order.
    fn intents(&mut self) -> Result<Vec<RenameIntent>, Self::Error>;

    /// Identities that are known outside under others: (outside, in the file system), in any order.
    fn aliases(&mut self) -> Result<Vec<(Identity, Identity)>, Self::Error>;

    /// From now on `inner` is known outside as `outer`, and nothing else is. One transaction.
    fn alias(&mut self, outer: Identity, inner: Identity) -> Result<(), Self::Error>;

    /// Forgets the alias of `outer`.
    fn unalias(&mut self, outer: Identity) -> Result<(), Self::Error>;

    /// Makes everything durable.
    fn sync(&mut self) -> Result<(), Self::Error>;
}
