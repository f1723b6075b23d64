//! Closes inodes whose last link an external change removed. The server's descriptor would keep their space in use, and
//! no client may ever ask for them again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::caches::inode_cache::{InodeCache, SHARDS};
use crate::error::Error;

/// Between two looks at a part of the known inodes.
const PAUSE: Duration = Duration::from_secs(1);
/// Parts of the inode cache examined each time: all of it in 16 seconds.
const AT_ONCE: usize = SHARDS / 16;

/// Starts the thread that sweeps the inodes of a file system as long as the file system is in use.
pub(crate) fn start(inodes: &Arc<InodeCache>) -> std::io::Result<()> {
    let inodes = Arc::downgrade(inodes);
    std::thread::Builder::new().name("forebay-sweep".into()).spawn(move || sweep(&inodes)).map(drop)
}

/// Looks at all cached inodes in turn, and forgets those without a name, until the cache is gone.
fn sweep(inodes: &Weak<InodeCache>) {
    for turn in (0..SHARDS).step_by(AT_ONCE).cycle() {
        std::thread::sleep(PAUSE);
        let Some(inodes) = inodes.upgrade() else { return };
        for shard in turn..turn + AT_ONCE {
            for object in inodes.in_shard(shard) {
                if object.attr() == Err(Error::Stale) {
                    inodes.forget(&object);
                }
            }
        }
    }
}
