//! All exports of a server, and the way from a handle of a client to an inode.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use forebay_engine::Engine;

use crate::attr::Attr;
use crate::caches::access_cache::{AccessVerdict, ask_kernel};
use crate::caches::attr_cache::record::CachedAttr;
use crate::caches::budget::Budget;
use crate::caches::inode::Inode;
use crate::coherence::{sweep, watch};
use crate::cred::{Acting, Cred, Creds, privileged};
use crate::durability::journal::Deliver;
use crate::durability::verifier::Verifier;
use crate::error::{Error, Result};
use crate::export::cache::Cache;
use crate::export::filesystem::{Filesystem, Scheme};
use crate::export::inherited::has_no_acl;
use crate::export::table::Exports;
use crate::export::{Export, ExportSpec, Most, Space, Target};
use crate::handle::{Handle, HandleKey};
use crate::identity::export_identity::open_root;
use crate::open_files::OpenFiles;
use crate::question::Answer;
use crate::wait::Wait;

/// All exports of a server.
pub struct Vfs {
    exports: Exports,
    /// The file systems of all exports, in the order of their numbers. They stay open when their exports are removed.
    filesystems: Box<[Arc<Filesystem>]>,
    pub(crate) key: HandleKey,
    /// Known callers.
    pub creds: Creds,
    /// The write verifier in force.
    pub verifier: Arc<Verifier>,
    /// The limit of descriptors that inodes hold.
    pub budget: Budget,
    pub(crate) cache: OnceLock<Arc<Cache>>,
    pub(crate) open_files: OnceLock<Arc<dyn OpenFiles>>,
    /// Exports that the pool knows and that are not served, each with the device of its file system, which is served.
    pub(crate) unserved: OnceLock<Vec<(u32, u64)>>,
    /// True if the log at this start lacks changes of clients' state, because it was lost before.
    pub(crate) state_is_lost: AtomicBool,
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
        let filesystems = distinct(&exports);
        let server_uid = rustix::process::geteuid().as_raw();
        let privileged = privileged();
        Ok(Vfs {
            exports: Exports::new(exports),
            filesystems,
            key,
            creds: Creds::default(),
            verifier,
            budget,
            cache: OnceLock::new(),
            open_files: OnceLock::new(),
            unserved: OnceLock::new(),
            state_is_lost: AtomicBool::new(false),
            privileged,
            server_uid,
        })
    }

    /// Opens an export. It shares the file system of an earlier export on one device, if the kernel has handles there.
    fn open_one(
        spec: &ExportSpec,
        earlier: &[Arc<Export>],
        key: &HandleKey,
        verifier: &Arc<Verifier>,
        budget: &Budget,
        deliver: Deliver,
    ) -> Result<Export> {
        let root = open_root(&spec.path)?;
        let served = earlier.iter().map(|export| &export.fs);
        let fs = match filesystem_of(&root, served)? {
            Some(fs) => fs,
            None => {
                // The number of a file system is at most the number of exports.
                let number = u16::try_from(earlier.len());
                let watch = spec.watch.clone().filter(|_| number.is_ok());
                let number = number.unwrap_or_default();
                let opened =
                    Filesystem::open(&root, budget.clone(), verifier.clone(), deliver, number, watch)?;
                let fs = Arc::new(opened);
                start_threads(&fs).map_err(|_| Error::Busy)?;
                fs
            }
        };
        Export::open(spec, &root, fs, key)
    }

    /// Returns the exports in service, in the order given.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Returns the file systems of all exports.
    pub(crate) fn filesystems(&self) -> &[Arc<Filesystem>] {
        &self.filesystems
    }

    /// Calls `tell` with each file that a program of this host has changed, once the kernel reports the change. That is
    /// within 50 ms, and before an answer from memory about the file. `None` stands for any number of files. The caller
    /// of `tell` may be an event loop.
    pub fn tell_external_changes(
        self: &Arc<Self>,
        tell: &Arc<impl Fn(Option<&Handle>) + Send + Sync + 'static>,
    ) {
        for fs in &self.filesystems {
            let (key, tell, vfs, of) =
                (self.key.clone(), tell.clone(), Arc::downgrade(self), Arc::downgrade(fs));
            let _ = fs.listener.set(Box::new(move |kernel| {
                let (Some(kernel), Some(vfs)) = (kernel, vfs.upgrade()) else { return tell(None) };
                let is_same = |export: &&Arc<Export>| std::ptr::eq(Arc::as_ptr(&export.fs), of.as_ptr());
                // Any handle names the file.
                vfs.exports.iter().find(is_same).into_iter().for_each(|export| {
                    tell(Some(&key.seal(export.id, kernel)));
                });
            }));
        }
    }

    /// Returns the inode that a handle of a client names.
    pub fn target(&self, wire: &[u8], wait: Wait) -> Result<Target> {
        let (id, kernel) = self.key.open(wire)?;
        let export = self.exports.find(id).ok_or(Error::Stale)?;
        if !wait.allowed() && !export.fs.attributes_in_memory() {
            return Err(Error::WouldBlock);
        }
        let object = export.fs.resolve(&kernel, wait.allowed())?;
        export.fs.is_recorded(&object, wait.allowed())?;
        Ok(Target { export: export.clone(), object })
    }

    /// Returns the id of the export that a handle of this server names. The export may be out of service.
    pub fn export_of_handle(&self, wire: &[u8]) -> Option<u32> {
        self.key.open(wire).ok().map(|(export, _)| export)
    }

    /// Answers a request about an inode that is not open, if the attribute cache knows enough of it. Never waits.
    pub fn known<T>(&self, wire: &[u8], answer: impl FnOnce(&Export, &CachedAttr) -> Option<T>) -> Option<T> {
        let (id, kernel) = self.key.open(wire).ok()?;
        let export = self.exports.find(id)?;
        export.fs.known(&kernel, Wait::No, |known| answer(export, known))
    }

    /// Returns the handle of a target.
    pub fn handle(&self, target: &Target) -> Handle {
        self.handle_of(&target.export, &target.object)
    }

    pub(crate) fn handle_of(&self, export: &Export, object: &Inode) -> Handle {
        self.key.seal(export.id, &object.kernel)
    }

    /// Returns a number derived from a name and the secret of handles: equal after every restart.
    pub fn derive(&self, name: &[u8]) -> u64 {
        self.key.derive(name)
    }

    pub(crate) fn seal(&self, export: &Export, kernel: &crate::sys::KernelHandle) -> Handle {
        self.key.seal(export.id, kernel)
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
    pub fn spaces(&self) -> Vec<(&Export, Answer<Result<Space>>)> {
        self.exports.iter().for_each(|export| export.ask_for_space());
        let known = self.exports.iter().map(|export| {
            let Answer { answer, late } = export.space.known();
            (&**export, Answer { answer: answer.map(|space| Ok(self.without_dirty(space?))), late })
        });
        known.collect()
    }

    /// Returns the limits of the file system behind an export, without asking the file system.
    pub fn most(&self, export: &Export) -> Most {
        Most {
            name_max: export.fs.name_max,
            max_file_size: export.fs.largest_file,
            max_links: export.fs.max_links(),
            clone_block: export.fs.clone_block(),
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
            let granted = ask_kernel(object.path(), want)?;
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

    /// Gives the thread the user and the groups of a caller, as [`Acting::begin`] does.
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

    /// Makes everything written to the file system behind an export durable (syncfs(2)).
    pub fn flush(&self, export: &Export) -> Result<()> {
        Ok(rustix::fs::syncfs(export.fs.mount())?)
    }
}

/// Returns the file system that a directory is on, if it is one of `served` and has kernel handles. Exports of one file
/// system share inodes, so their locks and caches agree. Without kernel handles an inode is found from one root only.
pub(crate) fn filesystem_of<'a>(
    root: &OwnedFd,
    mut served: impl Iterator<Item = &'a Arc<Filesystem>>,
) -> Result<Option<Arc<Filesystem>>> {
    let device = rustix::fs::fstat(root)?.st_dev;
    let Some(fs) = served.find(|fs| fs.device == device && matches!(fs.scheme, Scheme::Kernel)) else {
        return Ok(None);
    };
    if crate::sys::name_to_handle(root, c"")? != fs.root {
        fs.aliases.gather(root)?;
    }
    Ok(Some(fs.clone()))
}

/// Returns the file systems of exports, each once.
fn distinct(exports: &[Arc<Export>]) -> Box<[Arc<Filesystem>]> {
    let mut filesystems: Vec<Arc<Filesystem>> = Vec::new();
    for export in exports {
        if !filesystems.iter().any(|known| Arc::ptr_eq(known, &export.fs)) {
            filesystems.push(export.fs.clone());
        }
    }
    filesystems.into()
}

/// Starts the threads that notice external changes of a file system.
fn start_threads(fs: &Arc<Filesystem>) -> std::io::Result<()> {
    if fs.watch.is_some() {
        watch::start(fs, Filesystem::catch_up)?;
    }
    // If asking for attributes costs more than a system call, nothing is swept.
    if fs.attributes_in_memory() { sweep::start(&fs.inodes) } else { Ok(()) }
}
