//! Exports that come and go in service (docs/decisions/073-exports-in-service.md).

use std::sync::Arc;

use crate::error::Result;
use crate::export::vfs::{Vfs, filesystem_of};
use crate::export::{Export, ExportSpec};
use crate::identity::export_identity::open_root;

impl Vfs {
    /// Opens a directory as an export that is not in service yet. Returns `None` if only a start can open it: its file
    /// system is not served or has no kernel handles, or 1,024 exports were added since the start.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn open_export(&self, spec: &ExportSpec) -> Result<Option<Arc<Export>>> {
        if self.exports().is_full() {
            return Ok(None);
        }
        let root = open_root(&spec.path)?;
        let Some(fs) = filesystem_of(&root, self.filesystems().iter())? else { return Ok(None) };
        Ok(Some(Arc::new(Export::open(spec, &root, fs, &self.key)?)))
    }

    /// Takes an export into service.
    pub fn add_export(&self, export: Arc<Export>) {
        self.exports().add(export);
    }

    /// Takes the export with this id out of service: its handles are stale from now on. Requests that have found it
    /// already go on. Its file system stays open, so that dirty data gets there.
    pub fn remove_export(&self, id: u32) {
        self.exports().remove(id);
    }
}
