//! Slots: files in `.forebay` whose extended attribute says what a RENAME is about to do (docs/metadata-log.md,
//! "Intents").

use std::os::fd::OwnedFd;

use forebay_oplog::Intent;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::alias::{SLOTS, dir_if_there, private_dir};
use crate::error::Result;
use crate::fs::Filesystem;

const ATTRIBUTE: &str = "user.forebay.intent";
/// Renames between their system call and the durable frame of their note.
const MOST: usize = 256;

/// The slots of one file system.
#[derive(Default)]
pub(crate) struct Slots(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    free: Vec<OwnedFd>,
    made: usize,
}

impl Slots {
    /// Says what a RENAME is about to do. `None`: all slots are taken. The slot is to be given back once the record of the
    /// RENAME is durable, or it has failed.
    pub(crate) fn take(&self, fs: &Filesystem, intent: &Intent) -> Result<Option<OwnedFd>> {
        let slot = {
            let mut inner = self.0.lock();
            match inner.free.pop() {
                Some(slot) => slot,
                None if inner.made == MOST => return Ok(None),
                None => {
                    let dir = private_dir(fs.private()?, SLOTS)?;
                    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let mode = Mode::RUSR | Mode::WUSR;
                    let slot = rustix::fs::openat(&dir, inner.made.to_string(), flags, mode)?;
                    inner.made += 1;
                    slot
                }
            }
        };
        let said = rustix::fs::fsetxattr(&slot, ATTRIBUTE, &intent.encode(), XattrFlags::empty());
        match said {
            Ok(()) => Ok(Some(slot)),
            Err(errno) => {
                self.give_back(slot);
                Err(errno.into())
            }
        }
    }

    /// The RENAME failed: what its slot says is not to be found.
    pub(crate) fn withdraw(&self, slot: OwnedFd) -> Result<()> {
        let withdrawn = rustix::fs::fremovexattr(&slot, ATTRIBUTE);
        self.give_back(slot);
        Ok(withdrawn?)
    }

    pub(crate) fn give_back(&self, slot: OwnedFd) {
        self.0.lock().free.push(slot);
    }
}

/// What the slots of earlier runs say.
pub(crate) fn read(fs: &Filesystem) -> Result<Vec<Intent>> {
    let mut intents = Vec::new();
    each(fs, |dir, name| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let slot = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        let mut bytes = [0; 1024];
        match rustix::fs::fgetxattr(&slot, ATTRIBUTE, &mut bytes) {
            // What is cut short was never written so: an extended attribute is set as a whole.
            Ok(len) => intents.extend(Intent::decode(&bytes[..len])),
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    })?;
    Ok(intents)
}

/// Removes the slots of earlier runs: numbers begin again, and nobody may take what they say for news.
pub(crate) fn clear(fs: &Filesystem) -> Result<()> {
    each(fs, |dir, name| Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?))
}

fn each(fs: &Filesystem, mut visit: impl FnMut(&OwnedFd, &std::ffi::CStr) -> Result<()>) -> Result<()> {
    let Some(private) = fs.private_if_there()? else { return Ok(()) };
    let Some(dir) = dir_if_there(&private, SLOTS)? else { return Ok(()) };
    let names: rustix::io::Result<Vec<_>> =
        Dir::read_from(&dir)?.map(|entry| Ok(entry?.file_name().to_owned())).collect();
    let names = names?;
    names
        .iter()
        .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
        .try_for_each(|name| visit(&dir, name))
}
