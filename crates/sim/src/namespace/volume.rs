//! A virtual file system with a journal. A power cut leaves the state after some transaction and all transactions
//! before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_oplog::{Attributes, IDENTITY_MAX, Identity, IdentityMap, Kind, Name, New, RenameIntent, Time};

/// The reason for which an operation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such name.
    NoEntry,
    /// The name is taken.
    Exists,
    /// A directory is not empty.
    NotEmpty,
    /// There is a directory where none may be, or none where one must be.
    WrongKind,
    /// A directory would get below itself.
    BelowItself,
    /// The identity leads nowhere.
    Stale,
    /// The journal does not answer; the client must repeat the request.
    Busy,
    /// The journal has failed.
    Io,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Refused {}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// The object's attributes.
    pub attributes: Attributes,
    /// A link's text, or a node's device.
    pub new: New,
    /// A directory's names.
    pub entries: BTreeMap<Name, Identity>,
    /// The number of the object's names.
    pub links: u32,
}

/// The contents of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Every object.
    pub inodes: BTreeMap<Identity, Arc<Inode>>,
    /// The intents in the slots.
    pub slots: BTreeMap<usize, RenameIntent>,
    /// The identities that clients know.
    pub identities: Arc<IdentityMap>,
    /// The next generation of each inode number that was ever given up. XFS counts it up with each removal, and a power
    /// cut takes the count back.
    generations: Arc<BTreeMap<u32, u32>>,
}

/// The file system.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The present state.
    pub state: State,
    /// The state after each transaction, while `remembers` is true.
    pub history: Vec<State>,
    /// True while the states after transactions are kept.
    pub remembers: bool,
    /// The last time given to an object.
    pub clock: i64,
    /// The last number of a made-up identity. No two are ever equal, on the disk or lost.
    pub(super) made_up: u64,
}

/// Returns the identity that a real file system would give to this inode number and generation.
fn identity(number: u32, generation: u32) -> Identity {
    let mut bytes = [0; IDENTITY_MAX];
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..8].copy_from_slice(&generation.to_ne_bytes());
    Identity { kind: 1, len: 8, bytes }
}

/// Returns the time with this count.
pub fn time(count: i64) -> Time {
    Time { sec: count, nsec: 0 }
}

type Result<T> = std::result::Result<T, Refused>;

impl Volume {
    /// Makes an empty file system.
    pub fn new() -> Self {
        let mut volume =
            Volume { state: State::default(), history: Vec::new(), remembers: true, clock: 0, made_up: 0 };
        for dir in [Self::root(), Self::moving_dir()] {
            volume.state.inodes.insert(dir, Arc::new(volume.blank(Kind::Directory, &New::Plain)));
        }
        volume
    }

    /// Returns this file system in another state, with no states kept yet.
    pub fn with(&self, state: &State) -> Self {
        Volume { state: state.clone(), history: Vec::new(), remembers: true, ..*self }
    }

    /// Returns the served directory.
    pub fn root() -> Identity {
        identity(2, 0)
    }

    /// Returns the directory for moving, which has no name here.
    pub fn moving_dir() -> Identity {
        identity(3, 0)
    }

    /// Returns a new inode with one link, owned by root, with the time of the volume's clock.
    fn blank(&self, kind: Kind, new: &New) -> Inode {
        let now = time(self.clock);
        let attributes = Attributes { kind, mode: 0o600, uid: 0, gid: 0, atime: now, mtime: now };
        Inode { attributes, new: new.clone(), entries: BTreeMap::new(), links: 1 }
    }

    /// Returns an identity with the lowest free inode number, as real file systems do, and with its next generation.
    fn fresh(&self) -> Identity {
        self.fresh_but(|_| false)
    }

    /// Returns an identity that the volume has not given out, but none of these.
    pub fn fresh_but(&self, but: impl Fn(&Identity) -> bool) -> Identity {
        let used = |number: u32| self.state.inodes.keys().any(|used| used.number() == Some(number.into()));
        let free = (4..u32::MAX).filter(|number| !used(*number));
        let next = |number| identity(number, self.state.generations.get(&number).copied().unwrap_or(0));
        free.map(next).find(|identity| !but(identity)).unwrap_or_else(|| identity(u32::MAX, 0))
    }

    /// Ends a transaction: the present state is one that a power cut may leave. A volume that remembers no states
    /// skips this.
    pub(super) fn committed(&mut self) {
        if self.remembers {
            self.history.push(self.state.clone());
        }
    }

    /// Returns an object.
    pub fn inode(&self, object: Identity) -> Result<&Inode> {
        self.state.inodes.get(&object).map(|inode| &**inode).ok_or(Refused::Stale)
    }

    fn edit(&mut self, object: Identity) -> Result<&mut Inode> {
        self.state.inodes.get_mut(&object).map(Arc::make_mut).ok_or(Refused::Stale)
    }

    /// Returns true if the object is a directory.
    pub fn is_directory(&self, object: Identity) -> bool {
        self.directory(object).is_ok()
    }

    /// Returns a directory. Fails for an object of another kind.
    fn directory(&self, dir: Identity) -> Result<&Inode> {
        let inode = self.inode(dir)?;
        if inode.attributes.kind == Kind::Directory { Ok(inode) } else { Err(Refused::WrongKind) }
    }

    /// Returns the object that a name leads to.
    pub fn child(&self, dir: Identity, name: &[u8]) -> Result<Option<Identity>> {
        Ok(self.directory(dir)?.entries.get(name).copied())
    }

    /// Gives the name to an object, or removes the name, and sets the directory's modification time. Link counts are
    /// the caller's work.
    fn bind(&mut self, dir: Identity, name: &[u8], object: Option<Identity>) -> Result<()> {
        self.clock += 1;
        let now = time(self.clock);
        let dir = self.edit(dir)?;
        dir.attributes.mtime = now;
        match object {
            Some(object) => dir.entries.insert(name.into(), object),
            None => dir.entries.remove(name),
        };
        Ok(())
    }

    /// Counts a link less. The inode leaves with its last link, and its number gets the next generation.
    fn drop_link(&mut self, object: Identity) -> Result<()> {
        let inode = self.edit(object)?;
        inode.links -= 1;
        if inode.links == 0 {
            self.state.inodes.remove(&object);
            if let (Some(number), Some(generation)) = (object.number(), object.generation()) {
                let generations = Arc::make_mut(&mut self.state.generations);
                generations.insert(number as u32, generation.wrapping_add(1));
            }
        }
        Ok(())
    }

    /// Makes an object, with a given identity or a new one.
    pub fn make_as(
        &mut self,
        given: Option<Identity>,
        (dir, name): (Identity, &[u8]),
        kind: Kind,
        new: &New,
    ) -> Result<Identity> {
        let object = self.place_new(given, (dir, name), kind, new)?;
        self.committed();
        Ok(object)
    }

    /// Makes an object as [`Volume::make_as`] does, for a client. Returns the identity that the client gets.
    ///
    /// An entry of the identity map needs no transaction of its own here. A power cut before that transaction would
    /// leave an object that no client has seen, as one of an administrator.
    pub fn make_for_client(
        &mut self,
        given: Option<Identity>,
        (dir, name): (Identity, &[u8]),
        kind: Kind,
        new: &New,
    ) -> Result<Identity> {
        let object = self.place_new(given, (dir, name), kind, new)?;
        let identities = &self.state.identities;
        let mut outer = object;
        // A given identity is the one that the client got when the request was carried out first.
        if given.is_none() && !identities.is_empty() {
            let identities = Arc::make_mut(&mut self.state.identities);
            identities.see(&object);
            outer = identities.outer_of(&object).unwrap_or_else(|| {
                self.made_up += 1;
                let outer = Identity::made_up(self.made_up);
                identities.insert(outer, object);
                outer
            });
        }
        self.committed();
        Ok(outer)
    }

    /// Makes an inode under a free name, with a `given` identity or a fresh one. Fails if the name exists.
    fn place_new(
        &mut self,
        given: Option<Identity>,
        (dir, name): (Identity, &[u8]),
        kind: Kind,
        new: &New,
    ) -> Result<Identity> {
        if self.child(dir, name)?.is_some() {
            return Err(Refused::Exists);
        }
        let object = given.unwrap_or_else(|| self.fresh());
        self.bind(dir, name, Some(object))?;
        let inode = self.blank(kind, new);
        self.state.inodes.insert(object, Arc::new(inode));
        Ok(object)
    }

    /// Adds a name: link(2).
    pub fn add_link(&mut self, object: Identity, dir: Identity, name: &[u8]) -> Result<()> {
        if self.child(dir, name)?.is_some() {
            return Err(Refused::Exists);
        }
        if self.inode(object)?.attributes.kind == Kind::Directory {
            return Err(Refused::WrongKind);
        }
        self.edit(object)?.links += 1;
        self.bind(dir, name, Some(object))?;
        self.committed();
        Ok(())
    }

    /// Removes a name: unlink(2), or rmdir(2) of a `directory`.
    pub fn remove(&mut self, dir: Identity, name: &[u8], directory: bool) -> Result<()> {
        let object = self.child(dir, name)?.ok_or(Refused::NoEntry)?;
        let inode = self.inode(object)?;
        if (inode.attributes.kind == Kind::Directory) != directory {
            return Err(Refused::WrongKind);
        }
        if !inode.entries.is_empty() {
            return Err(Refused::NotEmpty);
        }
        self.bind(dir, name, None)?;
        self.drop_link(object)?;
        self.committed();
        Ok(())
    }

    /// Returns true if `dir` is `above` or somewhere below it.
    pub fn is_below(&self, dir: Identity, above: Identity) -> bool {
        dir == above
            || self.state.inodes.get(&above).is_some_and(|inode| {
                inode.entries.values().any(|child| *child != above && self.is_below(dir, *child))
            })
    }

    /// Returns the object that rename(2) would replace. Fails with the reason for which rename(2) would refuse.
    pub fn may_move(&self, from: (Identity, &[u8]), to: (Identity, &[u8])) -> Result<Option<Identity>> {
        let moved = self.child(from.0, from.1)?.ok_or(Refused::NoEntry)?;
        let target = self.child(to.0, to.1)?;
        let is_directory = self.inode(moved)?.attributes.kind == Kind::Directory;
        if is_directory && self.is_below(to.0, moved) {
            return Err(Refused::BelowItself);
        }
        if let Some(target) = target {
            let inode = self.inode(target)?;
            if (inode.attributes.kind == Kind::Directory) != is_directory {
                return Err(Refused::WrongKind);
            }
            if !inode.entries.is_empty() && target != moved {
                return Err(Refused::NotEmpty);
            }
        }
        Ok(target)
    }

    /// Moves a name: rename(2).
    pub fn move_name(&mut self, from: (Identity, &[u8]), to: (Identity, &[u8])) -> Result<()> {
        let replaced = self.may_move(from, to)?;
        let moved = self.child(from.0, from.1)?.ok_or(Refused::NoEntry)?;
        if replaced == Some(moved) {
            return Ok(());
        }
        self.bind(from.0, from.1, None)?;
        self.clock -= 1;
        self.bind(to.0, to.1, Some(moved))?;
        if let Some(replaced) = replaced {
            self.drop_link(replaced)?;
        }
        self.committed();
        Ok(())
    }

    /// Sets the mode: chmod(2). A symbolic link has no mode.
    pub fn change_mode(&mut self, object: Identity, mode: u32) -> Result<()> {
        match self.inode(object)?.attributes.kind {
            Kind::Symlink => Err(Refused::WrongKind),
            _ => self.change(object, |it| it.mode = mode),
        }
    }

    /// Changes other attributes: chown(2) or utimensat(2).
    pub fn change(&mut self, object: Identity, change: impl FnOnce(&mut Attributes)) -> Result<()> {
        change(&mut self.edit(object)?.attributes);
        self.committed();
        Ok(())
    }

    /// Sets or empties a slot.
    pub fn slot(&mut self, slot: usize, intent: Option<RenameIntent>) {
        match intent {
            Some(intent) => self.state.slots.insert(slot, intent),
            None => self.state.slots.remove(&slot),
        };
        self.committed();
    }

    /// Empties all slots.
    pub fn clear_slots(&mut self) {
        let slots: Vec<usize> = self.state.slots.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.slot(slot, None));
    }
}

impl Default for Volume {
    fn default() -> Self {
        Self::new()
    }
}
