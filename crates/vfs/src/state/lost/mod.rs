//! Cached data without a place: its file is gone and the log knows of no removal, or its file system was given up. It
//! is destaged into files of the state directory, where an administrator finds it (`forebay lost`).
//!
//! Each file has a directory `lost/ID`. A sparse file `data` has the blocks that only the cache had, each at its place
//! in the file. `about` has the description. The exported directory is not used: it may be the wrong one, or full, and
//! its users may not be allowed to see the data.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_common::lock::Mutex;
use forebay_common::state_file;
use forebay_engine::io::{Key, Time};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use siphasher::sip::SipHasher24;

const DIR: &str = "lost";
const DATA: &str = "data";
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

/// Something that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// Its name in `forebay lost`.
    pub id: String,
    /// The last path that was known of it, within the export's directory as this host names it; empty if none was.
    pub path: String,
    /// The exported directories of its file system.
    pub exports: String,
    /// The identity that it had: file system, handle type and kernel handle, in hexadecimal digits.
    pub handle: String,
    /// Why it is here.
    pub why: &'static str,
    /// Since when, in nanoseconds since 1970.
    pub since_ns: u64,
    /// Bytes up to the end of the last range.
    pub size: u64,
    /// The ranges that are here: first byte, and the byte after the last one.
    pub ranges: Vec<(u64, u64)>,
}

/// Told of each that is new.
type Tell = Box<dyn Fn(&LostFile) + Send + Sync>;

/// The data that the cache's backing store has set aside.
pub(crate) struct Lost {
    dir: PathBuf,
    open: Mutex<HashMap<Key, Arc<File>>>,
    tell: OnceLock<Tell>,
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

    /// Returns the file with an inode's data from this or an earlier run. Returns `None` if no data was written yet.
    fn found(&self, key: &Key) -> io::Result<Option<Arc<File>>> {
        let mut open = self.open.lock();
        if let Some(file) = open.get(key) {
            return Ok(Some(file.clone()));
        }
        let path = self.dir.join(id_of(key.as_bytes())).join(DATA);
        let file = state_file::existing(File::options().read(true).write(true).open(path))?;
        Ok(file.map(|file| open.entry(key.clone()).or_insert(Arc::new(file)).clone()))
    }

    /// Returns the size of the file with the data, in bytes.
    pub(crate) fn size(&self, key: &Key) -> io::Result<u64> {
        self.found(key)?.map_or(Ok(0), |file| Ok(file.metadata()?.len()))
    }

    /// Reads data that was set aside. At the end of the file it returns less than the buffer holds.
    pub(crate) fn read(&self, key: &Key, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(file) = self.found(key)? else { return Ok(0) };
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
        let file = match self.found(key)? {
            Some(file) => file,
            None => {
                let file = Arc::new(self.make(key.as_bytes(), &about())?);
                file.write_all_at(data, offset)?;
                self.open.lock().insert(key.clone(), file);
                self.tell(&id_of(key.as_bytes()));
                return Ok(());
            }
        };
        file.write_all_at(data, offset)
    }

    /// Keeps a text.
    pub(crate) fn write_text(&self, name: &str, text: &str, about: &About) -> io::Result<()> {
        let mut file = self.make(name.as_bytes(), about)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        self.tell(&id_of(name.as_bytes()));
        Ok(())
    }

    /// Reports a file that was set aside.
    fn tell(&self, id: &str) {
        if let (Some(tell), Ok(file)) = (self.tell.get(), read(&self.dir.join(id))) {
            tell(&file);
        }
    }

    /// Creates an empty file, with its names durable but not its later contents.
    fn make(&self, key: &[u8], about: &About) -> io::Result<File> {
        let dir = self.dir.join(id_of(key));
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let handle: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let plain = |text: &str| text.replace(char::is_control, "?");
        let why = WHYS.iter().find(|(why, _)| *why == about.why).map_or("", |(_, name)| name);
        let (path, exports, since) = (plain(&about.path), plain(&about.exports), now.as_nanos());
        let text = format!("path {path}\nexports {exports}\nhandle {handle}\nwhy {why}\nsince {since}\n");
        state_file::replace(&dir.join(ABOUT), text)?;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(dir.join(DATA))?;
        // The names of the data, of its directory, and of the directory of all.
        [&dir.join(DATA), &dir, &self.dir].into_iter().try_for_each(|name| state_file::sync_name(name))?;
        Ok(file)
    }

    /// Sets the size of the file with the data, if there is one.
    pub(crate) fn truncate(&self, key: &Key, size: u64) -> io::Result<()> {
        self.found(key)?.map_or(Ok(()), |file| file.set_len(size))
    }

    /// Sets the modification time of the file with the data, if there is one.
    pub(crate) fn set_mtime(&self, key: &Key, mtime: Time) -> io::Result<()> {
        let Some(file) = self.found(key)? else { return Ok(()) };
        let Ok(seconds) = u64::try_from(mtime.sec) else { return Ok(()) };
        file.set_modified(UNIX_EPOCH + Duration::new(seconds, mtime.nsec))
    }

    /// Makes the written data durable. After a failure the file is opened again, so that the next sync reports its own
    /// result.
    pub(crate) fn sync(&self, key: &Key) -> io::Result<()> {
        let Some(file) = self.found(key)? else { return Ok(()) };
        file.sync_all().inspect_err(|_| {
            self.open.lock().remove(key);
        })
    }
}

/// Reads the description and the ranges of the data in `dir`.
fn read(dir: &Path) -> io::Result<LostFile> {
    let about = std::fs::read_to_string(dir.join(ABOUT))?;
    let field = |name: &str| {
        let line = about.lines().find_map(|line| line.split_once(' ').filter(|(field, _)| *field == name));
        line.map_or("", |(_, text)| text).to_owned()
    };
    let data = File::open(dir.join(DATA))?;
    let why = field("why");
    Ok(LostFile {
        id: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        path: field("path"),
        exports: field("exports"),
        handle: field("handle"),
        why: WHYS.iter().find(|(_, name)| *name == why).map_or("", |(_, name)| name),
        since_ns: field("since").parse().unwrap_or(0),
        size: data.metadata()?.len(),
        ranges: ranges(&data)?,
    })
}

/// Returns the ranges of a sparse file that hold data.
fn ranges(data: &File) -> io::Result<Vec<(u64, u64)>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    loop {
        let from = match rustix::fs::seek(data, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Errno::NXIO) => return Ok(ranges),
            Err(errno) => return Err(errno.into()),
        };
        at = rustix::fs::seek(data, SeekFrom::Hole(from))?;
        ranges.push((from, at));
    }
}

/// Returns all data that was set aside with this state directory, oldest first.
pub fn lost_files(state_dir: &Path) -> io::Result<Vec<LostFile>> {
    let entries = state_file::existing(std::fs::read_dir(state_dir.join(DIR)))?.into_iter().flatten();
    let mut all = entries.map(|entry| read(&entry?.path())).collect::<io::Result<Vec<_>>>()?;
    all.sort_by_key(|file| file.since_ns);
    Ok(all)
}

/// Returns the directory of one file that was set aside, by its id. The beginning of the id is enough if it is unique.
fn find(state_dir: &Path, id: &str) -> io::Result<PathBuf> {
    let mut found = lost_files(state_dir)?.into_iter().filter(|file| file.id.starts_with(id));
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(state_dir.join(DIR).join(file.id)),
        (None, _) => Err(io::Error::new(io::ErrorKind::NotFound, "nothing with this id was set aside")),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "several ids begin so; write more of it")),
    }
}

/// Returns one file that was set aside.
pub fn lost_file(state_dir: &Path, id: &str) -> io::Result<LostFile> {
    read(&find(state_dir, id)?)
}

/// Copies data that was set aside to `to`, durably. `to` is a new file of mode 0600; with `over`, the ranges go over an
/// existing file. Returns the number of bytes copied.
pub fn restore_lost(state_dir: &Path, id: &str, to: &Path, over: bool) -> io::Result<u64> {
    let dir = find(state_dir, id)?;
    let (from, about) = (File::open(dir.join(DATA))?, read(&dir)?);
    let mut options = File::options();
    options.write(true).mode(0o600);
    // Never through a symbolic link that another user may have put there.
    options.custom_flags(libc::O_NOFOLLOW);
    let file = if over { options.open(to)? } else { options.create_new(true).open(to)? };
    let mut buffer = vec![0; 1 << 20];
    let mut copied = 0;
    for (mut at, end) in about.ranges {
        while at < end {
            let len = (end - at).min(buffer.len() as u64) as usize;
            let read = from.read_at(&mut buffer[..len], at)?;
            if read == 0 {
                break;
            }
            file.write_all_at(&buffer[..read], at)?;
            (at, copied) = (at + read as u64, copied + read as u64);
        }
    }
    if !over {
        file.set_len(about.size)?;
    }
    file.sync_all()?;
    Ok(copied)
}

/// Removes data that was set aside.
pub fn drop_lost(state_dir: &Path, id: &str) -> io::Result<()> {
    let dir = find(state_dir, id)?;
    for name in [DATA, ABOUT] {
        std::fs::remove_file(dir.join(name))?;
    }
    std::fs::remove_dir(dir)
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
}
