//! The threads that make checkpoints: every few seconds, and when the log asks for room.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use forebay_common::lock::Mutex;
use forebay_metalog::EVERY;
use forebay_runtime::{SystemClock, block_on};

use super::{Logging, OpLog, rename_intents};
use crate::caches::inode::Inode;
use crate::error::{Error, Result};
use crate::export::filesystem::Filesystem;

/// Called with each result of a checkpoint that differs from the result before.
pub(crate) type Tell = forebay_metalog::Tell<Error>;

/// The checkpoints of all file systems, and their threads.
pub(crate) struct Checkpoints {
    pub(crate) shared: Arc<forebay_metalog::Checkpoints<Filesystem>>,
    oplog: Arc<OpLog>,
    filesystems: Vec<Weak<Filesystem>>,
    threads: Mutex<Option<Threads>>,
}

/// The sender whose drop ends the first thread, and the handles of both.
struct Threads {
    stop: Sender<()>,
    both: [JoinHandle<()>; 2],
}

impl Checkpoints {
    /// Returns the checkpoints of these file systems, which are not running yet.
    pub(crate) fn new(oplog: Arc<OpLog>, filesystems: Vec<(u32, Weak<Filesystem>)>, tell: Tell) -> Self {
        let weak = filesystems.iter().map(|(_, fs)| fs.clone()).collect();
        let clock = Arc::new(SystemClock::new());
        let shared = forebay_metalog::Checkpoints::new(oplog.clone(), clock, filesystems, tell);
        Checkpoints { shared: Arc::new(shared), oplog, filesystems: weak, threads: Mutex::new(None) }
    }

    /// Returns the log's part of a file system.
    pub(crate) fn logging(&self, number: u32) -> Arc<Logging> {
        let known = self.shared.volume(number).cloned();
        known.unwrap_or_else(|| Arc::new(Logging::new(self.oplog.clone(), number)))
    }

    /// Starts the threads. The operations that recovery found in the log must be in the file systems, durably.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let (stop, stopped) = channel::<()>();
        let timed = self.shared.clone();
        let timed = std::thread::Builder::new().name("forebay-checkpoint".into()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                block_on(timed.make());
            }
        })?;
        let asked = self.shared.clone();
        let asked = std::thread::Builder::new()
            .name("forebay-answers".into())
            .spawn(move || block_on(asked.answer()))?;
        *self.threads.lock() = Some(Threads { stop, both: [timed, asked] });
        Ok(())
    }

    /// Makes every operation of a file system that has a number by now durable in it.
    pub(crate) fn make_of(&self, fs: &Filesystem) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        block_on(self.shared.make_of(&linked.logging, fs))
    }

    /// Makes every operation of a file system durable in it if recovery would create the inode, or set its attributes,
    /// from the log.
    pub(crate) fn make_of_touched(&self, fs: &Filesystem, object: &Inode) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        block_on(self.shared.make_of_touched(&linked.logging, fs, &object.kernel)).map(drop)
    }

    /// Makes the last checkpoint, after which nothing may be changed. Returns true if the log may release all user
    /// records.
    pub(crate) fn make_last(&self) -> bool {
        block_on(self.shared.make_last())
    }

    /// Removes the server's files that the file systems keep for the log, when the log needs them no more.
    pub(crate) fn tidy(&self) {
        for fs in self.filesystems.iter().filter_map(Weak::upgrade) {
            // A file that stays does no harm: the next start looks at it.
            let _ = rename_intents::clear(&fs.aliases).and_then(|()| fs.aliases.tidy());
        }
    }

    /// Ends the threads; the engine was closed.
    pub(crate) fn stop(&self) {
        if let Some(Threads { stop, both }) = self.threads.lock().take() {
            drop(stop);
            // A panic there has said so itself.
            both.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}
