//! The request journal: the changes in progress, for the next server if this one is killed while it carries them out.
//!
//! A change is in the directory for some time before its record is in the log. A kill in between leaves the change
//! there and takes its answer away. The client asks again, and would hear that the name exists already, or does not
//! exist. The journal covers each change whose first execution looks like a second one. The server writes such a change
//! into a file of the state directory before it begins.
//!
//! The write is not durable. The page cache survives a kill, and a power cut undoes most of such a change itself, so
//! the file counts only if the host is still up. The next server checks the result of each change
//! ([`Recovery`](forebay_metalog::Recovery)).
//!
//! A change has a slot of the file until it is answered. Each slot also names the change up to which all were answered
//! when the slot was written. So nothing has to be written when a change ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_common::lock::{Mutex, RwLock};
use forebay_metalog::CutShort;
use forebay_oplog::{Bindings, Numbers, Operation, Record};
use rustix::io::Errno;

use crate::caches::inode::Inode;

/// Bytes before the first slot: [`head`].
const HEAD: u64 = 4096;
/// Bytes of a slot, of which a change of two longest names takes less than 1000.
const SLOT: usize = 1024;
/// The number of changes in progress that are written down. A change beyond it is not.
const SLOTS: u64 = 4096;
/// Bytes before a slot's record: its length, how much of its answer is the key, the last change before which all are
/// answered.
const SLOT_HEAD: usize = 16;
const MAGIC: &[u8; 8] = b"FBWAY001";

/// A request for a change, which a client may send again.
#[derive(Clone, Debug)]
pub struct LoggedReply {
    /// The answer, as [`Vfs::commit`](crate::Vfs::commit) takes it, for a change that is found done and that no client
    /// was told of.
    pub answer: Vec<u8>,
    /// The number of bytes at the answer's start that distinguish the request from all other requests.
    pub key: usize,
}

impl LoggedReply {
    /// Returns the request of a creation of several system calls. Its name does not show that all calls are done, so it
    /// holds no answer.
    pub(crate) fn in_several_calls(&self) -> Self {
        LoggedReply { answer: self.answer[..self.key].to_vec(), key: self.key }
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct RequestJournal {
    /// Present since [`RequestJournal::restart`].
    file: RwLock<Option<File>>,
    path: PathBuf,
    head: Vec<u8>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    numbers: Numbers,
    /// Slots that were used and are free again: the last one is used first, so that few pages are ever written.
    free: Vec<u64>,
    /// Slots that were used.
    used: u64,
}

/// A change in progress. When the value is dropped, the change is answered.
#[derive(Debug)]
pub(crate) struct Request {
    under_way: Arc<RequestJournal>,
    number: u64,
    slot: u64,
}

/// Returns the head of the file, which names this boot of the host and this log.
fn head(log: u64) -> io::Result<Vec<u8>> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    Ok([&MAGIC[..], &log.to_le_bytes(), &boot].concat())
}

impl RequestJournal {
    /// Returns the journal of a log, which has no file yet. Also returns the changes that were in progress when the
    /// last server was killed, oldest first. Their file stays as it is.
    pub(crate) fn open(state_dir: &Path, log: u64) -> io::Result<(Arc<Self>, Vec<CutShort>)> {
        let (path, head) = (state_dir.join("under-way"), head(log)?);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(named)?,
        };
        let (file, inner) = (RwLock::default(), Mutex::default());
        let cut_short = read(&bytes, &head);
        Ok((Arc::new(RequestJournal { file, path, head, inner }), cut_short))
    }

    /// Replaces the file, after the changes that a killed server left were dealt with. `begun` are those that their
    /// clients may still continue. They stay in the journal until the returned requests are dropped, also over further
    /// kills.
    pub(crate) fn restart(self: &Arc<Self>, begun: &[CutShort]) -> io::Result<Vec<Request>> {
        let new = self.path.with_extension("new");
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", new.display()));
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&new).map_err(named)?;
        file.write_all_at(&self.head, 0).map_err(named)?;
        let again = |CutShort { operation, key }: &CutShort| {
            let asked = LoggedReply { answer: operation.reply.to_vec(), key: *key };
            self.write(&file, operation.filesystem, operation.entries.clone(), &asked)
        };
        let requests = begun.iter().map(again).collect();
        std::fs::rename(&new, &self.path).map_err(named)?;
        *self.file.write() = Some(file);
        Ok(requests)
    }

    /// Ends the journal: no change is in progress, and none will follow.
    pub(crate) fn end(&self) {
        // A file that stays reports results of changes that are in the log.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Writes down a change that is about to be carried out. The caller's locks keep other changes from these names.
    pub(crate) fn begin(
        self: &Arc<Self>,
        filesystem: u32,
        entries: Bindings,
        asked: &LoggedReply,
    ) -> Request {
        let file = self.file.read();
        let file =
            file.as_ref().unwrap_or_else(|| unreachable!("nothing changes before the journal restarts"));
        self.write(file, filesystem, entries, asked)
    }

    /// Writes a change into a free slot of the file.
    fn write(
        self: &Arc<Self>,
        file: &File,
        filesystem: u32,
        entries: Bindings,
        LoggedReply { answer, key }: &LoggedReply,
    ) -> Request {
        let (number, answered, slot) = {
            let mut inner = self.inner.lock();
            let number = inner.numbers.begin_open();
            (number, inner.numbers.confirmed(), inner.take())
        };
        let operation =
            Operation { number, filesystem, entries, objects: Vec::new(), reply: answer.as_slice().into() };
        let record = Record::Operation(Box::new(operation)).encode();
        let mut bytes = Vec::with_capacity(SLOT);
        bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(*key as u32).to_le_bytes());
        bytes.extend_from_slice(&answered.to_le_bytes());
        bytes.extend_from_slice(&record);
        if bytes.len() <= SLOT && slot < SLOTS {
            // If the write fails, the change is carried out all the same. Only a kill right now would show the
            // difference.
            let _ = file.write_all_at(&bytes, place(slot));
        }
        Request { under_way: self.clone(), number, slot }
    }
}

impl Inner {
    /// Returns the number of a free place.
    fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        })
    }
}

impl Request {
    /// Notes whether the change was carried out. A refused change leaves nothing in the journal. The locks are still
    /// held.
    pub(crate) fn carried_out(self, so: bool) -> Option<Self> {
        if so {
            return Some(self);
        }
        if let (true, Some(file)) = (self.slot < SLOTS, self.under_way.file.read().as_ref()) {
            let _ = file.write_all_at(&[0; 4], place(self.slot));
        }
        None
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut inner = self.under_way.inner.lock();
        inner.numbers.durable(self.number);
        inner.free.push(self.slot);
    }
}

/// Returns true if the name does not exist. The caller has locked the directory.
pub(crate) fn is_free(dir: &Inode, name: &[u8]) -> bool {
    let there = rustix::fs::statat(dir.path(), name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    there.err() == Some(Errno::NOENT)
}

/// Returns the offset of a slot.
fn place(slot: u64) -> u64 {
    HEAD + slot * SLOT as u64
}

/// Returns the changes that were in progress, oldest first. Returns none if the file has another head. A slot is
/// written by one call within one page, so a kill leaves all of it or nothing.
fn read(bytes: &[u8], head: &[u8]) -> Vec<CutShort> {
    if !bytes.starts_with(head) {
        return Vec::new();
    }
    let slots = bytes.get(HEAD as usize..).unwrap_or_default().chunks(SLOT);
    let (mut found, answered): (Vec<_>, Vec<_>) = slots.filter_map(read_slot).unzip();
    let answered = answered.into_iter().max().unwrap_or(0);
    found.retain(|cut_short: &CutShort| cut_short.operation.number > answered);
    found.sort_by_key(|cut_short| cut_short.operation.number);
    found
}

/// Returns a change, and the last change before which all were answered.
fn read_slot(slot: &[u8]) -> Option<(CutShort, u64)> {
    let (slot_head, rest) = slot.split_first_chunk::<SLOT_HEAD>()?;
    let number = |at: usize| slot_head.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
    let (len, key) = (number(0)? as usize, number(4)? as usize);
    let answered = u64::from_le_bytes(*slot_head.last_chunk()?);
    match Record::decode(rest.get(..len)?)? {
        Record::Operation(operation) if key <= operation.reply.len() => {
            Some((CutShort { operation: *operation, key }, answered))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{KERNEL_HANDLE_MAX, KernelHandle};
    use forebay_oplog::Binding;

    const LOG: u64 = 7;

    fn entry(name: &[u8]) -> Binding {
        let most = KernelHandle { kind: 1, len: KERNEL_HANDLE_MAX as u8, bytes: [1; KERNEL_HANDLE_MAX] };
        Binding { dir: most, name: name.into(), was: Some(most), now: Some(most) }
    }

    fn begin(under_way: &Arc<RequestJournal>, name: &[u8]) -> Request {
        let asked = LoggedReply { answer: b"key and reply".to_vec(), key: 3 };
        under_way.begin(3, [entry(name)].into_iter().collect(), &asked)
    }

    fn names(cut_short: &[CutShort]) -> Vec<String> {
        let name = |it: &CutShort| String::from_utf8(it.operation.entries[0].name.to_vec()).unwrap();
        cut_short.iter().map(name).collect()
    }

    fn opened(dir: &Path, log: u64) -> Vec<CutShort> {
        RequestJournal::open(dir, log).unwrap().1
    }

    #[test]
    fn what_is_not_answered_is_found_and_what_was_refused_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (under_way, none) = RequestJournal::open(dir.path(), LOG).unwrap();
        assert_eq!(none, []);
        under_way.restart(&[]).unwrap();
        drop(begin(&under_way, b"answered"));
        let first = begin(&under_way, b"first");
        assert!(begin(&under_way, b"refused").carried_out(false).is_none());
        let second = begin(&under_way, b"second").carried_out(true).unwrap();
        let found = opened(dir.path(), LOG);
        assert_eq!(names(&found), ["first", "second"]);
        assert_eq!((found[0].operation.filesystem, found[0].key), (3, 3));
        assert_eq!(&*found[0].operation.reply, b"key and reply");
        assert_eq!(opened(dir.path(), LOG + 1), [], "of another log");
        drop((first, second));
        let last = begin(&under_way, b"last");
        assert_eq!(names(&opened(dir.path(), LOG)), ["last"]);
        under_way.restart(&[]).unwrap();
        assert_eq!(opened(dir.path(), LOG), []);
        drop(last);
        under_way.end();
        assert!(!dir.path().join("under-way").exists());
    }

    #[test]
    fn a_creation_that_its_client_may_continue_stays_over_kills() {
        let dir = tempfile::tempdir().unwrap();
        let (under_way, _) = RequestJournal::open(dir.path(), LOG).unwrap();
        under_way.restart(&[]).unwrap();
        let _made = begin(&under_way, b"made");
        for _ in 0..3 {
            let (next, cut_short) = RequestJournal::open(dir.path(), LOG).unwrap();
            assert_eq!(names(&cut_short)[0], "made");
            let kept = next.restart(&cut_short[..1]).unwrap();
            let other = begin(&next, b"other");
            assert_eq!(names(&opened(dir.path(), LOG)), ["made", "other"]);
            std::mem::forget((kept, other));
        }
        let (next, cut_short) = RequestJournal::open(dir.path(), LOG).unwrap();
        drop(next.restart(&cut_short[..1]).unwrap());
        let _last = begin(&next, b"last");
        assert_eq!(names(&opened(dir.path(), LOG)), ["last"], "its client has continued");
    }

    #[test]
    fn the_file_is_as_large_as_what_is_under_way_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (under_way, _) = RequestJournal::open(dir.path(), LOG).unwrap();
        under_way.restart(&[]).unwrap();
        let size = || dir.path().join("under-way").metadata().unwrap().len();
        let first = begin(&under_way, b"first");
        (0..100).for_each(|_| drop(begin(&under_way, b"another")));
        assert!(size() <= place(2));
        let all: Vec<_> = (0..SLOTS + 2).map(|n| begin(&under_way, n.to_string().as_bytes())).collect();
        let found = opened(dir.path(), LOG);
        assert_eq!((found.len() as u64, size() <= place(SLOTS)), (SLOTS, true));
        drop((first, all));
    }

    #[test]
    fn a_change_of_two_longest_names_fits() {
        let dir = tempfile::tempdir().unwrap();
        let (under_way, _) = RequestJournal::open(dir.path(), LOG).unwrap();
        under_way.restart(&[]).unwrap();
        let entries = [entry(&[b'a'; 255]), entry(&[b'b'; 255])].into_iter().collect();
        // An IPv6 client's key and the longest reply.
        let asked = LoggedReply { answer: vec![1; 120], key: 42 };
        let _under_way = under_way.begin(3, entries, &asked);
        assert_eq!(opened(dir.path(), LOG).len(), 1);
    }

    #[test]
    fn no_bytes_are_taken_for_more_than_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (under_way, _) = RequestJournal::open(dir.path(), LOG).unwrap();
        under_way.restart(&[]).unwrap();
        let _request = begin(&under_way, b"name");
        let good = std::fs::read(dir.path().join("under-way")).unwrap();
        let at = place(0) as usize;
        assert_eq!(read(&good, &under_way.head).len(), 1);
        for cut in [0, HEAD as usize - 1, at, at + SLOT_HEAD, at + SLOT_HEAD + 20] {
            assert_eq!(read(&good[..cut], &under_way.head), []);
        }
        for byte in at..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                assert!(read(&bad, &under_way.head).len() <= 1);
            }
        }
    }
}
