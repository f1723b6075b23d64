//! Closes inodes whose last link an external change removed. The server's descriptor would keep their space in use, and
//! no client may ever ask for them again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::caches::inode_cache::SHARDS;
use crate::error::Error;
use crate::export::filesystem::Filesystem;

/// Between two looks at a part of the known inodes.
const PAUSE: Duration = Duration::from_secs(1);
/// Parts of the table looked at each time: all of it in 16 seconds.
const AT_ONCE: usize = SHARDS / 16;

/// Starts the thread that sweeps as long as the file system is in use; none where asking for attributes costs more
/// than a system call.
pub(crate) fn start(fs: &Arc<Filesystem>) -> std::io::Result<()> {
    if !fs.attributes_in_memory() {
        return Ok(());
    }
    let fs = Arc::downgrade(fs);
    std::thread::Builder::new().name("forebay-sweep".into()).spawn(move || sweep(&fs)).map(drop)
}

fn sweep(fs: &Weak<Filesystem>) {
    for turn in (0..SHARDS).step_by(AT_ONCE).cycle() {
        std::thread::sleep(PAUSE);
        let Some(fs) = fs.upgrade() else { return };
        for shard in turn..turn + AT_ONCE {
            for object in fs.inodes.in_shard(shard) {
                if object.attr() == Err(Error::Stale) {
                    fs.inodes.forget(&object);
                }
            }
        }
    }
}
