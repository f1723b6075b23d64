//! Slots: files in `.forebay` whose extended attribute holds the intent of a RENAME (docs/metadata-log.md, "Intents").
//! Beside them one file records how far a log counts that was lost.

use std::os::fd::OwnedFd;

use forebay_common::lock::{Condvar, Mutex};
use forebay_oplog::{Record, RenameIntent};
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::error::Result;
use crate::export::handle_map::{HandleMap, SLOTS, dir_if_there, names, private_dir};

const ATTRIBUTE: &str = "user.forebay.intent";
const LOST: &str = "lost";
const LOST_ATTRIBUTE: &str = "user.forebay.lost";
/// The number of RENAMEs that may be between their system call and the durable frame of their user record.
const MOST: usize = 256;

/// The slots of one file system.
#[derive(Default)]
pub(crate) struct RenameIntents {
    inner: Mutex<Inner>,
    freed: Condvar,
}

#[derive(Default)]
struct Inner {
    free: Vec<OwnedFd>,
    made: usize,
}

impl RenameIntents {
    /// Takes a slot for a RENAME. The caller gives it back once the record is durable, or the RENAME has failed. Waits
    /// until a slot is free, for as long as a frame of the log takes. So the caller must not have a number yet, for
    /// which the records of other threads would wait.
    pub(crate) fn take(&self, map: &HandleMap) -> Result<OwnedFd> {
        self.take_or_make(MOST, |made| {
            let dir = private_dir(map.private()?, SLOTS)?;
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            Ok(rustix::fs::openat(&dir, made.to_string(), flags, mode)?)
        })
    }

    fn take_or_make(&self, most: usize, make: impl FnOnce(usize) -> Result<OwnedFd>) -> Result<OwnedFd> {
        let mut inner = self.inner.lock();
        loop {
            if let Some(slot) = inner.free.pop() {
                return Ok(slot);
            }
            if inner.made < most {
                let slot = make(inner.made)?;
                inner.made += 1;
                return Ok(slot);
            }
            inner = self.freed.wait(inner);
        }
    }

    /// Withdraws the intent of a RENAME that failed, so that recovery does not find it.
    pub(crate) fn withdraw(&self, slot: OwnedFd) -> Result<()> {
        let withdrawn = rustix::fs::fremovexattr(&slot, ATTRIBUTE);
        self.give_back(slot);
        Ok(withdrawn?)
    }

    pub(crate) fn give_back(&self, slot: OwnedFd) {
        self.inner.lock().free.push(slot);
        self.freed.notify_one();
    }
}

/// Writes the intent of a RENAME into a slot.
pub(crate) fn say(slot: &OwnedFd, intent: &RenameIntent) -> Result<()> {
    Ok(rustix::fs::fsetxattr(slot, ATTRIBUTE, &intent.encode(), XattrFlags::empty())?)
}

/// Returns the rename intents in the slots of earlier runs.
pub(crate) fn read(map: &HandleMap) -> Result<Vec<RenameIntent>> {
    let mut intents = Vec::new();
    each(map, |dir, name| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let slot = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        let mut bytes = [0; 1024];
        match rustix::fs::fgetxattr(&slot, ATTRIBUTE, &mut bytes) {
            // An extended attribute is set as a whole, so an unreadable one is from another version of the program.
            Ok(len) => intents.push(RenameIntent::decode(&bytes[..len]).ok_or(Errno::BADMSG)?),
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    })?;
    Ok(intents)
}

/// Records that the log with this identity is lost, and may come back. All changes up to `upto` are in the file system,
/// with later changes. The record counts once the journal has committed; changes that depend on it are found only if
/// the record is.
pub(crate) fn say_lost(map: &HandleMap, log: u64, filesystem: u32, upto: u64) -> Result<()> {
    let dir = private_dir(map.private()?, SLOTS)?;
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir, LOST, flags, Mode::RUSR | Mode::WUSR)?;
    let mut bytes = log.to_le_bytes().to_vec();
    bytes.extend(Record::Checkpoint { filesystem, upto }.encode());
    Ok(rustix::fs::fsetxattr(&file, LOST_ATTRIBUTE, &bytes, XattrFlags::empty())?)
}

/// Returns the number of a change if the log with this identity was lost. Up to this change the file system has all
/// operations of that log.
pub(crate) fn lost_after(map: &HandleMap, log: u64, filesystem: u32) -> Result<Option<u64>> {
    let Some(private) = map.private_if_there()? else { return Ok(None) };
    let Some(dir) = dir_if_there(&private, SLOTS)? else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut bytes = [0; 64];
    let file = rustix::fs::openat(&dir, LOST, flags, Mode::empty());
    let len = match file.and_then(|file| rustix::fs::fgetxattr(&file, LOST_ATTRIBUTE, &mut bytes)) {
        Ok(len) => len,
        Err(Errno::NOENT | Errno::NODATA) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let (identity, record) = bytes[..len].split_first_chunk().ok_or(Errno::BADMSG)?;
    match Record::decode(record) {
        Some(Record::Checkpoint { filesystem: number, upto }) => {
            Ok((u64::from_le_bytes(*identity) == log && number == filesystem).then_some(upto))
        }
        _ => Err(Errno::BADMSG.into()),
    }
}

/// Removes the slots of earlier runs. The removal has to be durable before a number is given out: numbers may begin
/// again, and an old intent must not pass for a new one.
pub(crate) fn clear(map: &HandleMap) -> Result<()> {
    each(map, |dir, name| Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?))
}

fn each(map: &HandleMap, mut visit: impl FnMut(&OwnedFd, &std::ffi::CStr) -> Result<()>) -> Result<()> {
    let Some(private) = map.private_if_there()? else { return Ok(()) };
    let Some(dir) = dir_if_there(&private, SLOTS)? else { return Ok(()) };
    names(&dir)?.iter().try_for_each(|name| visit(&dir, name))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_finds_no_slot_gets_the_next_one_that_is_given_back() {
        let slots = RenameIntents::default();
        let make = |_| Ok(OwnedFd::from(tempfile::tempfile().unwrap()));
        let taken: Vec<_> = (0..3).map(|_| slots.take_or_make(3, make).unwrap()).collect();
        let (send, got) = channel();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (slots, send) = (&slots, send.clone());
                scope.spawn(move || send.send(slots.take_or_make(3, make).is_ok()).unwrap());
            }
            assert!(got.recv_timeout(Duration::from_millis(100)).is_err(), "there are three");
            for slot in taken {
                slots.give_back(slot);
                assert!(got.recv().unwrap());
            }
        });
    }
}
