//! The handle map: inodes that clients, the log and the cache know by another identity than the file system's. These
//! are the inodes that recovery recreated, and inodes with a number that such an inode already shows.
//!
//! Each entry is an empty file "OUTER=INNER" in `.forebay/aliases` on the file system itself. It is made in one
//! transaction, in order with the changes that it belongs to, and is lost only with them.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_common::lock::RwLock;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::{KERNEL_HANDLE_MAX, KernelHandle};

/// The server's own directory in the root of the first export of a file system. Clients do not see it there.
pub(crate) const PRIVATE: &str = ".forebay";
const ALIASES: &str = "aliases";
/// The directory of inodes that recovery has moved from one place and not yet brought to another.
pub(crate) const MOVING: &str = "moving";
/// The directory of rename intents.
pub(crate) const SLOTS: &str = "slots";
const OWN: [&str; 3] = [ALIASES, MOVING, SLOTS];

/// The kind of an identity that the server made up: a number.
const MADE_UP: i32 = -2;
/// The first file id of made-up identities. No file system has that many inodes.
const MADE_UP_INO: u64 = 1 << 62;
/// ext4's and XFS's handles: inode number and generation of 32 bits each; with this bit the number has 64 bits (XFS).
const INO_GENERATION: i32 = 1;
const LARGE_INO: i32 = 0x80;

/// The aliases of one file system.
pub(crate) struct HandleMap {
    /// The directory whose `.forebay` they are in.
    root: OwnedFd,
    /// True only if handles are the kernel's.
    used: bool,
    any: AtomicBool,
    maps: RwLock<Maps>,
}

#[derive(Default)]
struct Maps {
    inner: HashMap<KernelHandle, KernelHandle>,
    outer: HashMap<KernelHandle, KernelHandle>,
    /// The inode numbers that outer identities show, each with the number of identities that show it.
    shown: HashMap<u64, usize>,
    /// The file ids, by the inode numbers of inner identities.
    fileids: HashMap<u64, u64>,
    /// Identities of inodes that are gone, which the file system may give to other inodes: see [`HandleMap::spend`].
    spent: HashSet<KernelHandle>,
}

/// Returns the inode number that an identity shows, where it tells.
pub(crate) fn ino_of(identity: &KernelHandle) -> Option<u64> {
    let bytes = identity.as_slice();
    match identity.kind {
        MADE_UP => Some(MADE_UP_INO | u64::from_le_bytes(*bytes.first_chunk()?)),
        INO_GENERATION => Some(u32::from_ne_bytes(*bytes.first_chunk()?).into()),
        kind if kind == INO_GENERATION | LARGE_INO => Some(u64::from_ne_bytes(*bytes.first_chunk()?)),
        _ => None,
    }
}

/// Returns true if the identity is made up, so that no kernel handle equals it.
pub(crate) fn is_made_up(identity: &KernelHandle) -> bool {
    identity.kind == MADE_UP
}

fn made_up() -> KernelHandle {
    let mut number = [0; 8];
    // From the kernel's generator, which never gives less than was asked for up to 256 bytes.
    let _ = rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty());
    let number = u64::from_le_bytes(number) % MADE_UP_INO;
    let mut bytes = [0; KERNEL_HANDLE_MAX];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    KernelHandle { kind: MADE_UP, len: 8, bytes }
}

/// Returns an identity that leads to no inode.
fn nowhere() -> KernelHandle {
    KernelHandle { kind: MADE_UP, len: 8, bytes: [0; KERNEL_HANDLE_MAX] }
}

fn file_name(outer: &KernelHandle, inner: &KernelHandle) -> String {
    format!("{}={}", outer.to_name(), inner.to_name())
}

fn parse(name: &[u8]) -> Option<(KernelHandle, KernelHandle)> {
    let at = name.iter().position(|byte| *byte == b'=')?;
    Some((KernelHandle::from_name(&name[..at])?, KernelHandle::from_name(&name[at + 1..])?))
}

/// Opens a directory below another, made if it is not there: only the server gets in.
pub(crate) fn private_dir(at: impl AsFd, name: &str) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(&at, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    dir_if_there(at, name)?.ok_or(Error::Os(Errno::NOENT))
}

/// Opens a directory below another; `None`: there is none.
pub(crate) fn dir_if_there(at: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&at, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Removes the server's own directory in `root` and its subdirectories, as far as they are empty.
fn remove_empty(root: &OwnedFd, private: &OwnedFd) {
    for name in OWN {
        let _ = rustix::fs::unlinkat(private, name, AtFlags::REMOVEDIR);
    }
    let _ = rustix::fs::unlinkat(root, PRIVATE, AtFlags::REMOVEDIR);
}

/// Returns the names in a directory.
pub(crate) fn names(dir: &OwnedFd) -> Result<Vec<CString>> {
    let all: rustix::io::Result<Vec<_>> =
        Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_owned())).collect();
    Ok(all?.into_iter().filter(|name| !matches!(name.to_bytes(), b"." | b"..")).collect())
}

impl Maps {
    fn insert(&mut self, outer: KernelHandle, inner: KernelHandle) {
        self.remove(&outer);
        self.inner.insert(outer, inner);
        self.outer.insert(inner, outer);
        if let Some(shown) = ino_of(&outer) {
            *self.shown.entry(shown).or_default() += 1;
            if let Some(ino) = ino_of(&inner) {
                self.fileids.insert(ino, shown);
            }
        }
    }

    /// Returns the identity by which clients know an inode. `None` says that the inode needs an identity of its own.
    fn outer_of(&self, inner: &KernelHandle) -> Option<KernelHandle> {
        match self.outer.get(inner) {
            Some(outer) => Some(*outer),
            None if self.spent.contains(inner) => None,
            None => ino_of(inner).is_none_or(|ino| !self.shown.contains_key(&ino)).then_some(*inner),
        }
    }

    fn is_used(&self) -> bool {
        !self.inner.is_empty() || !self.spent.is_empty()
    }

    fn remove(&mut self, outer: &KernelHandle) -> Option<KernelHandle> {
        let inner = self.inner.remove(outer)?;
        self.outer.remove(&inner);
        if let Some(ino) = ino_of(&inner) {
            self.fileids.remove(&ino);
        }
        if let Some(shown) = ino_of(outer)
            && let Some(count) = self.shown.get_mut(&shown)
        {
            *count -= 1;
            if *count == 0 {
                self.shown.remove(&shown);
            }
        }
        Some(inner)
    }
}

impl HandleMap {
    /// Reads those below `root`, a directory of the file system.
    pub(crate) fn open(root: OwnedFd, used: bool) -> Result<Self> {
        let aliases = HandleMap { root, used, any: AtomicBool::new(false), maps: RwLock::default() };
        aliases.read()?;
        Ok(aliases)
    }

    fn read(&self) -> Result<()> {
        let Some(private) = self.private_if_there()? else { return Ok(()) };
        let Some(dir) = dir_if_there(&private, ALIASES)? else { return Ok(()) };
        let mut maps = Maps::default();
        for entry in Dir::new(dir).map_err(Error::from)? {
            if let Some((outer, inner)) = parse(entry?.file_name().to_bytes()) {
                maps.insert(outer, inner);
            }
        }
        let mut known = self.maps.write();
        maps.spent = std::mem::take(&mut known.spent);
        self.any.store(maps.is_used(), Ordering::Release);
        *known = maps;
        Ok(())
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
        remove_empty(other, &theirs);
        self.read()
    }

    fn dir(&self) -> Result<OwnedFd> {
        private_dir(self.private()?, ALIASES)
    }

    /// Returns the server's own directory, and creates it if it does not exist.
    pub(crate) fn private(&self) -> Result<OwnedFd> {
        private_dir(&self.root, PRIVATE)
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
        self.maps.read().inner.iter().map(|(outer, inner)| (*outer, *inner)).collect()
    }

    /// Returns true if clients know an inode by another identity than the file system's.
    pub(crate) fn has(&self, outer: &KernelHandle) -> bool {
        !self.is_empty() && self.maps.read().inner.contains_key(outer)
    }

    /// Returns the identity that the file system has for an inode.
    pub(crate) fn inner(&self, outer: &KernelHandle) -> KernelHandle {
        if self.is_empty() {
            return *outer;
        }
        let maps = self.maps.read();
        let spent = || if maps.spent.contains(outer) { nowhere() } else { *outer };
        maps.inner.get(outer).copied().unwrap_or_else(spent)
    }

    /// Returns the identity by which clients know an inode. An inode whose number is already the number of another
    /// identity gets a made-up one, so that no two inodes have one file id.
    pub(crate) fn outer(&self, inner: KernelHandle) -> Result<KernelHandle> {
        if self.is_empty() {
            return Ok(inner);
        }
        if let Some(outer) = self.maps.read().outer_of(&inner) {
            return Ok(outer);
        }
        let mut maps = self.maps.write();
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
        if self.is_empty() { ino } else { self.maps.read().fileids.get(&ino).copied().unwrap_or(ino) }
    }

    /// Makes `inner` known as `outer`, and no other inode. Takes one transaction.
    pub(crate) fn insert(&self, outer: KernelHandle, inner: KernelHandle) -> Result<()> {
        self.write(&mut self.maps.write(), outer, inner)
    }

    fn write(&self, maps: &mut Maps, outer: KernelHandle, inner: KernelHandle) -> Result<()> {
        let (dir, to) = (self.dir()?, file_name(&outer, &inner));
        match maps.inner.get(&outer) {
            Some(before) if *before == inner => return Ok(()),
            Some(before) => rustix::fs::renameat(&dir, file_name(&outer, before), &dir, to)?,
            None => {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                drop(rustix::fs::openat(&dir, to, flags, Mode::empty())?);
            }
        }
        maps.insert(outer, inner);
        self.any.store(true, Ordering::Release);
        Ok(())
    }

    /// Records that the inodes with these identities are gone, and that a power cut may have taken back their
    /// generations. XFS may then give such an identity to another inode, even to a file of the server's own. From now
    /// on the identity leads nowhere, and clients know an inode that gets it by another one. Forgotten at the next
    /// start.
    pub(crate) fn spend(&self, gone: impl IntoIterator<Item = KernelHandle>) {
        let mut maps = self.maps.write();
        maps.spent.extend(gone);
        self.any.store(maps.is_used(), Ordering::Release);
    }

    /// Removes the directories of the server's own that are empty.
    pub(crate) fn tidy(&self) -> Result<()> {
        let Some(private) = self.private_if_there()? else { return Ok(()) };
        remove_empty(&self.root, &private);
        Ok(())
    }

    /// Forgets the alias of `outer`, if there is one: the inode is gone.
    pub(crate) fn remove(&self, outer: &KernelHandle) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let mut maps = self.maps.write();
        let Some(inner) = maps.inner.get(outer).copied() else { return Ok(()) };
        rustix::fs::unlinkat(self.dir()?, file_name(outer, &inner), AtFlags::empty())?;
        maps.remove(outer);
        self.any.store(maps.is_used(), Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(ino: u32, generation: u32) -> KernelHandle {
        let mut bytes = [0; KERNEL_HANDLE_MAX];
        bytes[..4].copy_from_slice(&ino.to_ne_bytes());
        bytes[4..8].copy_from_slice(&generation.to_ne_bytes());
        KernelHandle { kind: INO_GENERATION, len: 8, bytes }
    }

    fn open(dir: &tempfile::TempDir) -> HandleMap {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        HandleMap::open(rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap(), true).unwrap()
    }

    #[test]
    fn an_alias_leads_both_ways_and_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let aliases = open(&dir);
        assert!(aliases.is_empty() && !dir.path().join(PRIVATE).exists());
        aliases.insert(handle(10, 1), handle(20, 2)).unwrap();
        // The inode is recreated after another crash: no chain of entries grows.
        aliases.insert(handle(10, 1), handle(30, 3)).unwrap();
        for aliases in [aliases, open(&dir)] {
            assert_eq!(aliases.all(), [(handle(10, 1), handle(30, 3))]);
            assert_eq!(aliases.inner(&handle(10, 1)), handle(30, 3));
            assert_eq!(aliases.outer(handle(30, 3)).unwrap(), handle(10, 1));
            assert_eq!((aliases.fileid(30), aliases.fileid(20)), (10, 20));
            assert_eq!(aliases.outer(handle(20, 9)).unwrap(), handle(20, 9), "nobody shows that number");
        }
        let aliases = open(&dir);
        aliases.remove(&handle(10, 1)).unwrap();
        aliases.tidy().unwrap();
        assert!(open(&dir).is_empty() && !dir.path().join(PRIVATE).exists());
    }

    #[test]
    fn an_identity_of_an_inode_that_is_gone_leads_nowhere_and_an_inode_that_gets_it_has_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let aliases = open(&dir);
        aliases.spend([handle(10, 1)]);
        assert!(is_made_up(&aliases.inner(&handle(10, 1))));
        assert_eq!(aliases.inner(&handle(10, 2)), handle(10, 2), "the next generation");
        let given = aliases.outer(handle(10, 1)).unwrap();
        assert!(is_made_up(&given) && given != nowhere());
        assert_eq!(aliases.inner(&given), handle(10, 1));
        // The inode with the identity goes as well.
        aliases.remove(&given).unwrap();
        assert!(is_made_up(&aliases.inner(&handle(10, 1))));
    }

    #[test]
    fn what_another_directory_has_is_taken_over() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (aliases, theirs) = (open(&dir), open(&other));
        aliases.insert(handle(10, 1), handle(20, 2)).unwrap();
        theirs.insert(handle(11, 1), handle(21, 2)).unwrap();
        for aliases in [&aliases, &theirs] {
            let slots = private_dir(aliases.private().unwrap(), SLOTS).unwrap();
            rustix::fs::mkdirat(&slots, "0", Mode::RWXU).unwrap();
        }
        aliases.gather(&theirs.root).unwrap();
        assert!(!other.path().join(PRIVATE).exists());
        for aliases in [&aliases, &open(&dir)] {
            assert_eq!(aliases.inner(&handle(10, 1)), handle(20, 2));
            assert_eq!(aliases.inner(&handle(11, 1)), handle(21, 2));
        }
        assert_eq!(std::fs::read_dir(dir.path().join(PRIVATE).join(SLOTS)).unwrap().count(), 2);
    }

    #[test]
    fn what_comes_by_a_number_that_an_alias_shows_gets_another_one_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let aliases = open(&dir);
        aliases.insert(handle(10, 1), handle(20, 2)).unwrap();
        let newcomer = handle(10, 7);
        assert_eq!(aliases.outer_if_met(&newcomer), None);
        assert_eq!(aliases.all(), [(handle(10, 1), handle(20, 2))], "nothing was made up for that");
        let outer = aliases.outer(newcomer).unwrap();
        assert_eq!(outer.kind, MADE_UP);
        assert_eq!(aliases.outer_if_met(&newcomer), Some(outer));
        assert_eq!(aliases.outer_if_met(&handle(20, 2)), Some(handle(10, 1)));
        let fileid = aliases.fileid(10);
        assert!(fileid >= MADE_UP_INO && Some(fileid) == ino_of(&outer));
        assert_eq!(aliases.fileid(20), 10);
        for aliases in [aliases, open(&dir)] {
            assert_eq!(aliases.outer(newcomer).unwrap(), outer);
            assert_eq!(aliases.inner(&outer), newcomer);
            assert_eq!(aliases.fileid(10), fileid);
        }
        // Two recreated inodes may have got each other's numbers.
        let aliases = open(&dir);
        aliases.insert(handle(41, 1), handle(42, 5)).unwrap();
        aliases.insert(handle(42, 1), handle(41, 5)).unwrap();
        assert_eq!(aliases.outer(handle(42, 5)).unwrap(), handle(41, 1));
        assert_eq!((aliases.fileid(41), aliases.fileid(42)), (42, 41));
    }

    #[test]
    fn file_ids_are_those_of_ext4_and_xfs() {
        let mut large = handle(0, 0);
        (large.kind, large.len) = (INO_GENERATION | LARGE_INO, 12);
        large.bytes[..8].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        assert_eq!(ino_of(&large), Some(1 << 40));
        assert_eq!(ino_of(&handle(7, 9)), Some(7));
        assert!(ino_of(&made_up()).is_some_and(|ino| ino >= MADE_UP_INO));
    }
}
