//! Warming: the files below a path, or files that clients have used, are brought into the cache before clients ask.

use std::path::Path;
use std::sync::Arc;

use forebay_engine::buffer::BLOCK;
use forebay_engine::{Keep, Warmed};
use forebay_runtime::block_on;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::error::{Error, Result, from_cache};
use crate::export::external_change::refresh;
use crate::export::vfs::Vfs;
use crate::export::{Export, Target};
use crate::service::inspect::{InspectError, WalkProgress, open};
use crate::wait::Wait;

/// Bytes that are brought at once.
const CHUNK: u64 = 1 << 20;

/// How far warming has come. Sizes are in bytes, files counted by their sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warming {
    /// Files that were looked at.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that were brought to the cache devices.
    pub brought: u64,
    /// Bytes that the cache devices had.
    pub had: u64,
    /// Bytes for which there was no unused space, or that are never kept.
    pub left: u64,
    /// Files that could not be read.
    pub failed: u64,
}

/// A function that learns the progress, and returns false to end the warming.
pub type WarmingStep<'a> = &'a mut dyn FnMut(Warming) -> bool;

impl Vfs {
    /// Returns the number and the bytes of the files at and below `path`, which is absolute, without symbolic links.
    ///
    /// # Errors
    /// The path is not served, or a directory cannot be read.
    pub fn measure(
        &self,
        path: &Path,
        progress: &WalkProgress,
    ) -> std::result::Result<Warming, InspectError> {
        let mut found = Warming::default();
        self.each_below(path, progress, &mut |_, attr| {
            found.files += 1;
            found.bytes += attr.size;
            true
        })?;
        Ok(found)
    }

    /// Brings the files at and below `path` to the cache devices, as far as there is unused space.
    ///
    /// # Errors
    /// The path is not served, or a directory cannot be read.
    pub fn warm(
        &self,
        path: &Path,
        progress: &WalkProgress,
        step: WarmingStep<'_>,
    ) -> std::result::Result<Warming, InspectError> {
        let mut warming = Warming::default();
        self.each_below(path, progress, &mut |target, attr| warming.file(target, attr, step))?;
        Ok(warming)
    }

    /// Brings the files with these handles to the cache devices, in this order, as far as there is unused space. A
    /// handle that leads to no file is passed over.
    pub fn warm_handles(
        &self,
        handles: &[Vec<u8>],
        progress: &WalkProgress,
        step: WarmingStep<'_>,
    ) -> Warming {
        let mut warming = Warming::default();
        for handle in handles.iter().take_while(|_| progress.step()) {
            let Ok(target) = self.target(handle, Wait::Yes) else { continue };
            let Ok(attr) = target.attr() else { continue };
            if attr.kind == FileType::RegularFile && !warming.file(&target, &attr, step) {
                break;
            }
        }
        warming
    }

    /// Calls `each` with the files at and below `path`, until it returns false.
    fn each_below(
        &self,
        path: &Path,
        progress: &WalkProgress,
        each: &mut dyn FnMut(&Target, &Attr) -> bool,
    ) -> std::result::Result<(), InspectError> {
        let shown = || path.display().to_string();
        let (export, rest) = self.export_of(path).ok_or_else(|| InspectError::NotServed(shown()))?;
        if export.fs.linked().is_none() {
            return Err(InspectError::NoCache);
        }
        let mut begin = || {
            let (object, attr) = export.fs.adopt(open(export.root.path(), &rest)?)?;
            visit(export, object, &attr, progress, each).map(drop)
        };
        begin().map_err(|error| InspectError::System(shown(), error))
    }
}

/// Calls `each` with the files at and below an inode. Returns false if `each` did, or the walk is to end.
fn visit(
    export: &Arc<Export>,
    object: Arc<Inode>,
    attr: &Attr,
    progress: &WalkProgress,
    each: &mut dyn FnMut(&Target, &Attr) -> bool,
) -> Result<bool> {
    if !progress.step() {
        return Ok(false);
    }
    match attr.kind {
        FileType::RegularFile => return Ok(each(&Target { export: export.clone(), object }, attr)),
        FileType::Directory => {}
        _ => return Ok(true),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = rustix::fs::Dir::new(rustix::fs::openat(object.path(), c".", flags, Mode::empty())?)?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." || export.fs.is_private(&object.kernel, name.to_bytes()) {
            continue;
        }
        let visited = export
            .fs
            .child(&object, name.to_bytes(), false)
            .and_then(|(child, attr)| visit(export, child, &attr, progress, each));
        match visited {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // Removed meanwhile, or another file system is mounted there.
            Err(Error::Os(Errno::NOENT | Errno::XDEV | Errno::ACCESS) | Error::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

impl Warming {
    /// Brings a file to the cache devices. Returns false if the warming is to end.
    fn file(&mut self, target: &Target, attr: &Attr, step: WarmingStep<'_>) -> bool {
        let before = self.bytes;
        let goes_on = match self.chunks(target, attr, step) {
            Ok(goes_on) => goes_on,
            Err(_) => {
                self.failed += 1;
                true
            }
        };
        if goes_on {
            (self.files, self.bytes) = (self.files + 1, before + attr.size);
        }
        goes_on && step(*self)
    }

    /// Brings a file to the cache devices in chunks, and counts its bytes. Returns false if the warming is to end.
    fn chunks(&mut self, target: &Target, attr: &Attr, step: WarmingStep<'_>) -> Result<bool> {
        let fs = &target.export.fs;
        let Some(linked) = fs.linked() else { return Ok(true) };
        let policy = target.export.policy(&target.object, Wait::Yes).unwrap_or_default();
        if policy.keep == Keep::Never {
            self.left += attr.size;
            return Ok(true);
        }
        let cached = linked.object(&target.object)?;
        if target.object.link.is_suspect() {
            refresh(linked, &target.object, cached)?;
        }
        for offset in (0..attr.size).step_by(CHUNK as usize) {
            let end = (offset + CHUNK).min(attr.size);
            let Warmed { brought, had, left } =
                block_on(linked.cache.engine.warm(cached, offset..end)).map_err(from_cache)?;
            let bytes = |blocks: u64| blocks * BLOCK as u64;
            self.brought += bytes(brought);
            self.had += bytes(had);
            self.left += bytes(left);
            self.bytes += end - offset;
            if !step(*self) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
