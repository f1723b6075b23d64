//! Slots: files in `.forebay` whose extended attribute holds the intent of a RENAME (docs/metadata-log.md, "Intents").
//! Beside them one file records how far a log counts that was lost.

use std::os::fd::OwnedFd;

use forebay_metalog::{Slot, Slots};
use forebay_oplog::{Record, RenameIntent};
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::export::handle_map::HandleMap;
use crate::export::private_dir::{SLOTS, dir_if_there, names, private_dir};

const ATTRIBUTE: &str = "user.forebay.intent";
const LOST: &str = "lost";
const LOST_ATTRIBUTE: &str = "user.forebay.lost";

/// The slots of one file system.
pub(crate) type RenameIntents = Slots<SlotFile>;

/// An open slot.
pub(crate) struct SlotFile(OwnedFd);

impl Slot for SlotFile {
    type Error = Error;

    fn write(&self, intent: &RenameIntent) -> Result<()> {
        Ok(rustix::fs::fsetxattr(&self.0, ATTRIBUTE, &intent.encode(), XattrFlags::empty())?)
    }

    fn withdraw(&self) -> Result<()> {
        Ok(rustix::fs::fremovexattr(&self.0, ATTRIBUTE)?)
    }
}

/// Makes the slot with this number.
pub(super) fn make(map: &HandleMap, number: usize) -> Result<SlotFile> {
    let dir = private_dir(map.private()?, SLOTS)?;
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(SlotFile(rustix::fs::openat(&dir, number.to_string(), flags, mode)?))
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
pub(crate) fn record_lost_log(map: &HandleMap, log: u64, filesystem: u32, upto: u64) -> Result<()> {
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

/// Calls `visit` with the name of each slot for intents.
fn each(map: &HandleMap, mut visit: impl FnMut(&OwnedFd, &std::ffi::CStr) -> Result<()>) -> Result<()> {
    let Some(private) = map.private_if_there()? else { return Ok(()) };
    let Some(dir) = dir_if_there(&private, SLOTS)? else { return Ok(()) };
    names(&dir)?.iter().try_for_each(|name| visit(&dir, name))
}
