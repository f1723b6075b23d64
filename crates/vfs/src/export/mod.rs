//! Exports, and the way from a handle of a client to an inode.

pub(crate) mod filesystem;
pub(crate) mod handle;
pub(crate) mod handle_map;
pub(crate) mod inherited;
pub(crate) mod locate;
pub(crate) mod owner;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_engine::{Engine, UserRecord};

use self::filesystem::{Filesystem, Scheme};
use crate::attr::Attr;
use crate::backing::Store;
use crate::backing::cache::{Cache, Linked};
use crate::backing::question::{Answer, Question};
use crate::caches::access_cache::{AccessVerdict, ask_kernel, has_no_acl};
use crate::caches::attr_cache::CachedAttr;
use crate::caches::inode::Inode;
use crate::caches::inode_cache::Budget;
use crate::coherence::downtime::{Downtime, Owned};
use crate::coherence::watch::HostWatch;
use crate::cred::{Acting, Cred, Creds, privileged};
use crate::durability::journal::{Deliver, Journal, Order};
use crate::durability::request_journal::RequestJournal;
use crate::durability::verifier::Verifier;
use crate::error::{Error, Result};
use crate::export::handle::{Handle, HandleKey};
use crate::identity::{self, ExportIdentity, Stamp};
use crate::oplog::{self, Checkpointed, Recovery};
use crate::state::Before;

/// The permission of an operation to wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Fail with [`Error::WouldBlock`] instead.
    No,
    /// Take as long as it takes.
    Yes,
}

impl Wait {
    pub(crate) fn allowed(self) -> bool {
        self == Wait::Yes
    }
}

/// A directory to export.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// Its number within handles: unique, and unchanged by a restart.
    pub id: u32,
    /// The path clients mount, such as "/" or "/data".
    pub name: String,
    /// The directory served.
    pub path: PathBuf,
    /// The source of news about external changes in its file system, if it has one.
    pub watch: Option<Arc<HostWatch>>,
}

/// A directory in service.
pub struct Export {
    /// Its number within handles.
    pub id: u32,
    /// The path clients mount.
    pub name: String,
    /// The directory served.
    pub path: PathBuf,
    /// RFC 1813 fattr3 fsid.
    pub fsid: u64,
    /// The identity of the directory and its file system.
    pub identity: ExportIdentity,
    pub(crate) root: Arc<Inode>,
    pub(crate) fs: Arc<Filesystem>,
    /// The answer of statvfs(2) for the directory.
    space: Arc<Question<Result<Space>>>,
}

impl Export {
    /// Asks the file system for its free space. Waits for nothing.
    fn ask_for_space(&self) {
        let root = self.root.clone();
        self.space.begin(Duration::ZERO, move || Space::of(root.path()));
    }

    /// Returns the type of the backing file system, for people.
    pub fn fs_type(&self) -> &'static str {
        filesystem::type_name(self.fs.magic)
    }

    /// Returns the group commit of the backing file system.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.fs.journal
    }

    /// Returns true if handles work through the kernel (exact), false if they work through names (see the crate's
    /// `locate`).
    pub fn kernel_handles(&self) -> bool {
        matches!(self.fs.scheme, Scheme::Kernel)
    }

    /// Returns the exported directory as a target.
    pub fn root(self: &Arc<Self>) -> Target {
        Target { export: self.clone(), object: self.root.clone() }
    }

    /// Fails if nothing in the file system can be changed, because its journal cannot make anything durable. `Busy`
    /// says that this is temporary.
    pub fn can_change(&self) -> Result<()> {
        self.fs.can_change()
    }

    /// Returns the count of starts that its directory has.
    pub fn stamp(&self) -> Result<Option<Stamp>> {
        identity::read_stamp(self.root.path())
    }

    /// Writes the count of starts durably. Returns false if the directory cannot have one.
    pub fn set_stamp(&self, stamp: Stamp) -> Result<bool> {
        identity::write_stamp(self.root.path(), stamp)
    }

    /// Returns true if one journal orders all changes of the backing file system and the server relies on that order.
    pub fn ordered(&self) -> bool {
        self.fs.journal.order() == Order::Journal
    }
}

/// An inode reached through an export.
#[derive(Clone)]
pub struct Target {
    /// The export, whose rules apply.
    pub export: Arc<Export>,
    /// The inode.
    pub object: Arc<Inode>,
}

impl Target {
    /// Returns the attributes. If an external change removed the last link, the inode is forgotten, so that its space
    /// is freed.
    pub(crate) fn attr(&self) -> Result<Attr> {
        self.object.attr().inspect_err(|error| {
            if *error == Error::Stale {
                self.export.fs.inodes.forget(&self.object);
            }
        })
    }
}

/// Files that a stop syncs together.
const TOGETHER: usize = 1024;

/// The result of a stop.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// Files whose unstable data could not be made durable.
    pub unstable: usize,
    /// Bytes that only the cache devices have, or why the cache could not be stopped well.
    pub dirty: std::result::Result<u64, forebay_engine::Error>,
}

/// Free space as FSSTAT reports it (RFC 1813 section 3.3.18).
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes in all, free, and free to ordinary users.
    pub bytes: (u64, u64, u64),
    /// Files in all, free, and free to ordinary users.
    pub files: (u64, u64, u64),
}

impl Space {
    fn of(fd: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstatvfs(fd)?;
        let block = stat.f_frsize;
        Ok(Space {
            bytes: (stat.f_blocks * block, stat.f_bfree * block, stat.f_bavail * block),
            files: (stat.f_files, stat.f_ffree, stat.f_favail),
        })
    }
}

/// The limits of a file system, as FSINFO and PATHCONF report them (RFC 1813 sections 3.3.19 and 3.3.20).
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// The longest name, in bytes.
    pub name_max: u32,
    /// The largest possible file, in bytes.
    pub max_file_size: u64,
    /// The most hard links a file may have.
    pub max_links: u32,
}

/// All exports of a server.
pub struct Vfs {
    exports: Vec<Arc<Export>>,
    pub(crate) key: HandleKey,
    /// Known callers.
    pub creds: Creds,
    /// The write verifier in force.
    pub verifier: Arc<Verifier>,
    /// The limit of descriptors that inodes hold.
    pub budget: Budget,
    pub(crate) cache: OnceLock<Arc<Cache>>,
    pub(crate) privileged: bool,
    pub(crate) server_uid: u32,
}

impl Vfs {
    /// Opens every export. Fails on the first that cannot be served, and returns its place in `specs`. `deliver` runs
    /// the completions of each group commit.
    pub fn open(
        specs: &[ExportSpec],
        key: HandleKey,
        verifier: Arc<Verifier>,
        budget: Budget,
        deliver: Deliver,
    ) -> std::result::Result<Self, (usize, Error)> {
        Self::open_telling(specs, key, verifier, budget, deliver, |_| ())
    }

    /// Opens every export, like [`Vfs::open`]. Calls `begin` with each export before it asks the file system, which may
    /// not answer.
    pub fn open_telling(
        specs: &[ExportSpec],
        key: HandleKey,
        verifier: Arc<Verifier>,
        budget: Budget,
        deliver: Deliver,
        begin: impl Fn(&ExportSpec),
    ) -> std::result::Result<Self, (usize, Error)> {
        // The client has applied its own umask already.
        rustix::process::umask(rustix::fs::Mode::empty());
        let mut exports: Vec<Arc<Export>> = Vec::new();
        for (place, spec) in specs.iter().enumerate() {
            begin(spec);
            let export = Self::open_one(spec, &exports, &key, &verifier, &budget, deliver)
                .map_err(|error| (place, error))?;
            exports.push(Arc::new(export));
        }
        let server_uid = rustix::process::geteuid().as_raw();
        let privileged = privileged();
        let (creds, cache) = (Creds::default(), OnceLock::new());
        Ok(Vfs { exports, key, creds, verifier, budget, cache, privileged, server_uid })
    }

    fn open_one(
        spec: &ExportSpec,
        earlier: &[Arc<Export>],
        key: &HandleKey,
        verifier: &Arc<Verifier>,
        budget: &Budget,
        deliver: Deliver,
    ) -> Result<Export> {
        let root = filesystem::open_root(&spec.path)?;
        let identity = ExportIdentity::of(&root)?;
        let device = rustix::fs::fstat(&root)?.st_dev;
        let fs = match earlier.iter().find(|export| export.fs.device == device) {
            // Exports of one file system share inodes, so their locks and caches agree. Without kernel handles an inode
            // is found from one root only.
            Some(export) if export.kernel_handles() => {
                if crate::sys::name_to_handle(&root, c"")? != export.fs.root {
                    export.fs.aliases.gather(&root)?;
                }
                export.fs.clone()
            }
            _ => {
                // The number of a file system is at most the number of exports.
                let number = u16::try_from(earlier.len());
                let watch = spec.watch.clone().filter(|_| number.is_ok());
                let number = number.unwrap_or_default();
                let opened =
                    Filesystem::open(&root, budget.clone(), verifier.clone(), deliver, number, watch)?;
                let fs = Arc::new(opened);
                crate::coherence::watch::start(&fs).map_err(|_| Error::Busy)?;
                crate::coherence::sweep::start(&fs).map_err(|_| Error::Busy)?;
                fs
            }
        };
        let path = rustix::fs::openat(
            &root,
            c".",
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let (root, _) = fs.adopt(path)?;
        Ok(Export {
            id: spec.id,
            fsid: key.derive(&spec.id.to_le_bytes()),
            name: spec.name.clone(),
            path: spec.path.clone(),
            identity,
            root,
            fs,
            space: Arc::default(),
        })
    }

    /// Returns the exports, in the order given.
    pub fn exports(&self) -> &[Arc<Export>] {
        &self.exports
    }

    /// Returns the inode that a handle of a client names.
    pub fn target(&self, wire: &[u8], wait: Wait) -> Result<Target> {
        let (id, kernel) = self.key.open(wire)?;
        let export = self.exports.iter().find(|export| export.id == id).ok_or(Error::Stale)?;
        if !wait.allowed() && !export.fs.attributes_in_memory() {
            return Err(Error::WouldBlock);
        }
        let object = export.fs.resolve(&kernel, wait.allowed())?;
        export.fs.is_recorded(&object, wait.allowed())?;
        Ok(Target { export: export.clone(), object })
    }

    /// Answers a request about an inode that is not open, if the attribute cache knows enough of it. Never waits.
    pub fn known<T>(&self, wire: &[u8], answer: impl FnOnce(&Export, &CachedAttr) -> Option<T>) -> Option<T> {
        let (id, kernel) = self.key.open(wire).ok()?;
        let export = self.exports.iter().find(|export| export.id == id)?;
        export.fs.known(&kernel, Wait::No, |known| answer(export, known))
    }

    /// Returns the handle of a target.
    pub fn handle(&self, target: &Target) -> Handle {
        self.handle_of(&target.export, &target.object)
    }

    pub(crate) fn handle_of(&self, export: &Export, object: &Inode) -> Handle {
        self.key.seal(export.id, &object.kernel)
    }

    pub(crate) fn derive(&self, name: &[u8]) -> u64 {
        self.key.derive(name)
    }

    pub(crate) fn seal(&self, export: &Export, kernel: &crate::sys::KernelHandle) -> Handle {
        self.key.seal(export.id, kernel)
    }

    /// Returns the served file systems, each with the ids of its exports.
    fn groups(&self) -> Vec<(Arc<Filesystem>, Vec<u32>)> {
        let mut groups: Vec<(Arc<Filesystem>, Vec<u32>)> = Vec::new();
        for export in &self.exports {
            match groups.iter_mut().find(|(fs, _)| Arc::ptr_eq(fs, &export.fs)) {
                Some((_, ids)) => ids.push(export.id),
                None => groups.push((export.fs.clone(), vec![export.id])),
            }
        }
        groups
    }

    /// Returns every served file system, for the cache engine. Their numbers in the engine's keys are kept in
    /// `state_dir`. `recorded` holds the numbers that the pool has for exports, by export id. The exports in `adopted`
    /// are other directories than before: the engine's data for the old ones is set aside.
    pub fn store(
        &self,
        state_dir: &Path,
        recorded: &[(u32, u32)],
        adopted: &[u32],
    ) -> std::io::Result<Store> {
        let (filesystems, ids): (Vec<_>, Vec<_>) = self.groups().into_iter().unzip();
        let (numbers, given_up) =
            crate::state::filesystem_numbers(state_dir, &ids, &Before { recorded, adopted })?;
        let names = filesystems.iter().map(|fs| self.directories_of(fs)).collect();
        let filesystems = numbers.into_iter().zip(filesystems).collect();
        Ok(Store::new(filesystems, names, self.budget.clone(), state_dir, given_up))
    }

    /// Returns the number that an export's file system has in the keys of the cache.
    pub fn number_of(&self, store: &Store, export: &Export) -> u32 {
        let found = store.filesystems().iter().find(|(_, fs)| Arc::ptr_eq(fs, &export.fs));
        found.map_or(0, |(number, _)| *number)
    }

    /// Returns the exported directories of a file system.
    fn directories_of(&self, fs: &Arc<Filesystem>) -> String {
        let exports = self.exports.iter().filter(|export| Arc::ptr_eq(&export.fs, fs));
        exports.map(|export| export.path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Records that a server with this `pool` now owns all file systems of `store`. The pool may hold copies of their
    /// data unless it is `fresh`. `state_dir` holds the time of the last ownership, from which the downtime follows.
    pub fn own(&self, store: &Store, state_dir: &Path, pool: u128, fresh: bool) -> std::io::Result<Downtime> {
        let numbers = store.filesystems().iter().map(|(number, _)| *number);
        let owned =
            numbers.zip(self.groups()).map(|(filesystem, (_, exports))| Owned { filesystem, exports });
        Downtime::end(state_dir, pool, fresh, &owned.collect::<Vec<_>>())
    }

    /// Makes everything served, which is the engine's backing `store`, equal to the user records `notes` that the
    /// engine found in its log. `log` tells the logs of different pools apart. `state_dir` names the changes that were
    /// in progress when a server was killed. No thread may have read the file systems yet, not even the engine.
    pub fn recover(
        &self,
        store: &Store,
        state_dir: &Path,
        log: u64,
        notes: &[UserRecord],
    ) -> std::io::Result<Recovery> {
        let recovery = oplog::recover(RequestJournal::open(state_dir, log)?, log, notes, store)?;
        store.logged(recovery.logged());
        Ok(recovery)
    }

    /// Puts the engine in front of everything served, which is its backing `store`, after [`Vfs::recover`]. Returns the
    /// answers to the last changes before the start, as [`Vfs::commit`] was given them, oldest first. No client may be
    /// served yet. Calls `tell` when the log's operations cannot be made durable in a file system, and when they can
    /// again.
    pub fn set_cache(
        &self,
        engine: Arc<Engine>,
        store: &Store,
        downtime: Downtime,
        recovery: Recovery,
        tell: Arc<dyn Fn(Checkpointed) + Send + Sync>,
    ) -> std::io::Result<Vec<Box<[u8]>>> {
        let weak = store.filesystems().iter().map(|(number, fs)| (*number, Arc::downgrade(fs)));
        let under_way = recovery.under_way.clone();
        let cache = Cache::new(engine, self.verifier.clone(), downtime, under_way, weak.collect(), tell)?;
        for (number, fs) in store.filesystems() {
            let linked = fs.linked.get_or_init(|| Linked::new(cache.clone(), *number));
            // Inodes that recovery opened are in the inode cache already.
            for object in fs.inodes.all() {
                if let Ok(attr) = object.raw_attr() {
                    linked.meet(&object, &attr);
                }
            }
        }
        // The checkpoints start first, because settling appends to the log, which may be full of user records.
        cache.checkpoints.start()?;
        let answers = oplog::settle(&cache, recovery, store.filesystems())?;
        // Attributes read before now may lack operations of the log, and the cache was not asked for them.
        for (_, fs) in store.filesystems() {
            fs.anything_changed();
        }
        let _ = self.cache.set(cache);
        Ok(answers)
    }

    /// Returns the engine, if there is a cache.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        self.cache.get().map(|cache| &cache.engine)
    }

    /// Notes that the cache's log broke: data that it accepted and did not make durable may be lost.
    pub fn log_broke(&self) {
        if let Some(cache) = self.cache.get() {
            cache.log_broke();
        }
    }

    /// Returns the free space of the file system behind an export, without the space promised to dirty blocks. Waits at
    /// most a quarter of a second for the file system, then returns its last answer.
    ///
    /// # Errors
    /// `Busy`: the file system has not answered yet.
    pub fn space(&self, export: &Export) -> Result<Space> {
        export.ask_for_space();
        Ok(self.without_dirty(export.space.known().answer.ok_or(Error::Busy)??))
    }

    /// Returns the free space behind every export, as [`Vfs::space`] counts it, with the age of each answer. Waits at
    /// most a quarter of a second for all of them together.
    pub fn spaces(&self) -> Vec<Answer<Result<Space>>> {
        self.exports.iter().for_each(|export| export.ask_for_space());
        let known = |export: &Arc<Export>| {
            let Answer { answer, late } = export.space.known();
            Answer { answer: answer.map(|space| Ok(self.without_dirty(space?))), late }
        };
        self.exports.iter().map(known).collect()
    }

    /// Returns the limits of the file system behind an export, without asking the file system.
    pub fn most(&self, export: &Export) -> Most {
        Most {
            name_max: export.fs.name_max,
            max_file_size: export.fs.largest_file,
            max_links: export.fs.max_links(),
        }
    }

    /// Subtracts the space that dirty blocks need from the free space of the file system.
    fn without_dirty(&self, space: Space) -> Space {
        let dirty = self.cache.get().map_or(0, |cache| cache.engine.dirty_bytes());
        let (all, free, usable) = space.bytes;
        Space { bytes: (all, free.saturating_sub(dirty), usable.saturating_sub(dirty)), ..space }
    }

    /// Returns those accesses of `want` that the caller has on the target, whose attributes were just read.
    pub(crate) fn granted(
        &self,
        target: &Target,
        cred: &Cred,
        attr: &Attr,
        want: u8,
        wait: Wait,
    ) -> Result<u8> {
        let object = &target.object;
        object.permits(cred, attr, want, wait.allowed(), |want| {
            let acting = self.act_as(cred)?;
            let granted = ask_kernel(object, want)?;
            drop(acting);
            Ok(AccessVerdict { granted, by_class: target.export.fs.has_posix_acls() && has_no_acl(object) })
        })
    }

    /// Fails unless the caller has all of `want`.
    pub(crate) fn require(
        &self,
        target: &Target,
        cred: &Cred,
        attr: &Attr,
        want: u8,
        wait: Wait,
    ) -> Result<()> {
        if self.granted(target, cred, attr, want, wait)? == want { Ok(()) } else { Err(Error::ACCESS) }
    }

    /// Makes the thread act as the caller while the result lives.
    pub(crate) fn act_as(&self, cred: &Cred) -> Result<Option<Acting>> {
        Acting::begin(cred, self.privileged)
    }

    /// Returns true if the inode belongs to the user as whom the server acts for this caller.
    pub(crate) fn owns(&self, cred: &Cred, attr: &Attr) -> bool {
        let acting = if self.privileged { cred.uid() } else { self.server_uid };
        acting == attr.uid
    }

    /// Returns true if the server may act as its callers and open files by handle.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// Makes all unstable data durable, stops the cache, and records a clean stop if nothing failed.
    pub fn stop(&self) -> std::io::Result<Stopped> {
        let unstable = self.sync_unstable();
        let dirty = self.cache.get().map_or(Ok(0), |cache| cache.close());
        if unstable == 0 && dirty.is_ok() {
            self.verifier.stopped_clean()?;
        }
        for export in &self.exports {
            export.fs.journal.close();
        }
        Ok(Stopped { unstable, dirty })
    }

    /// Makes everything written to the file system behind an export durable (syncfs(2)).
    pub fn flush(&self, export: &Export) -> Result<()> {
        Ok(rustix::fs::syncfs(export.fs.mount())?)
    }

    /// Makes the data durable that a crashed server left in the page cache. Clients are about to see it, and reads
    /// never go back in time. Takes as long as the disks need, and calls `begin` with each export first. Returns the
    /// exports for which it failed.
    pub fn settle_after_crash(&self, begin: impl Fn(&Export)) -> Vec<(&Export, Error)> {
        let settle = |export: &Export| {
            begin(export);
            self.flush(export).err()
        };
        let exports = self.exports.iter().filter(|_| self.verifier.follows_a_crash());
        exports.filter_map(|export| Some((&**export, settle(export)?))).collect()
    }

    /// Makes all data that was acknowledged as unstable durable. Returns the number of files for which it failed.
    pub fn sync_unstable(&self) -> usize {
        let mut failed = 0;
        for export in &self.exports {
            let objects = export.fs.inodes.all().into_iter();
            let unstable: Vec<_> = objects.map(|object| (object.uncommitted.writes(), object)).collect();
            let unstable: Vec<_> = unstable.into_iter().filter(|(seen, _)| *seen > 0).collect();
            for together in unstable.chunks(TOGETHER) {
                let files: Vec<_> = together
                    .iter()
                    .map(|(_, object)| (object.clone(), object.uncommitted.errors()))
                    .collect();
                for ((seen, object), synced) in together.iter().zip(export.fs.journal.sync_files(&files)) {
                    match synced {
                        Ok(()) => object.uncommitted.committed(*seen),
                        Err(_) => failed += 1,
                    }
                }
            }
        }
        failed
    }
}
