//! Where a cache device may be: one table for `serve`, `--format-cache`, `--make-missing` and `pool add`.
//!
//! | row | the path | decision |
//! |---|---|---|
//! | D1 | lies in an exported directory | refuse: clients could delete it |
//! | D2 | lies in the state directory of another server, or is a file in a directory that another one serves | refuse |
//! | D3 | is the same device or file as one that is in use already | refuse |
//! | D4 | is a file in /dev | refuse: it would be in memory |
//! | D5 | is missing, in /dev | refuse: a device is not there |
//! | D6 | a file, or missing, on tmpfs or ramfs | refuse, unless `--cache-in-memory` |
//! | D7 | is missing, and so is its directory | refuse: an SSD may not be mounted |
//! | D8 | is missing, was a member, and its file system is not mounted where it was | refuse |
//! | D9 | is a directory, character device, pipe or socket | refused when it is opened |
//! | D10 | is a block device that is mounted or in use | refused when it is opened |
//! | D11 | is the URL of an export of this server itself | refuse: the log would be in the log |
//! | D12 | is the URL of another NBD export | accept; the export is examined when it is opened |
//! | D13 | anything else | accept |

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_common::lock::{Mutex, RwLock};
use forebay_common::nbd_url::NbdUrl;
use forebay_config::{Export, Nbd, Settings, inside_export};
use forebay_disk::whereabouts;
use forebay_vfs::{DirectoryLocks, NotOwned, Ownership};

use crate::roster::Record;

/// Magic numbers of file systems in memory, as statfs(2) lists them.
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

/// The facts that the rules depend on.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The directories that are served.
    pub(crate) exports: RwLock<Vec<Export>>,
    /// This server's own state directory.
    pub(crate) state_dir: PathBuf,
    /// True if file systems in memory are accepted.
    pub(crate) in_memory: bool,
    /// The places where this server serves volumes over NBD.
    pub(crate) nbd: Nbd,
    /// The directories of accepted cache files. No other server may serve them as long as this one runs.
    pub(crate) places: Mutex<BTreeMap<PathBuf, Ownership>>,
    /// The locks of the directories of this server, which may serve the directory itself once the file is gone.
    pub(crate) owner: DirectoryLocks,
}

/// Why a path may not be a cache device.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "the cache device {} lies inside the exported {}; name one outside, clients must not reach it",
        path.display(), export.display()
    )]
    Exported { path: PathBuf, export: PathBuf },
    #[error(
        "the cache device {} lies in {}, the state directory of another server; name one outside",
        path.display(), state_dir.display()
    )]
    OtherState { path: PathBuf, state_dir: PathBuf },
    #[error(
        "the cache device {} lies in {}, which another forebay serves to clients; name one outside",
        path.display(), served.display()
    )]
    Served { path: PathBuf, served: PathBuf },
    #[error("{} and {} are the same cache device; name it once", path.display(), other.display())]
    Same { path: PathBuf, other: PathBuf },
    #[error("the cache device {} is a volume of this server itself; name another device", .0.display())]
    OwnExport(PathBuf),
    #[error(
        "{} is a file in /dev, which is in memory and no cache device; remove it, and connect the device",
        .0.display()
    )]
    FileInDev(PathBuf),
    #[error(
        "the cache device {} is not there; connect it or correct the path (no file is made in /dev)",
        .0.display()
    )]
    MissingDevice(PathBuf),
    #[error(
        "the cache file {} is in memory (tmpfs or ramfs): a power cut loses what was acknowledged; name a path on an SSD, \
         or accept that with --cache-in-memory",
        .0.display()
    )]
    InMemory(PathBuf),
    #[error(
        "cannot make the cache file {}: there is no directory {}; mount the SSD there or make the directory, or name \
         another path",
        path.display(), directory.display()
    )]
    NoDirectory { path: PathBuf, directory: PathBuf },
    #[error(
        "cannot make the cache file {}: the file system that it was on is not mounted at {}; mount it, or name another path",
        path.display(), mount.display()
    )]
    NotMounted { path: PathBuf, mount: PathBuf },
}

impl Rules {
    /// Returns the rules for a server with these settings.
    pub(crate) fn of(settings: &Settings, owner: &DirectoryLocks) -> Self {
        Rules {
            exports: RwLock::new(settings.exports.clone()),
            state_dir: settings.state_dir.clone(),
            in_memory: settings.cache.in_memory,
            nbd: settings.nbd.clone(),
            places: Mutex::default(),
            owner: owner.clone(),
        }
    }

    /// Decides by the table of this module. `others` are the cache devices that are in use already. `before` is the
    /// record of the member that was called `path`.
    ///
    /// # Errors
    /// The row that refuses.
    pub(crate) fn check(
        &self,
        path: &Path,
        others: &[PathBuf],
        before: Option<&Record>,
    ) -> Result<(), Refusal> {
        let owned = || path.to_owned();
        if NbdUrl::of(path).is_some_and(|url| url.is_at(&self.nbd.listen, &self.nbd.sockets)) {
            return Err(Refusal::OwnExport(owned()));
        }
        if NbdUrl::is_meant(path) {
            let same = others.iter().find(|other| other.as_path() != path && is_same_export(other, path));
            return same.map_or(Ok(()), |other| Err(Refusal::Same { path: owned(), other: other.clone() }));
        }
        if let Some(export) = inside_export(path, &self.exports.read()) {
            return Err(Refusal::Exported { path: owned(), export: export.path.clone() });
        }
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        if let Some(state_dir) = self.other_state(&real) {
            return Err(Refusal::OtherState { path: owned(), state_dir });
        }
        let meta = std::fs::metadata(path).ok();
        if let Some(other) = meta.as_ref().and_then(|meta| same(meta, path, others)) {
            return Err(Refusal::Same { path: owned(), other });
        }
        let is_file = meta.as_ref().is_some_and(|meta| meta.is_file());
        let missing = matches!(path.try_exists(), Ok(false));
        if !is_file && !missing {
            return Ok(());
        }
        let kind = rustix::fs::statfs(if is_file { path } else { &real }).ok();
        let in_memory = kind.is_some_and(|kind| [TMPFS, RAMFS].contains(&kind.f_type));
        match (real.starts_with("/dev"), is_file) {
            // A separate file system at /dev/shm holds none of the system's devices.
            (true, _) if real.starts_with("/dev/shm") => {}
            (true, true) => return Err(Refusal::FileInDev(owned())),
            (true, false) => return Err(Refusal::MissingDevice(owned())),
            (false, _) => {}
        }
        if in_memory && !self.in_memory {
            return Err(Refusal::InMemory(owned()));
        }
        if missing {
            may_be_made(path, directory, before)?;
        }
        self.keep_unserved(path, real)
    }

    /// Keeps other servers from serving the directory of a cache file. A directory that cannot be opened is left to the
    /// opening of the file.
    fn keep_unserved(&self, path: &Path, directory: PathBuf) -> Result<(), Refusal> {
        match self.owner.keep_unserved(&directory) {
            Ok(kept) => drop(self.places.lock().insert(directory, kept)),
            Err(NotOwned::Inside(served)) => return Err(Refusal::Served { path: path.to_owned(), served }),
            Err(NotOwned::Taken | NotOwned::Around | NotOwned::Unusable(_)) => {}
        }
        Ok(())
    }

    /// Returns the state directory of another server that `directory` is, or lies in.
    fn other_state(&self, directory: &Path) -> Option<PathBuf> {
        let own = self.state_dir.canonicalize().unwrap_or_else(|_| self.state_dir.clone());
        let above = directory.ancestors().take_while(|above| *above != own);
        above.filter(|above| above.join("handle.key").exists()).map(Path::to_owned).next()
    }
}

/// Applies rows D7 and D8.
fn may_be_made(path: &Path, directory: &Path, before: Option<&Record>) -> Result<(), Refusal> {
    if !directory.is_dir() {
        return Err(Refusal::NoDirectory { path: path.to_owned(), directory: directory.to_owned() });
    }
    let mount = before.map(|before| before.mount.clone()).filter(|mount| !mount.is_empty());
    let Some(mount) = mount.map(PathBuf::from) else { return Ok(()) };
    match whereabouts(directory) {
        Ok(now) if now.mount.as_deref() != Some(&mount) => {
            Err(Refusal::NotMounted { path: path.to_owned(), mount })
        }
        _ => Ok(()),
    }
}

/// Returns true if both are URLs of one NBD export.
pub(crate) fn is_same_export(one: &Path, other: &Path) -> bool {
    NbdUrl::of(one).is_some_and(|url| NbdUrl::of(other).as_ref() == Some(&url))
}

/// Returns the path in `others` that is the same device, or the same file by another name.
fn same(meta: &std::fs::Metadata, path: &Path, others: &[PathBuf]) -> Option<PathBuf> {
    let identity = |meta: &std::fs::Metadata| match meta.file_type().is_block_device() {
        true => (true, meta.rdev(), 0),
        false => (false, meta.dev(), meta.ino()),
    };
    let is_it = |other: &&PathBuf| {
        other.as_path() != path
            && std::fs::metadata(other).is_ok_and(|other| identity(&other) == identity(meta))
    };
    others.iter().find(is_it).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        home: tempfile::TempDir,
        rules: Rules,
    }

    impl Rig {
        fn new() -> Self {
            let home = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
            let real = home.path().canonicalize().unwrap();
            for name in ["export", "state", "other", "plain"] {
                std::fs::create_dir(real.join(name)).unwrap();
            }
            for name in ["state", "other"] {
                std::fs::write(real.join(name).join("handle.key"), "").unwrap();
            }
            let export = Export {
                path: real.join("export"),
                name: "/".into(),
                aliases: Vec::new(),
                id: 1,
                clients: Vec::new(),
                tls: forebay_config::TlsPolicy::Optional,
                delegations: true,
                policy: forebay_config::Policy::default(),
            };
            let nbd = Nbd { sockets: vec!["/run/own".into()], ..Nbd::default() };
            let exports = RwLock::new(vec![export]);
            let (state_dir, places) = (real.join("state"), Mutex::default());
            let owner = DirectoryLocks::default();
            let rules = Rules { exports, state_dir, in_memory: false, nbd, places, owner };
            Rig { home, rules }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.home.path().canonicalize().unwrap().join(name)
        }

        fn check(&self, name: &str) -> Result<(), Refusal> {
            self.rules.check(&self.path(name), &[], None)
        }
    }

    #[test]
    fn d1_files_in_an_export_are_refused() {
        let rig = Rig::new();
        std::fs::write(rig.path("export/there"), "").unwrap();
        std::os::unix::fs::symlink(rig.path("export"), rig.path("plain/link")).unwrap();
        for name in ["export/new", "export/there", "plain/link/there", "plain/link/new"] {
            assert!(matches!(rig.check(name), Err(Refusal::Exported { .. })), "{name}");
        }
    }

    #[test]
    fn d2_the_state_of_another_server_is_refused() {
        let rig = Rig::new();
        std::fs::create_dir(rig.path("other/below")).unwrap();
        for name in ["other/new", "other/below/new"] {
            assert!(matches!(rig.check(name), Err(Refusal::OtherState { .. })), "{name}");
        }
        assert_eq!(rig.check("state/cache-a"), Ok(()));
    }

    #[test]
    fn d3_a_second_name_is_refused() {
        let rig = Rig::new();
        std::fs::write(rig.path("plain/a"), "").unwrap();
        std::fs::hard_link(rig.path("plain/a"), rig.path("plain/b")).unwrap();
        let (a, b) = (rig.path("plain/a"), rig.path("plain/b"));
        let refused = rig.rules.check(&b, std::slice::from_ref(&a), None);
        assert_eq!(refused, Err(Refusal::Same { path: b, other: a.clone() }));
        std::fs::write(rig.path("plain/c"), "").unwrap();
        assert_eq!(rig.rules.check(&rig.path("plain/c"), &[a], None), Ok(()));
    }

    #[test]
    fn d11_and_d12_an_export_of_another_server_is_accepted_once() {
        let rig = Rig::new();
        let own = PathBuf::from("nbd+unix:///x?socket=/run/own");
        assert_eq!(rig.rules.check(&own, &[], None), Err(Refusal::OwnExport(own)));
        let [one, other, again] = ["nbd://h/a", "nbd://h/b", "nbd://h:10809/%61"].map(PathBuf::from);
        assert_eq!(rig.rules.check(&one, std::slice::from_ref(&other), None), Ok(()));
        let refused = rig.rules.check(&again, &[other, one.clone()], None);
        assert_eq!(refused, Err(Refusal::Same { path: again, other: one }));
    }

    #[test]
    fn d4_and_d5_nothing_is_made_in_dev_and_no_file_is_taken_there() {
        let rig = Rig::new();
        for missing in ["/dev/nvme77n1p4", "/dev/no/such/device"] {
            let path = PathBuf::from(missing);
            assert_eq!(rig.rules.check(&path, &[], None), Err(Refusal::MissingDevice(path)));
        }
        let name = format!("/dev/forebay-test-{}", std::process::id());
        if std::fs::write(&name, "").is_err() {
            eprintln!("not run: needs root");
            return;
        }
        let refused = rig.rules.check(Path::new(&name), &[], None);
        std::fs::remove_file(&name).unwrap();
        assert_eq!(refused, Err(Refusal::FileInDev(name.into())));
        let accepted = Rules { in_memory: true, ..rig.rules };
        let missing = PathBuf::from("/dev/nvme77n1p4");
        assert_eq!(accepted.check(&missing, &[], None), Err(Refusal::MissingDevice(missing)));
    }

    #[test]
    fn d6_memory_is_refused_unless_it_is_accepted() {
        let rig = Rig::new();
        let Ok(memory) = tempfile::Builder::new().tempdir_in("/dev/shm") else {
            eprintln!("not run: needs /dev/shm");
            return;
        };
        let path = memory.path().join("cache");
        let refused = || Err(Refusal::InMemory(path.clone()));
        assert_eq!(rig.rules.check(&path, &[], None), refused());
        std::fs::write(&path, "").unwrap();
        assert_eq!(rig.rules.check(&path, &[], None), refused());
        let accepted = Rules { in_memory: true, ..rig.rules };
        assert_eq!(accepted.check(&path, &[], None), Ok(()));
    }

    #[test]
    fn d7_no_directory_is_made() {
        let rig = Rig::new();
        let refused = rig.check("ssd1/cache").unwrap_err().to_string();
        assert!(refused.contains("mount the SSD there") && refused.contains("ssd1; "), "{refused}");
        assert_eq!(rig.check("plain/cache"), Ok(()));
    }

    #[test]
    fn d8_no_file_is_made_in_an_empty_mount_point() {
        let rig = Rig::new();
        let before = Record { mount: rig.path("plain").display().to_string(), ..Record::default() };
        let refused = rig.rules.check(&rig.path("plain/cache"), &[], Some(&before));
        assert!(matches!(refused, Err(Refusal::NotMounted { .. })), "{refused:?}");
        let mount = whereabouts(&rig.path("plain")).unwrap().mount.unwrap();
        let before = Record { mount: mount.display().to_string(), ..Record::default() };
        assert_eq!(rig.rules.check(&rig.path("plain/cache"), &[], Some(&before)), Ok(()));
    }

    #[test]
    fn d9_and_d10_are_left_to_who_opens() {
        let rig = Rig::new();
        assert_eq!(rig.check("plain"), Ok(()));
        assert_eq!(rig.rules.check(Path::new("/dev/null"), &[], None), Ok(()));
    }
}
