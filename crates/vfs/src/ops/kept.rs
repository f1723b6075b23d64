//! Removal of names of files that clients have open: the contents stay until the last client has closed the file
//! (RFC 8881 section 18.25.4). docs/decisions/047-open-and-removed.md is the design.

use std::path::PathBuf;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::caches::access_cache::want;
use crate::cred::{Cred, Identity};
use crate::error::{Error, Result};
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::export::{Export, Target};
use crate::handle::Handle;
use crate::name::c_name;
use crate::open_files::OpenFiles;
use crate::ops::change::{Caller, Renaming};
use crate::sys::KernelHandle;
use crate::wait::Wait;

/// The removal of a name of a file. Ends when it is dropped.
pub(crate) struct Losing<'a> {
    open_files: Option<&'a dyn OpenFiles>,
    /// A handle of the file, and true if a client has it open.
    handle: Option<(Handle, bool)>,
}

impl Losing<'_> {
    pub(crate) fn is_open(&self) -> bool {
        self.handle.is_some_and(|(_, is_open)| is_open)
    }

    /// Tells that the file is kept.
    pub(crate) fn keep(&self) {
        if let (Some((handle, true)), Some(files)) = (&self.handle, self.open_files) {
            files.keep(handle.as_slice());
        }
    }
}

impl Drop for Losing<'_> {
    fn drop(&mut self) {
        if let (Some((handle, false)), Some(files)) = (&self.handle, self.open_files) {
            files.end_removal(handle.as_slice());
        }
    }
}

impl Vfs {
    /// Sets the source of knowledge about open files, before the first request. Without one, a file is gone with its
    /// last name.
    pub fn keep_open_files(&self, open_files: Arc<dyn OpenFiles>) {
        let _ = self.open_files.set(open_files);
    }

    /// Returns true if a file of this export outlives the removal of its name while a client has it open.
    pub fn keeps_removed(&self, export: &Export) -> bool {
        export.fs.may_keep && self.privileged && self.open_files.get().is_some()
    }

    /// Begins the removal of a name that leads to `file`.
    pub(crate) fn losing(&self, fs: &Arc<Filesystem>, file: Option<KernelHandle>) -> Losing<'_> {
        let open_files = self.open_files.get().map(|files| &**files);
        // Any handle names the file.
        let export = self.exports().iter().find(|export| Arc::ptr_eq(&export.fs, fs));
        let handle = export.zip(file).map(|(export, file)| self.seal(export, &file));
        let ask = |handle: Handle| (handle, open_files.is_some_and(|it| it.begin_removal(handle.as_slice())));
        Losing { open_files, handle: handle.map(ask) }
    }

    /// Returns false if the kernel is sure to refuse that a caller takes a name of `file` out of `dir`. A refused
    /// removal must leave the file alone, and its change time. The kernel decides all the same.
    pub(crate) fn may_unlink(&self, dir: &Target, file: &KernelHandle, cred: &Cred) -> bool {
        const STICKY: u32 = 0o1000;
        let Ok(attr) = dir.attr() else { return false };
        let all = self.privileged && cred.uid() == 0;
        let owns_file = || {
            let file = dir.export.fs.resolve(file, true).and_then(|file| file.attr());
            file.is_ok_and(|file| self.owns(cred, &file))
        };
        self.require(dir, cred, &attr, want::WRITE | want::EXECUTE, Wait::Yes).is_ok()
            && (attr.mode & STICKY == 0 || all || self.owns(cred, &attr) || owns_file())
    }

    /// Removes a file that lost its name while clients had it open. Its handle names it. No client has it open now.
    /// Returns before the removal is durable: if a crash takes the removal back, the next start repeats it.
    ///
    /// # Errors
    /// The file cannot be removed now, and is kept.
    pub fn remove_kept(&self, file: &[u8]) -> Result<()> {
        let Ok((id, kernel)) = self.key.open(file) else { return Ok(()) };
        let Some(device) = self.device_of(id) else { return Ok(()) };
        let served = self.exports().iter().find(|export| export.fs.device == device);
        let Some(export) = served.or_else(|| self.exports().find_removed(id)) else { return Ok(()) };
        if !export.fs.kept.has(&kernel) {
            return Ok(());
        }
        let dir = Target { export: export.clone(), object: export.fs.kept_dir()? };
        self.unlink_kept(&dir, &kernel.to_name(), kernel)
    }

    /// Removes the kept files of earlier runs that no client has open, and keeps the others. Call it at the start,
    /// once [`OpenFiles`] knows the clients' opens and before any request. Files that cannot be removed stay until the
    /// next start.
    ///
    /// # Errors
    /// The directory of kept files cannot be read. The path is that of the export.
    pub fn remove_unopened_kept(&self) -> std::result::Result<(), (PathBuf, Error)> {
        for fs in self.filesystems() {
            let mut exports = self.exports().iter();
            let Some(export) = exports.find(|export| Arc::ptr_eq(&export.fs, fs)) else { continue };
            let failed = |error| (export.path.clone(), error);
            let Some(object) = fs.kept_dir_if_there().map_err(failed)? else { continue };
            for (name, file) in fs.kept_names(&object).map_err(failed)? {
                fs.kept.insert(file);
                fs.seen_as(&file, &object, name.as_bytes());
                let dir = Target { export: export.clone(), object: object.clone() };
                let _ = self.unlink_kept(&dir, &name, file);
            }
        }
        Ok(())
    }

    /// Removes a name in the directory of kept files, unless a client has the file open.
    fn unlink_kept(&self, dir: &Target, name: &str, file: KernelHandle) -> Result<()> {
        let (fs, name) = (&dir.export.fs, name.as_bytes());
        let losing = self.losing(fs, Some(file));
        if losing.is_open() {
            losing.keep();
            return Ok(());
        }
        fs.can_change()?;
        let renaming = Renaming::begin(dir);
        if fs.handle_at(&dir.object, &c_name(name)) != Ok(file) {
            fs.kept.remove(&file);
            return Ok(());
        }
        let own = self.creds.intern(&Identity { uid: 0, gid: 0, groups: SmallVec::new() });
        let changed = self.unlink_file(renaming, name, Some(file), Caller { cred: &own, asked: None });
        if let Some(intent) = changed.intent {
            self.commit(&dir.export, intent, &[], Box::new(drop));
        }
        changed.result.inspect(|()| fs.kept.remove(&file))
    }
}
