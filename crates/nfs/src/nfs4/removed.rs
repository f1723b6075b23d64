//! Files that lose their last name while clients have them open: the link between the file system, which keeps them,
//! and the state of clients, which knows until when.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use forebay_clientstate::{Effects, FileKey};
use forebay_common::lock::Mutex;
use forebay_vfs::OpenFiles;

use super::server::Server;
use crate::shared::Shared;

/// The way to the thread that removes kept files, and that thread. A removal waits for disks and for the log, and a
/// thread that answers clients must not wait.
#[derive(Default)]
pub(crate) struct Remover(Mutex<Option<(Sender<FileKey>, JoinHandle<()>)>>);

impl Remover {
    /// Starts the thread, and lets the file system ask for open files.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> std::io::Result<()> {
        shared.vfs.keep_open_files(Arc::new(Opens(Arc::downgrade(shared))));
        let (send, receive) = channel::<FileKey>();
        let weak = Arc::downgrade(shared);
        let thread = std::thread::Builder::new().name("forebay-removed".into()).spawn(move || {
            for file in receive {
                let Some(shared) = weak.upgrade() else { break };
                shared.remove_kept(&file);
            }
        })?;
        *self.0.lock() = Some((send, thread));
        Ok(())
    }

    /// Removes a kept file that no client has open any more. Does not wait. After [`Remover::stop`] the file stays
    /// until the next start.
    pub(super) fn remove(&self, file: FileKey) {
        if let Some((send, _)) = &*self.0.lock() {
            // The receiver ends only after this sender.
            let _ = send.send(file);
        }
    }

    /// Ends the thread once it has removed all files that it was told of.
    pub(crate) fn stop(&self) {
        let running = self.0.lock().take();
        if let Some((send, thread)) = running {
            drop(send);
            // A panic there has said so itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Removes a file without a name that no client has open any more. Waits for the disk and the log. If that fails,
    /// a later turn tries again.
    fn remove_kept(&self, file: &FileKey) {
        let removed = self.vfs.remove_kept(file.handle());
        let Some(server) = &self.nfs4 else { return };
        match removed {
            Ok(()) => server.state().end_removal(file),
            Err(_) => server.state().put_off_removal(file),
        }
    }
}

/// The opens and delegations of clients, for the file system.
struct Opens(Weak<Shared>);

impl Opens {
    /// Calls `then` with the state of NFSv4 and the file with this handle. Returns `None` if NFSv4 is not served, or if
    /// the handle is too long.
    fn with<T>(&self, file: &[u8], then: impl FnOnce(&Server, &FileKey) -> T) -> Option<T> {
        let shared = self.0.upgrade()?;
        Some(then(shared.nfs4.as_ref()?, &shared.file_key(file)?))
    }
}

impl OpenFiles for Opens {
    fn begin_removal(&self, file: &[u8]) -> bool {
        let asked = self.with(file, |server, file| server.state().begin_removal(file, server.now()));
        asked.unwrap_or(false)
    }

    fn end_removal(&self, file: &[u8]) {
        self.with(file, |server, file| server.state().end_removal(file));
    }

    fn keep(&self, file: &[u8]) {
        self.with(file, |server, file| {
            let mut effects = Effects::default();
            server.state().keep_removed(file, server.now(), &mut effects);
            server.act(&mut effects);
        });
    }
}
