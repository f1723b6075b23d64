//! The locks of changes that remove or move directories (docs/metadata-log.md, "What conflicts"). They are the locks of
//! the directories in which names change and of the removed directory. All threads take them in one order, so no
//! threads wait in a circle.

use std::sync::Arc;

use forebay_common::lock::{MutexGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use crate::caches::inode::Inode;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::filesystem::Filesystem;
use crate::name::c_name;
use crate::ops::keep::KeptDir;
use crate::sys::KernelHandle;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct DirEntry<'a> {
    pub(crate) dir: &'a Target,
    pub(crate) name: &'a [u8],
}

/// The place that a name leads to.
#[derive(Default)]
pub(crate) struct Place {
    pub(crate) handle: Option<KernelHandle>,
    /// The inode, if it is a directory.
    pub(crate) dir: Option<Arc<Inode>>,
}

impl Place {
    /// Finds the object that a name leads to before a rename takes its locks.
    pub(crate) fn look(dir: &Target, name: &[u8]) -> Result<Self> {
        let fs = &dir.export.fs;
        let handle = fs.handle_at(&dir.object, &c_name(name)).ok();
        let unknown = handle.as_ref().filter(|handle| !fs.is_known_file(handle));
        let found = match unknown.map(|handle| fs.resolve(handle, true)) {
            // A file, gone meanwhile, or of a file system mounted there, which cannot be changed from here.
            None | Some(Err(Error::Stale | Error::BadHandle)) => None,
            Some(found) => Some(found?),
        };
        Ok(Place { handle, dir: found.filter(|object| object.is_dir()) })
    }

    /// Returns true if locks taken for this place also cover `now`, the place as it is found under the locks.
    fn covers(&self, now: &Place) -> bool {
        now.dir.is_none() || (self.dir.is_some() && now.handle == self.handle)
    }
}

/// Directories locked for a change of their entries.
pub(crate) type Locks<'a> = SmallVec<[RwLockWriteGuard<'a, ()>; 4]>;

/// The locks of an RMDIR, and the inode that the name leads to.
type Removal<'a> = (Locks<'a>, Option<KernelHandle>);

/// Locks directories for a change of their entries.
pub(crate) fn lock<'a>(dirs: &[&'a Arc<Inode>]) -> Locks<'a> {
    let mut dirs = SmallVec::<[&'a Arc<Inode>; 4]>::from_slice(dirs);
    dirs.sort_unstable_by_key(|object| (object.kernel.kind, object.kernel.bytes, object.kernel.len));
    dirs.dedup_by_key(|object| object.kernel);
    dirs.into_iter().map(|object| object.changing.write()).collect()
}

/// Locks a directory for a change of its entries, and perhaps another one.
pub(crate) fn lock_two<'a>(dir: &'a Arc<Inode>, other: Option<&'a Arc<Inode>>) -> Locks<'a> {
    lock(&[dir].into_iter().chain(other).collect::<SmallVec<[_; 2]>>())
}

/// Locks a directory for RMDIR of `name`, and the directory that goes, and tells which that is. `None`: another one
/// than was `seen`.
pub(crate) fn lock_removal<'a>(dir: &'a Target, name: &[u8], seen: &'a Place) -> Result<Option<Removal<'a>>> {
    let dirs: SmallVec<[_; 2]> = [&dir.object].into_iter().chain(&seen.dir).collect();
    let locked = lock(&dirs);
    let now = Place::look(dir, name)?;
    Ok(seen.covers(&now).then_some((locked, now.handle)))
}

/// The inodes that a RENAME saw before it had locks. At first it has seen nothing: most renames are of files, which
/// need no more.
#[derive(Default)]
pub(crate) struct Seen {
    moved: Place,
    victim: Place,
    /// The directory for the replaced file, if a client has it open.
    pub(crate) kept_dir: KeptDir,
}

/// The locks of a RENAME and the inodes under them.
pub(crate) struct Moving<'a> {
    pub(crate) moved: Option<KernelHandle>,
    pub(crate) victim: Option<KernelHandle>,
    /// True if a directory moves, which replaces no file.
    pub(crate) moves_dir: bool,
    _dirs: Locks<'a>,
    _tree: Option<MutexGuard<'a, ()>>,
}

impl Moving<'_> {
    /// Returns the file that the RENAME replaces, if the kernel may let it.
    pub(crate) fn replaced(&self) -> Option<KernelHandle> {
        self.victim.filter(|_| self.moved.is_some() && self.moved != self.victim && !self.moves_dir)
    }
}

impl Seen {
    /// Begins again with the directory for the replaced file.
    pub(crate) fn keeping(kept_dir: KeptDir) -> Self {
        Seen { kept_dir, ..Seen::default() }
    }

    /// Reads which inodes the two names of a RENAME have now.
    fn look(from: DirEntry<'_>, to: DirEntry<'_>) -> Result<Self> {
        let (moved, victim) = (Place::look(from.dir, from.name)?, Place::look(to.dir, to.name)?);
        Ok(Seen { moved, victim, kept_dir: KeptDir::default() })
    }

    /// Takes the locks that the RENAME needs. If the RENAME needs other locks by now, returns the inodes that are there
    /// now.
    pub(crate) fn lock<'a>(
        &'a self,
        fs: &'a Filesystem,
        from: DirEntry<'a>,
        to: DirEntry<'a>,
    ) -> Result<std::result::Result<Moving<'a>, Seen>> {
        // Two directories that move to other places may each have been in the other's way: those have one order.
        let far = from.dir.object.kernel != to.dir.object.kernel;
        let tree = (far && self.moved.dir.is_some()).then(|| fs.moving.lock());
        let dirs: SmallVec<[_; 4]> = [&from.dir.object, &to.dir.object]
            .into_iter()
            .chain(&self.victim.dir)
            .chain(self.kept_dir.there())
            .collect();
        let locked = lock(&dirs);
        let now = Seen::look(from, to)?;
        let covered = self.victim.covers(&now.victim) && (!far || now.moved.dir.is_none() || tree.is_some());
        if !covered {
            return Ok(Err(Seen { kept_dir: self.kept_dir.clone(), ..now }));
        }
        let (moved, victim, moves_dir) = (now.moved.handle, now.victim.handle, now.moved.dir.is_some());
        Ok(Ok(Moving { moved, victim, moves_dir, _dirs: locked, _tree: tree }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;
    use crate::attr::SetAttr;
    use crate::caches::budget::Budget;
    use crate::cred::{Cred, Identity};
    use crate::durability::verifier::Verifier;
    use crate::export::ExportSpec;
    use crate::export::vfs::Vfs;
    use crate::handle::HandleKey;
    use crate::ops::make::Special;

    struct Scene {
        _home: tempfile::TempDir,
        vfs: Vfs,
        root: Target,
        cred: Cred,
    }

    impl Scene {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let (path, state) = (home.path().join("data"), home.path().join("state"));
            std::fs::create_dir(&path).unwrap();
            std::fs::create_dir(&state).unwrap();
            let spec = ExportSpec { id: 1, name: "/".into(), path, watch: None };
            let verifier = Arc::new(Verifier::open(&state).unwrap());
            let opened =
                Vfs::open(&[spec], HandleKey::new(&[7; 16]), verifier, Budget::new(1000, 1 << 20), |run| {
                    run()
                });
            let vfs = opened.map_err(|(_, error)| error).unwrap();
            let root = vfs.exports().iter().next().unwrap().root();
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let cred = vfs.creds.intern(&Identity { uid, gid, groups: Default::default() });
            Scene { _home: home, vfs, root, cred }
        }

        fn mkdir(&self, dir: &Target, name: &str) -> Result<Target> {
            let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
            let made = self.vfs.make(dir, name.as_bytes(), Special::Directory, &set, &self.cred, None);
            made.result.map(|(target, _)| target)
        }

        fn rename(&self, from: (&Target, &str), to: (&Target, &str)) -> Result<()> {
            let (from_name, to_name) = (from.1.as_bytes(), to.1.as_bytes());
            self.vfs.rename(from.0, from_name, to.0, to_name, &self.cred, None).result
        }

        fn rmdir(&self, dir: &Target, name: &str) -> Result<()> {
            self.vfs.rmdir(dir, name.as_bytes(), &self.cred, None).result
        }
    }

    /// Asserts that `act` does not finish before `held` is dropped.
    fn waits_for<G>(held: G, act: impl FnOnce() -> Result<()> + Send) {
        let (send, done) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || send.send(act()).unwrap());
            assert_eq!(done.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
            drop(held);
            assert_eq!(done.recv().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_directory_goes_after_the_changes_in_it() {
        let scene = Scene::new();
        let dir = scene.mkdir(&scene.root, "d").unwrap();
        waits_for(dir.object.changing.write(), || scene.rmdir(&scene.root, "d"));
        let replaced = scene.mkdir(&scene.root, "old").unwrap();
        scene.mkdir(&scene.root, "new").unwrap();
        waits_for(replaced.object.changing.write(), || {
            scene.rename((&scene.root, "new"), (&scene.root, "old"))
        });
        assert_eq!(replaced.object.attr(), Err(Error::Stale));
    }

    #[test]
    fn directories_move_to_other_parents_one_after_another() {
        let scene = Scene::new();
        let dir = scene.mkdir(&scene.root, "d").unwrap();
        scene.mkdir(&scene.root, "moved").unwrap();
        let fs = dir.export.fs.clone();
        waits_for(fs.moving.lock(), || scene.rename((&scene.root, "moved"), (&dir, "moved")));
        // Nothing else waits for that.
        let held = fs.moving.lock();
        scene.rename((&dir, "moved"), (&dir, "again")).unwrap();
        let how = crate::ops::create::Create::Guarded(SetAttr { mode: Some(0o644), ..SetAttr::default() });
        assert!(scene.vfs.create(&scene.root, b"f", how, &scene.cred, None).result.is_ok());
        scene.rename((&scene.root, "f"), (&dir, "f")).unwrap();
        drop(held);
    }

    #[test]
    fn a_directory_that_goes_may_be_one_that_names_change_in() {
        let scene = Scene::new();
        let dir = scene.mkdir(&scene.root, "d").unwrap();
        scene.mkdir(&dir, "inner").unwrap();
        let full = scene.rename((&dir, "inner"), (&scene.root, "d"));
        assert_eq!(full, Err(Error::Os(rustix::io::Errno::NOTEMPTY)));
        assert!(scene.rename((&scene.root, "d"), (&dir, "inner")).is_err(), "below itself");
        scene.rename((&dir, "inner"), (&dir, "inner")).unwrap();
        scene.rmdir(&dir, "inner").unwrap();
        scene.rmdir(&scene.root, "d").unwrap();
    }

    /// Whatever they lock, and whatever changes between the first look and the locks.
    #[test]
    fn removals_and_renames_never_wait_in_a_circle() {
        let scene = Scene::new();
        let (send, done) = channel();
        let parents: Vec<_> = (0..3).map(|n| scene.mkdir(&scene.root, &n.to_string()).unwrap()).collect();
        std::thread::scope(|scope| {
            for worker in 0..4usize {
                let (scene, parents, send) = (&scene, &parents, send.clone());
                scope.spawn(move || {
                    let mut seed = worker as u64 + 1;
                    let mut draw = |below: usize| {
                        seed = seed
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        (seed >> 33) as usize % below
                    };
                    for _ in 0..3000 {
                        let (one, other) = (&parents[draw(3)], &parents[draw(3)]);
                        let (name, to) = (["a", "b"][draw(2)], ["a", "b"][draw(2)]);
                        // Most of them fail.
                        let _ = match draw(3) {
                            0 => scene.mkdir(one, name).map(drop),
                            1 => scene.rmdir(one, name),
                            _ => scene.rename((one, name), (other, to)),
                        };
                    }
                    send.send(()).unwrap();
                });
            }
            for _ in 0..4 {
                if done.recv_timeout(Duration::from_secs(60)).is_err() {
                    // The threads that hang cannot be waited for.
                    eprintln!("they wait for each other");
                    std::process::abort();
                }
            }
        });
    }
}
