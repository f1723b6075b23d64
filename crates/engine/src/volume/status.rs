//! The state of volumes, for an administrator.

use std::sync::Arc;

use crate::Error;
use crate::core::Core;
use crate::volume::Volume;

/// The state of a volume, for an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// The volume's name, from [`Backing::name`](crate::io::Backing::name).
    pub name: String,
    /// Number of 4 KiB blocks that the volume does not have yet.
    pub dirty_blocks: u64,
    /// The volume's trouble: [`Error::Late`], or the reason why destaging fails.
    pub trouble: Option<Error>,
}

/// Returns the state of every served volume, and of other volumes of which the log has data.
pub(crate) fn volumes(core: &Core) -> Vec<VolumeStatus> {
    let all = core.destager.volumes.all();
    let status = |volume: Arc<Volume>| VolumeStatus {
        name: core.env.backing.name(volume.id),
        dirty_blocks: volume.dirty(),
        trouble: volume.trouble(),
    };
    all.into_iter().map(status).collect()
}
