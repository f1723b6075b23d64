//! The handle map: inodes that clients, the log and the cache know by another identity than the file system's. These
//! are the inodes that recovery recreated, and inodes with a number that such an inode already shows.
//!
//! Each entry is an empty file "OUTER=INNER" in `.forebay/aliases` on the file system itself. It is made in one
//! transaction, in order with the changes that it belongs to, and is lost only with them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_common::lock::RwLock;
use forebay_oplog::{IdentityMap, Spent};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};

use crate::error::{Error, Result};
use crate::export::private_dir::{
    ALIASES, OWN, PRIVATE, SLOTS, dir_if_there, names, private_dir, remove_empty,
};
use crate::sys::{self, KernelHandle};

mod files;
#[cfg(test)]
mod tests;

use files::{file_name, nowhere, parse, read_list};

/// The aliases of one file system.
pub(crate) struct HandleMap {
    /// The directory whose `.forebay` they are in.
    root: OwnedFd,
    /// True only if handles are the kernel's.
    used: bool,
    any: AtomicBool,
    maps: RwLock<IdentityMap>,
    /// True if the list of spent identities differs from the file.
    unwritten: AtomicBool,
}

/// Returns a new identity that no file system gives, drawn at random.
fn made_up() -> KernelHandle {
    let mut number = [0; 8];
    // From the kernel's generator, which never gives less than was asked for up to 256 bytes.
    let _ = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
    KernelHandle::made_up(u64::from_le_bytes(number))
}

impl HandleMap {
    /// Reads the handle map of the file system of `root`. It stays empty without `used`: handles are not the kernel's.
    pub(crate) fn open(root: OwnedFd, used: bool) -> Result<Self> {
        let (any, unwritten) = (AtomicBool::new(false), AtomicBool::new(false));
        let aliases = HandleMap { root, used, any, maps: RwLock::default(), unwritten };
        aliases.read()?;
        Ok(aliases)
    }

    fn read(&self) -> Result<()> {
        let Some(private) = self.private_if_there()? else { return Ok(()) };
        let list = read_list(&private)?;
        let (mut entries, mut spent) = (Vec::new(), Vec::new());
        if let Some(dir) = dir_if_there(&private, ALIASES)? {
            for entry in Dir::new(dir).map_err(Error::from)? {
                match parse(entry?.file_name().to_bytes()) {
                    Some((outer, inner)) if inner == nowhere() => spent.push(outer),
                    Some(entry) => entries.push(entry),
                    None => {}
                }
            }
        }
        self.unwritten.fetch_or(!spent.is_empty(), Ordering::Relaxed);
        let mut map = IdentityMap::read(entries, &list);
        map.spend(spent);
        self.any.store(!map.is_empty(), Ordering::Release);
        *self.maps.write() = map;
        Ok(())
    }

    /// Writes the list of spent identities, in one transaction, and removes the entries that it replaces.
    fn write_list(&self, maps: &IdentityMap) -> Result<()> {
        let private = self.private()?;
        files::write_list(&private, maps.spent())?;
        self.unwritten.store(false, Ordering::Relaxed);
        files::remove_spent_entries(&private)
    }

    /// Writes the list of spent identities if it has changed since it was written.
    pub(crate) fn keep_spent(&self) -> Result<()> {
        if !self.unwritten.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.write_list(&self.maps.read())
    }

    /// Takes over the server's own directory in another directory of the file system, where it was when that was the
    /// first export. May be cut anywhere: the rest is taken at the next start.
    pub(crate) fn gather(&self, other: &OwnedFd) -> Result<()> {
        let theirs = if self.used { dir_if_there(other, PRIVATE)? } else { None };
        let Some(theirs) = theirs else { return Ok(()) };
        for place in OWN {
            let Some(from) = dir_if_there(&theirs, place)? else { continue };
            let to = private_dir(self.private()?, place)?;
            for name in names(&from)? {
                // Slots are told apart by nothing but numbers, which begin again in each directory.
                let mut kept = name.to_bytes().to_vec();
                if place == SLOTS {
                    kept.extend_from_slice(format!("-{}", rustix::fs::fstat(other)?.st_ino).as_bytes());
                }
                rustix::fs::renameat_with(&from, &name, &to, kept, RenameFlags::NOREPLACE)?;
            }
        }
        self.read()?;
        let spent = read_list(&theirs)?;
        if !spent.is_empty() {
            self.spend(Spent::decode(&spent).identities())?;
            files::remove_list(&theirs)?;
        }
        remove_empty(other, &theirs);
        Ok(())
    }

    fn dir(&self) -> Result<OwnedFd> {
        private_dir(self.private()?, ALIASES)
    }

    /// Returns the server's own directory, and creates it if it does not exist.
    pub(crate) fn private(&self) -> Result<OwnedFd> {
        private_dir(&self.root, PRIVATE)
    }

    /// Returns the directory that has the server's own directory.
    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Returns the server's private directory, if it exists.
    pub(crate) fn private_if_there(&self) -> Result<Option<OwnedFd>> {
        if self.used { dir_if_there(&self.root, PRIVATE) } else { Ok(None) }
    }

    /// Returns true if the handle map has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Returns all entries: outer identity, inner identity.
    pub(crate) fn all(&self) -> Vec<(KernelHandle, KernelHandle)> {
        self.maps.read().entries().collect()
    }

    /// Returns true if clients know an inode by another identity than the file system's.
    pub(crate) fn has(&self, outer: &KernelHandle) -> bool {
        !self.is_empty() && self.maps.read().entry(outer).is_some()
    }

    /// Returns the identity that the file system has for an inode that clients know.
    pub(crate) fn inner(&self, outer: &KernelHandle) -> KernelHandle {
        let entry = if self.is_empty() { None } else { self.maps.read().entry(outer) };
        entry.unwrap_or(*outer)
    }

    /// Returns the identity that the file system has for the inode that clients know as `outer`. `None` says that there
    /// is no such inode. A power cut takes generations back, so another inode may have the identity in the file system,
    /// and clients know that inode by another one.
    pub(crate) fn resolve(&self, outer: &KernelHandle) -> Option<KernelHandle> {
        if self.is_empty() { Some(*outer) } else { self.maps.read().resolve(outer) }
    }

    /// Returns the identity by which clients know an inode. An inode whose number is already the number of another
    /// identity gets a made-up one, so that no two inodes have one file id. An inode with a spent identity gets one as
    /// well.
    pub(crate) fn outer(&self, inner: KernelHandle) -> Result<KernelHandle> {
        if self.is_empty() {
            return Ok(inner);
        }
        {
            let maps = self.maps.read();
            if let Some(outer) = maps.outer_of(&inner).filter(|_| !maps.spent().is_past_one(&inner)) {
                return Ok(outer);
            }
        }
        let mut maps = self.maps.write();
        if maps.spent().is_past_one(&inner) {
            maps.see(&inner);
            self.unwritten.store(true, Ordering::Relaxed);
            self.any.store(!maps.is_empty(), Ordering::Release);
        }
        if let Some(outer) = maps.outer_of(&inner) {
            return Ok(outer);
        }
        let outer = made_up();
        self.write(&mut maps, outer, inner)?;
        Ok(outer)
    }

    /// Returns the identity by which clients know an inode, which need not be exported. `None` says that no client has
    /// asked for it yet, so nothing can be cached under its future identity.
    pub(crate) fn outer_if_met(&self, inner: &KernelHandle) -> Option<KernelHandle> {
        if self.is_empty() { Some(*inner) } else { self.maps.read().outer_of(inner) }
    }

    /// Returns the file id of the inode with this number.
    pub(crate) fn fileid(&self, ino: u64) -> u64 {
        if self.is_empty() { ino } else { self.maps.read().fileid(ino) }
    }

    /// Makes `inner` known as `outer`, and no other inode. Takes one transaction.
    pub(crate) fn insert(&self, outer: KernelHandle, inner: KernelHandle) -> Result<()> {
        self.write(&mut self.maps.write(), outer, inner)
    }

    fn write(&self, maps: &mut IdentityMap, outer: KernelHandle, inner: KernelHandle) -> Result<()> {
        let (dir, to) = (self.dir()?, file_name(&outer, &inner));
        match maps.entry(&outer) {
            Some(before) if before == inner => return Ok(()),
            Some(before) => rustix::fs::renameat(&dir, file_name(&outer, &before), &dir, to)?,
            None => {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                drop(rustix::fs::openat(&dir, to, flags, Mode::empty())?);
            }
        }
        maps.insert(outer, inner);
        self.any.store(true, Ordering::Release);
        Ok(())
    }

    /// Lets the identities of inodes that are gone be spent, durably: see [`Spent`]. XFS may give such an identity to
    /// another inode, even to a file of the server's own. Clients know that inode by another identity.
    pub(crate) fn spend(&self, gone: impl IntoIterator<Item = KernelHandle>) -> Result<()> {
        let mut maps = self.maps.write();
        maps.spend(gone);
        self.any.store(!maps.is_empty(), Ordering::Release);
        self.write_list(&maps)
    }

    /// Returns true if an identity is spent.
    pub(crate) fn is_spent(&self, identity: &KernelHandle) -> bool {
        !self.is_empty() && self.maps.read().spent().has(identity)
    }

    /// Returns true if the inode is one of the server's own directories, or a file in the outermost one.
    pub(crate) fn is_own(&self, inner: &KernelHandle) -> Result<bool> {
        let Some(private) = self.private_if_there()? else { return Ok(false) };
        if sys::name_to_handle(&private, c"")? == *inner {
            return Ok(true);
        }
        for name in names(&private)? {
            if sys::name_to_handle(&private, &name)? == *inner {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the directories of the server's own that are empty.
    pub(crate) fn tidy(&self) -> Result<()> {
        let Some(private) = self.private_if_there()? else { return Ok(()) };
        self.keep_spent()?;
        remove_empty(&self.root, &private);
        Ok(())
    }

    /// Removes the entry of `outer`, if there is one: the inode is gone. The identity is spent, unless it is made up.
    /// Takes one transaction.
    pub(crate) fn remove(&self, outer: &KernelHandle) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let mut maps = self.maps.write();
        let Some(inner) = maps.entry(outer) else { return Ok(()) };
        let (dir, name) = (self.dir()?, file_name(outer, &inner));
        if outer.is_made_up() {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
        } else {
            rustix::fs::renameat(&dir, name, &dir, file_name(outer, &nowhere()))?;
            self.unwritten.store(true, Ordering::Relaxed);
        }
        maps.remove(outer);
        self.any.store(!maps.is_empty(), Ordering::Release);
        Ok(())
    }
}
