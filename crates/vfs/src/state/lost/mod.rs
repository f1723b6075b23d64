//! Cached data without a place: its file is gone and the log knows of no removal, or its file system was given up. It
//! is destaged into files of the state directory, where an administrator finds it (`forebay lost`).
//!
//! Each file has a directory `lost/ID`. A sparse file `data` has the blocks that only the cache had, each at its place
//! in the file. `ranges` records the ranges of these blocks, and `about` has the description. The exported directory is
//! not used: it may be the wrong one, or full, and its users may not be allowed to see the data.

mod entries;
mod ranges;

use std::collections::{HashMap, hash_map};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::hash::Hasher;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_common::lock::Mutex;
use forebay_common::state_file;
use forebay_engine::io::{Key, Time};
use rustix::io::Errno;
use siphasher::sip::SipHasher24;

pub use entries::{LostFile, drop_lost, lost_file, lost_files, restore_lost};
use ranges::Change;

const DIR: &str = "lost";
const DATA: &str = "data";
const RANGES: &str = "ranges";
const ABOUT: &str = "about";

/// Why something was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The file is gone, and the log knows of no removal.
    Gone,
    /// The file system was given up for another one.
    GivenUp,
    /// The data is a list of changes of names and attributes in a file system that was given up.
    Changes,
}

const WHYS: [(Why, &str); 3] = [
    (Why::Gone, "the file is gone"),
    (Why::GivenUp, "its file system was given up"),
    (Why::Changes, "changes"),
];

/// Told of each that is new.
type Tell = Box<dyn Fn(&LostFile) + Send + Sync>;

/// The data that the cache's backing store has set aside.
pub(crate) struct Lost {
    dir: PathBuf,
    /// Files that were changed since their last sync.
    open: Mutex<HashMap<Key, Changed>>,
    tell: OnceLock<Tell>,
}

/// A file that was changed since its last sync.
struct Changed {
    data: File,
    ranges: File,
    /// True if no range was durable when the file was opened.
    is_new: bool,
    changes: Vec<Change>,
}

/// The description of data that is set aside.
pub(crate) struct About {
    pub(crate) path: String,
    pub(crate) exports: String,
    pub(crate) why: Why,
}

/// Returns the name under which the data of a key is set aside.
fn id_of(key: &[u8]) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(key);
    format!("{:016x}", hasher.finish())
}

impl Lost {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Lost { dir: state_dir.join(DIR), open: Mutex::default(), tell: OnceLock::new() }
    }

    pub(crate) fn on_new(&self, tell: Tell) {
        let _ = self.tell.set(tell);
    }

    fn dir_of(&self, key: &Key) -> PathBuf {
        self.dir.join(id_of(key.as_bytes()))
    }

    /// Opens the file with an inode's data for reading. Returns `None` if no data was written yet.
    fn reader(&self, key: &Key) -> io::Result<Option<File>> {
        state_file::existing(File::open(self.dir_of(key).join(DATA)))
    }

    /// Returns the size of the file with the data, in bytes.
    pub(crate) fn size(&self, key: &Key) -> io::Result<u64> {
        self.reader(key)?.map_or(Ok(0), |file| Ok(file.metadata()?.len()))
    }

    /// Reads data that was set aside. At the end of the file it returns less than the buffer holds.
    pub(crate) fn read(&self, key: &Key, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(file) = self.reader(key)? else { return Ok(0) };
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    /// Keeps data that only the cache has. It is durable after [`Lost::sync`].
    pub(crate) fn write(
        &self,
        key: &Key,
        offset: u64,
        data: &[u8],
        about: impl FnOnce() -> About,
    ) -> io::Result<()> {
        let mut open = self.open.lock();
        let file = match open.entry(key.clone()) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(place) => place.insert(match self.found(key)? {
                Some(found) => found,
                None => self.make(key.as_bytes(), &about())?,
            }),
        };
        file.data.write_all_at(data, offset)?;
        ranges::add(&mut file.changes, Change::Data(offset..offset + data.len() as u64));
        Ok(())
    }

    /// Keeps a text.
    pub(crate) fn write_text(&self, name: &str, text: &str, about: &About) -> io::Result<()> {
        let mut file = self.make(name.as_bytes(), about)?;
        file.data.set_len(0)?;
        file.data.write_all_at(text.as_bytes(), 0)?;
        file.changes.push(Change::Data(0..text.len() as u64));
        self.make_durable(&id_of(name.as_bytes()), file)
    }

    /// Opens the file with an inode's data from this or an earlier run. Returns `None` if no data was written yet.
    fn found(&self, key: &Key) -> io::Result<Option<Changed>> {
        let dir = self.dir_of(key);
        let data = File::options().read(true).write(true).open(dir.join(DATA));
        let Some(data) = state_file::existing(data)? else { return Ok(None) };
        let path = dir.join(RANGES);
        if state_file::read(&path)?.is_none() {
            // Version 0.1.0 made no record.
            state_file::replace(&path, ranges::text(&ranges::of_holes(&data)?))?;
        }
        Changed::of(data, &path).map(Some)
    }

    /// Creates an empty file, with its names durable but not its later contents.
    fn make(&self, key: &[u8], about: &About) -> io::Result<Changed> {
        let dir = self.dir.join(id_of(key));
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let handle: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let plain = |text: &str| text.replace(char::is_control, "?");
        let why = WHYS.iter().find(|(why, _)| *why == about.why).map_or("", |(_, name)| name);
        let (path, exports, since) = (plain(&about.path), plain(&about.exports), now.as_nanos());
        let text = format!("path {path}\nexports {exports}\nhandle {handle}\nwhy {why}\nsince {since}\n");
        state_file::replace(&dir.join(ABOUT), text)?;
        // Before the data, which without a record counts as that of an older version.
        state_file::replace(&dir.join(RANGES), "")?;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(dir.join(DATA))?;
        // The names of the data, of its directory, and of the directory of all.
        [&dir.join(DATA), &dir, &self.dir].into_iter().try_for_each(|name| state_file::sync_name(name))?;
        Changed::of(file, &dir.join(RANGES))
    }

    /// Sets the size of the file with the data, if there is one.
    pub(crate) fn truncate(&self, key: &Key, size: u64) -> io::Result<()> {
        self.change(key, |file| {
            file.data.set_len(size)?;
            file.changes.push(Change::Cut(size));
            Ok(())
        })
    }

    /// Sets the modification time of the file with the data, if there is one.
    pub(crate) fn set_mtime(&self, key: &Key, mtime: Time) -> io::Result<()> {
        let Ok(seconds) = u64::try_from(mtime.sec) else { return Ok(()) };
        let time = UNIX_EPOCH + Duration::new(seconds, mtime.nsec);
        self.change(key, |file| file.data.set_modified(time))
    }

    /// Changes the file with the data, if there is one.
    fn change(&self, key: &Key, change: impl FnOnce(&mut Changed) -> io::Result<()>) -> io::Result<()> {
        let mut open = self.open.lock();
        match open.entry(key.clone()) {
            hash_map::Entry::Occupied(mut entry) => change(entry.get_mut()),
            hash_map::Entry::Vacant(place) => match self.found(key)? {
                Some(found) => change(place.insert(found)),
                None => Ok(()),
            },
        }
    }

    /// Makes the written data durable, and closes the file: there may be very many.
    ///
    /// # Errors
    /// The data is not durable, or somebody dropped it meanwhile. It has to be written again.
    pub(crate) fn sync(&self, key: &Key) -> io::Result<()> {
        let file = self.open.lock().remove(key);
        file.map_or(Ok(()), |file| self.make_durable(&id_of(key.as_bytes()), file))
    }

    /// Makes changed data durable, and then its ranges. Reports a file that was set aside.
    fn make_durable(&self, id: &str, Changed { data, ranges, is_new, changes }: Changed) -> io::Result<()> {
        data.sync_all()?;
        ranges::append(&ranges, &changes)?;
        if data.metadata()?.nlink() == 0 {
            return Err(Errno::STALE.into());
        }
        if let (true, Some(tell), Ok(Some(file))) =
            (is_new, self.tell.get(), entries::read(&self.dir.join(id)))
        {
            tell(&file);
        }
        Ok(())
    }
}

impl Changed {
    /// Returns an open file without changes, with the path of the record of its ranges.
    fn of(data: File, ranges: &Path) -> io::Result<Self> {
        let ranges = File::options().append(true).open(ranges)?;
        let is_new = ranges.metadata()?.len() == 0;
        Ok(Changed { data, ranges, is_new, changes: Vec::new() })
    }
}

/// Returns a path for people of a name in a directory that is open.
pub(crate) fn path_of(dir: impl std::os::fd::AsFd, name: &[u8]) -> String {
    let mut buffer = [0; 32];
    let dir = rustix::fs::readlink(crate::sys::proc_path(&mut buffer, dir), Vec::new());
    let dir = dir.map(|dir| PathBuf::from(OsStr::from_bytes(dir.to_bytes()))).unwrap_or_default();
    dir.join(OsStr::from_bytes(name)).display().to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn about() -> About {
        About { path: "/srv/data/a b".into(), exports: "/srv/data".into(), why: Why::Gone }
    }

    #[test]
    fn what_is_set_aside_is_found_by_a_person_and_by_the_next_server() {
        let home = tempfile::tempdir().unwrap();
        let key = Key::new(b"a file").unwrap();
        for (offset, bytes) in [(1 << 20, &b"tail"[..]), (0, b"head")] {
            // Each in a run of its own.
            let lost = Lost::new(home.path());
            lost.write(&key, offset, bytes, about).unwrap();
            lost.sync(&key).unwrap();
        }
        let lost = Lost::new(home.path());
        assert_eq!(lost.size(&key).unwrap(), (1 << 20) + 4);
        let other = Key::new(b"another").unwrap();
        assert_eq!((lost.size(&other).unwrap(), lost.read(&other, 0, &mut [0; 4]).unwrap()), (0, 0));
        let all = lost_files(home.path()).unwrap();
        let [file] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&*file.path, file.why), ("/srv/data/a b", "the file is gone"));
        assert!(file.ranges.len() == 2 && file.ranges[1].1 == (1 << 20) + 4, "{:?}", file.ranges);
        let to = home.path().join("restored");
        restore_lost(home.path(), &file.id[..4], &to, false).unwrap();
        let restored = std::fs::read(&to).unwrap();
        assert_eq!(
            (restored.len(), &restored[..4], &restored[1 << 20..]),
            ((1 << 20) + 4, &b"head"[..], &b"tail"[..])
        );
        assert_eq!(to.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let again = restore_lost(home.path(), &file.id, &to, false);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(&to, vec![7; 2 << 20]).unwrap();
        restore_lost(home.path(), &file.id, &to, true).unwrap();
        let over = std::fs::read(&to).unwrap();
        assert_eq!(
            (over.len(), &over[..4], over[1 << 19]),
            (2 << 20, &b"head"[..], 7),
            "what was there stays"
        );
        drop_lost(home.path(), &file.id).unwrap();
        assert!(lost_files(home.path()).unwrap().is_empty());
        assert!(lost_file(home.path(), &file.id).is_err());
    }

    /// A file system may report holes in units that are larger than a block: ZFS has records of 128 KiB. Another one
    /// reports none at all.
    #[test]
    fn a_restoration_writes_only_what_was_set_aside_whatever_holes_the_file_system_reports() {
        let home = tempfile::tempdir().unwrap();
        let key = Key::new(b"a file").unwrap();
        let lost = Lost::new(home.path());
        lost.write(&key, 64 << 10, &[1; 4096], about).unwrap();
        lost.sync(&key).unwrap();
        let id = lost_files(home.path()).unwrap()[0].id.clone();
        let data = File::options().write(true).open(home.path().join(DIR).join(&id).join(DATA)).unwrap();
        data.write_all_at(&[0; 64 << 10], 0).unwrap();
        let to = home.path().join("from the backup");
        std::fs::write(&to, [7; 128 << 10]).unwrap();
        restore_lost(home.path(), &id, &to, true).unwrap();
        let restored = std::fs::read(&to).unwrap();
        assert_eq!((restored[0], restored[(64 << 10) - 1], restored[64 << 10]), (7, 7, 1));
        assert_eq!(lost_file(home.path(), &id).unwrap().ranges, [(64 << 10, 68 << 10)]);
    }

    #[test]
    fn data_that_comes_after_the_rest_was_dropped_is_set_aside_too() {
        let home = tempfile::tempdir().unwrap();
        let key = Key::new(b"a file").unwrap();
        let lost = Lost::new(home.path());
        lost.write(&key, 0, b"one", about).unwrap();
        lost.sync(&key).unwrap();
        let drop_it = || drop_lost(home.path(), &lost_files(home.path()).unwrap()[0].id).unwrap();
        drop_it();
        lost.write(&key, 4096, b"two", about).unwrap();
        lost.sync(&key).unwrap();
        assert_eq!(lost_files(home.path()).unwrap()[0].ranges, [(4096, 4099)]);
        lost.write(&key, 8192, b"three", about).unwrap();
        drop_it();
        assert!(lost.sync(&key).is_err(), "the engine has to write it again");
        lost.write(&key, 8192, b"three", about).unwrap();
        lost.sync(&key).unwrap();
        assert_eq!(lost_files(home.path()).unwrap()[0].ranges, [(8192, 8197)]);
    }

    /// A power cut between two steps of the server, or of `forebay lost drop`.
    #[test]
    fn half_a_directory_hides_no_other_data() {
        let home = tempfile::tempdir().unwrap();
        let lost = Lost::new(home.path());
        let [key, whole] = [&b"a file"[..], b"another"].map(|key| Key::new(key).unwrap());
        for key in [&key, &whole] {
            lost.write(key, 0, b"data", about).unwrap();
            lost.sync(key).unwrap();
        }
        let dir = home.path().join(DIR).join(id_of(key.as_bytes()));
        std::fs::remove_file(dir.join(DATA)).unwrap();
        let all = lost_files(home.path()).unwrap();
        assert_eq!(all.iter().map(|file| file.ranges.len()).sum::<usize>(), 1, "{all:?}");
        drop_lost(home.path(), &id_of(key.as_bytes())).unwrap();
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(lost_files(home.path()).unwrap().len(), 1);
    }

    #[test]
    fn data_that_is_durable_keeps_no_descriptor() {
        let home = tempfile::tempdir().unwrap();
        let lost = Lost::new(home.path());
        for number in 0..10u8 {
            let key = Key::new(&[number]).unwrap();
            lost.write(&key, 0, b"data", about).unwrap();
            lost.sync(&key).unwrap();
            assert_eq!((lost.size(&key).unwrap(), lost.read(&key, 0, &mut [0; 8]).unwrap()), (4, 4));
        }
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let ours = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        assert_eq!(ours.filter(|path| path.starts_with(home.path())).count(), 0);
    }
}
