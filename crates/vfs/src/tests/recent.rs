//! READs around external changes, also of open files whose attributes were read a moment ago.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use super::*;
use crate::caches::recent_attr::RECENT;

/// The arrival of a READ.
const NOW: u64 = 1_000_000_000;
const SIZE: u64 = 8192;

struct Buffer(Vec<u8>);

impl ReadInto for Buffer {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        self.0.resize(len, 0);
        &mut self.0
    }

    fn may_splice(&self, _: u64, _: usize) -> bool {
        false
    }

    fn splice(&mut self, _: std::os::fd::BorrowedFd<'_>, _: u64, _: usize) -> bool {
        false
    }
}

/// A file of two blocks in memory, which the backing store has as well.
struct Clean {
    served: Served,
    file: Target,
    backing: std::fs::File,
}

impl Clean {
    fn new() -> Self {
        let served = serve(Mode::WriteBack);
        let file = served.create(b"file");
        let writer = DataCaller::without_open(&served.cred);
        let written = served.vfs.write(&file, writer, 0, &[7; SIZE as usize], true, Wait::Yes);
        let Outcome::Done(Changed { intent, .. }) = written else { panic!("the write waits") };
        served.commit(intent);
        block_on(served.vfs.engine().unwrap().flush()).unwrap();
        let path = served.dir.path().join("data/file");
        let backing = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let clean = Clean { served, file, backing };
        assert_eq!(clean.read(DataCheck::Granted, NOW, 0), Some((7, 100)));
        clean
    }

    /// Returns a file that no request has asked for yet.
    fn unknown() -> Self {
        let served = serve(Mode::WriteBack);
        let path = served.dir.path().join("data/file");
        std::fs::write(&path, [7; SIZE as usize]).unwrap();
        let (object, _) = served.root.export.fs.child(&served.root.object, b"file", false).unwrap();
        let file = Target { export: served.root.export.clone(), object };
        let backing = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        Clean { served, file, backing }
    }

    /// Reads 100 bytes without waiting. Returns the first byte, or 0, and the number of bytes. Returns `None` if the
    /// READ has to wait.
    fn read(&self, check: DataCheck, arrived: u64, offset: u64) -> Option<(u8, usize)> {
        let by = DataCaller::new(&self.served.cred, check).with_recent(arrived);
        let mut into = Buffer(Vec::new());
        match self.served.vfs.read(&self.file, by, offset, 100, Wait::No, &mut into).unwrap() {
            Outcome::Done(out) => Some((into.0.first().copied().unwrap_or_default(), out.len)),
            Outcome::Wait => None,
            _ => panic!("the file is in memory"),
        }
    }

    /// Changes the file as a program of the host does, until its change time has moved.
    fn change_outside(&self, offset: u64) {
        let time = || self.backing.metadata().map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
        let before = time();
        while time() == before {
            self.backing.write_all_at(b"x", offset).unwrap();
        }
    }
}

/// The first READ makes the file known to the cache.
#[test]
fn an_external_change_behind_the_first_read_shows() {
    let clean = Clean::unknown();
    let by = DataCaller::new(&clean.served.cred, DataCheck::Granted);
    let read = || {
        let mut into = Buffer(Vec::new());
        let read = clean.served.vfs.read(&clean.file, by, 0, 100, Wait::Yes, &mut into);
        assert!(matches!(read, Ok(Outcome::Done(_))));
        into.0[0]
    };
    assert_eq!(read(), 7);
    clean.change_outside(0);
    assert_eq!(read(), b'x');
}

#[test]
fn an_external_change_shows_after_a_millisecond() {
    let clean = Clean::new();
    clean.change_outside(0);
    assert_eq!(clean.read(DataCheck::Granted, NOW + RECENT, 0), Some((7, 100)));
    assert_eq!(clean.read(DataCheck::Granted, NOW + RECENT + 1, 0), None, "the cache has to drop the file");
}

#[test]
fn a_client_that_has_the_change_time_of_an_external_change_gets_no_older_contents() {
    let clean = Clean::new();
    clean.change_outside(0);
    clean.file.attr().unwrap();
    assert_eq!(clean.read(DataCheck::Granted, NOW, 0), None);
}

#[test]
fn only_a_granted_access_may_miss_an_external_change() {
    for check in [DataCheck::Mode, DataCheck::ModeUnlessOwner] {
        let clean = Clean::new();
        clean.change_outside(0);
        assert_eq!(clean.read(check, NOW, 0), None, "{check:?}");
    }
}

#[test]
fn a_change_through_the_server_shows_at_once() {
    let clean = Clean::new();
    let shorter = SetAttr { size: Some(SIZE / 2), ..SetAttr::default() };
    assert_eq!(clean.read(DataCheck::Granted, NOW, SIZE / 2), Some((7, 100)));
    let Changed { result, intent, .. } =
        clean.served.vfs.setattr(&clean.file, &clean.served.cred, &shorter, None);
    result.unwrap();
    clean.served.commit(intent);
    assert_eq!(clean.read(DataCheck::Granted, NOW, SIZE / 2), Some((0, 0)));
}

#[test]
fn a_read_at_the_end_finds_what_the_host_has_appended() {
    for offset in [SIZE - 100, SIZE - 50, SIZE] {
        let clean = Clean::new();
        clean.change_outside(SIZE);
        assert_eq!(clean.read(DataCheck::Granted, NOW, offset), None, "offset {offset}");
    }
}
