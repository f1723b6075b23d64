//! The layer above as the source of knowledge about open files.

/// The files that clients have open, which only a layer above knows. Files are named by their handles.
pub trait OpenFiles: Send + Sync {
    /// Begins the removal of a name of a file. Returns true if a client has the file open. Otherwise no client can open
    /// it until [`OpenFiles::end_removal`].
    fn begin_removal(&self, file: &[u8]) -> bool;

    /// Ends the removal of a name of a file that no client had open.
    fn end_removal(&self, file: &[u8]);

    /// Notes that a file has no name that clients see, and is kept. When no client has it open any more, the layer
    /// calls [`Vfs::remove_kept`](crate::Vfs::remove_kept).
    fn keep(&self, file: &[u8]);
}
