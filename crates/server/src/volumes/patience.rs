//! Bounds of the time that a command or a stop waits for a backing device or its file system.
//!
//! Work that takes longer goes on behind the caller: a system call cannot be taken back, and a sync that is given up
//! would hold up all later ones.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Error;
use forebay_engine::io::Clock as _;
use forebay_engine::wait::before;
use forebay_runtime::{SystemClock, block_on, block_on_apart, unblock};
use forebay_volume::volume::Volume;

use crate::in_time::within;

/// The time that a stop or a removal waits for the requests in progress to a backing device. A removal that gives up
/// the data waits so long for the next block to be destaged.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The time that a new backing device has. A disk may have to spin up first, and an attempt to connect to an NBD server
/// takes ten seconds.
pub(super) const OPENING: Duration = Duration::from_secs(20);

/// Returns the result of `work`, or `None` if it takes longer than `patience`: see [`within`].
pub(super) fn in_time<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    within(patience, work).ok()
}

/// Destages a volume, see [`Volume::destage`]. Fails if the backing device does not answer, and the destaging goes on.
pub(super) fn destage_in_time(volume: &Arc<Volume>) -> Result<(), Error> {
    let (volume, destaging) = (volume.clone(), destaging(volume));
    block_on_apart(async move { before(volume.until_late(), destaging).await.unwrap_or(Err(Error::Late)) })
}

/// Destages a volume as far as that can be done. Returns false, and the destaging goes on, if nothing was destaged for
/// [`PATIENCE`].
pub(super) fn destage_while_it_goes_on(volume: &Arc<Volume>) -> bool {
    let (volume, mut destaging) = (volume.clone(), destaging(volume));
    block_on_apart(async move {
        loop {
            let dirty = volume.dirty_bytes();
            match before(SystemClock::default().sleep(PATIENCE), &mut destaging).await {
                // The data that could not be destaged is given up.
                Some(_) => return true,
                None if volume.dirty_bytes() >= dirty => return false,
                None => {}
            }
        }
    })
}

/// Begins to destage a volume on a thread of its own, which goes on to its end.
fn destaging(volume: &Arc<Volume>) -> forebay_engine::io::Io<Result<(), Error>> {
    let volume = volume.clone();
    unblock("forebay-volume", move || block_on(volume.destage()))
}

/// Returns the sentence about a path that does not answer within [`OPENING`].
pub(super) fn silent(path: &Path) -> String {
    format!(
        "{} does not answer within {} seconds; see whether its disk or file system works, and ask again",
        path.display(),
        OPENING.as_secs()
    )
}
