//! Requests of clients, carried out as the server does: first the system calls, then the record for the log.

use std::collections::BTreeSet;

use forebay_oplog::{Access, Binding, Identity, Kind, LoggedObject, Name, New, Operation, RenameIntent};

use super::volume::{Refused, Volume, time};

/// The number of the only log.
pub const LOG: u64 = 7;

/// The ticks between the times of two operations.
const TICKS: i64 = 100;

/// A directory, by the identity that clients know, and a name in it.
pub type Place = (Identity, Name);

/// The way in which CREATE treats an existing file, and so the number of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Root creates the file for a client: two transactions.
    Unchecked,
    /// One transaction.
    Guarded,
    /// The verifier goes to the times: two transactions.
    Exclusive,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// CREATE of a file that does not exist.
    Create(Place, How),
    /// MKDIR
    Mkdir(Place),
    /// SYMLINK
    Symlink(Place),
    /// MKNOD
    Mknod(Place),
    /// LINK
    Link(Identity, Place),
    /// REMOVE
    Remove(Place),
    /// RMDIR
    Rmdir(Place),
    /// RENAME
    Rename(Place, Place),
    /// SETATTR of the mode: one transaction.
    Chmod(Identity),
    /// SETATTR of owner, mode and times: three transactions.
    Setattr(Identity),
}

/// A request that was carried out.
#[derive(Clone, Debug)]
pub struct Done {
    /// The request.
    pub request: Request,
    /// The operation for the log.
    pub operation: Operation,
    /// The objects that are locked until the record has its place in the log.
    locks: BTreeSet<Identity>,
    /// True if the request moves a directory to another parent. Only one request at a time may do that.
    moves_directory: bool,
    /// The object that the request makes, or whose attributes it sets, in several transactions.
    pub in_steps: Option<Identity>,
}

impl Done {
    /// Returns true if the log must have both operations in the order in which they were carried out.
    pub fn conflicts_with(&self, other: &Done) -> bool {
        !self.locks.is_disjoint(&other.locks) || self.moves_directory && other.moves_directory
    }

    /// Returns the object that the request made.
    pub fn made(&self) -> Option<Identity> {
        self.operation.objects.iter().find(|object| object.new.is_some()).map(|object| object.identity)
    }
}

/// The server at work on one request.
struct Worker<'a> {
    volume: &'a mut Volume,
    number: u64,
    entries: Vec<Binding>,
    /// The touched objects, with the properties needed to recreate them.
    objects: Vec<(Identity, Option<New>)>,
    locks: BTreeSet<Identity>,
    moves_directory: bool,
    in_steps: Option<Identity>,
}

/// Carries out a request. `slot` is the slot for the intent of a RENAME. `given` is the identity of the made object, if
/// it is known. A RENAME between two names of one object changes nothing and is refused here.
pub fn carry_out(
    volume: &mut Volume,
    request: &Request,
    number: u64,
    slot: Option<usize>,
    given: Option<Identity>,
) -> Result<Done, Refused> {
    volume.clock = number as i64 * TICKS;
    let mut worker = Worker {
        volume,
        number,
        entries: Vec::new(),
        objects: Vec::new(),
        locks: BTreeSet::new(),
        moves_directory: false,
        in_steps: None,
    };
    worker.act(request, slot, given)?;
    let objects = worker.objects.iter().map(|(object, new)| {
        let inner = worker.inner(*object)?;
        let attributes = worker.volume.inode(inner)?.attributes;
        Ok(LoggedObject { identity: *object, attributes, new: new.clone(), access: Access::Set })
    });
    let operation = Operation {
        number,
        filesystem: 0,
        objects: objects.collect::<Result<_, Refused>>()?,
        entries: worker.entries.into(),
        reply: number.to_le_bytes().into(),
    };
    let (locks, moves_directory, in_steps) = (worker.locks, worker.moves_directory, worker.in_steps);
    Ok(Done { request: request.clone(), operation, locks, moves_directory, in_steps })
}

impl Worker<'_> {
    fn inner(&self, outer: Identity) -> Result<Identity, Refused> {
        self.volume.resolve(outer).ok_or(Refused::Stale)
    }

    /// Returns the object under a name, by the identity that clients know.
    fn child(&self, place: &Place) -> Result<Option<Identity>, Refused> {
        let found = self.volume.child(self.inner(place.0)?, &place.1)?;
        Ok(found.map(|inner| self.volume.outer(inner)))
    }

    fn is_directory(&self, outer: Identity) -> Result<bool, Refused> {
        Ok(self.volume.inode(self.inner(outer)?)?.attributes.kind == Kind::Directory)
    }

    fn lock(&mut self, object: Identity) {
        self.locks.insert(object);
    }

    /// Touches the directory of a name that changes.
    fn touch(&mut self, dir: Identity) {
        self.lock(dir);
        if !self.objects.iter().any(|(object, _)| *object == dir) {
            self.objects.push((dir, None));
        }
    }

    /// Records for the log that a name leads from now on to another object, or to none. The directory counts as
    /// changed.
    fn bind(&mut self, place: &Place, was: Option<Identity>, now: Option<Identity>) {
        self.touch(place.0);
        self.entries.push(Binding { dir: place.0, name: place.1.clone(), was, now });
    }

    /// Carries out the system calls of a request, and gathers the facts for its record: changed names, changed
    /// objects, and locks. An intent of a RENAME goes to `slot`.
    fn act(
        &mut self,
        request: &Request,
        slot: Option<usize>,
        given: Option<Identity>,
    ) -> Result<(), Refused> {
        match request {
            Request::Create(place, how) => self.create(place, *how, given),
            Request::Mkdir(place) => self.make(place, Kind::Directory, New::Plain, given).map(drop),
            Request::Symlink(place) => {
                self.make(place, Kind::Symlink, New::Link(Box::from(*b"to")), given).map(drop)
            }
            Request::Mknod(place) => self.make(place, Kind::Character, New::Device(4, 7), given).map(drop),
            Request::Link(object, place) => {
                let (inner, dir) = (self.inner(*object)?, self.inner(place.0)?);
                self.volume.add_link(inner, dir, &place.1)?;
                self.touch(*object);
                self.bind(place, None, Some(*object));
                Ok(())
            }
            Request::Remove(place) => self.remove(place, false),
            Request::Rmdir(place) => self.remove(place, true),
            Request::Rename(from, to) => self.rename(from, to, slot),
            Request::Chmod(object) => {
                let (inner, mode) = (self.inner(*object)?, self.number as u32 & 0o777 | 0o1000);
                self.touch(*object);
                self.volume.change_mode(inner, mode)
            }
            Request::Setattr(object) => {
                self.touch(*object);
                self.in_steps = Some(*object);
                let (inner, number) = (self.inner(*object)?, self.number as u32);
                self.volume.change(inner, |it| (it.uid, it.gid) = (number, number))?;
                if self.volume.inode(inner)?.attributes.kind != Kind::Symlink {
                    self.volume.change_mode(inner, number & 0o777 | 0o2000)?;
                }
                self.volume.change(inner, |it| it.mtime = time(i64::from(number) << 32))
            }
        }
    }

    /// Makes an object of this kind, with a `given` identity or a fresh one. Returns the identity that clients know.
    fn make(
        &mut self,
        place: &Place,
        kind: Kind,
        new: New,
        given: Option<Identity>,
    ) -> Result<Identity, Refused> {
        let dir = self.inner(place.0)?;
        let made = self.volume.make_for_client(given, (dir, &place.1), kind, &new)?;
        self.bind(place, None, Some(made));
        self.lock(made);
        self.objects.push((made, Some(new)));
        Ok(made)
    }

    /// Makes a file, and sets the attributes that the kind of CREATE requires. These are system calls of their own,
    /// so a crash may come between.
    fn create(&mut self, place: &Place, how: How, given: Option<Identity>) -> Result<(), Refused> {
        let made = self.make(place, Kind::File, New::Plain, given)?;
        let (inner, number) = (self.inner(made)?, self.number);
        self.in_steps = (how != How::Guarded).then_some(made);
        match how {
            How::Guarded => Ok(()),
            How::Unchecked => self.volume.change(inner, |it| it.uid = number as u32),
            How::Exclusive => self.volume.change(inner, |it| it.mtime = time(number as i64)),
        }
    }

    /// Removes a name, which has to be that of a directory if `directory`. Locks a removed directory as well.
    fn remove(&mut self, place: &Place, directory: bool) -> Result<(), Refused> {
        let victim = self.child(place)?;
        let dir = self.inner(place.0)?;
        self.volume.remove(dir, &place.1, directory)?;
        if directory {
            // Without this lock, earlier changes in the directory could come into the log after the removal, or never.
            self.locks.extend(victim);
        }
        self.bind(place, victim, None);
        Ok(())
    }

    /// Renames an object and removes a replaced one. Writes an intent to `slot` first, so that recovery knows whether
    /// the RENAME happened.
    fn rename(&mut self, from: &Place, to: &Place, slot: Option<usize>) -> Result<(), Refused> {
        let (from_dir, to_dir) = (self.inner(from.0)?, self.inner(to.0)?);
        self.volume.may_move((from_dir, &from.1), (to_dir, &to.1))?;
        let (moved, replaced) = (self.child(from)?.ok_or(Refused::NoEntry)?, self.child(to)?);
        if replaced == Some(moved) {
            return Err(Refused::Exists);
        }
        let is_directory = self.is_directory(moved)?;
        if let Some(slot) = slot {
            let intent = RenameIntent { log: LOG, number: self.number, filesystem: 0, dirs: [from.0, to.0] };
            self.volume.slot(slot, Some(intent));
        }
        self.volume.move_name((from_dir, &from.1), (to_dir, &to.1))?;
        self.moves_directory = is_directory && from.0 != to.0;
        if is_directory {
            self.locks.extend(replaced);
        }
        self.bind(from, Some(moved), None);
        self.bind(to, replaced, Some(moved));
        Ok(())
    }
}
