//! What is on a device.

use super::geometry::{Copy, SEGMENTS_START};
use super::signature::{Ends, known};
use super::superblock::{Superblock, Unusable};
use crate::buffer::{BLOCK, Buffer};
use crate::format::is_zero;
use crate::io::{Device, DeviceError};

/// What is on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing that anybody would miss: no known signature, and zeros in the first MiB.
    Blank,
    /// Somebody else's data, and whose.
    Foreign(&'static str),
    /// A pool's member, with the newer of its superblocks.
    Pool(Superblock),
    /// A pool's member both superblocks of which are damaged.
    Damaged,
    /// A member of a pool of a later version of the format.
    Newer {
        /// That version.
        version: u16,
    },
    /// A member of a pool with required features that are not known here.
    UnknownFeatures(u64),
}

/// Looks at both ends of `device`; writes nothing.
///
/// # Errors
/// When so much cannot be read that nothing can be said. One superblock that can be read is enough.
pub async fn identify(device: &dyn Device) -> Result<Contents, DeviceError> {
    look(device).await.map(|(contents, _)| contents)
}

/// As [`identify`]; also the superblock copy to be written first next time: the one that is older or not whole.
pub(super) async fn look(device: &dyn Device) -> Result<(Contents, Copy), DeviceError> {
    let front = superblock(device, Copy::A).await;
    let back = superblock(device, Copy::B).await;
    for copy in [&front, &back] {
        match copy {
            Ok(Err(Unusable::Newer(version))) => return Ok((Contents::Newer { version: *version }, Copy::A)),
            Ok(Err(Unusable::UnknownFeatures(bits))) => {
                return Ok((Contents::UnknownFeatures(*bits), Copy::A));
            }
            _ => {}
        }
    }
    match (front, back) {
        (Ok(Ok(a)), Ok(Ok(b))) if a.device == b.device && b.generation > a.generation => {
            Ok((Contents::Pool(b), Copy::A))
        }
        (Ok(Ok(a)), _) => Ok((Contents::Pool(a), Copy::B)),
        (front, back) => Ok((without_front(device, front, back).await?, Copy::A)),
    }
}

type Read = Result<Result<Superblock, Unusable>, DeviceError>;

async fn superblock(device: &dyn Device, copy: Copy) -> Read {
    if device.size() < 2 * BLOCK as u64 {
        return Ok(Err(Unusable::None));
    }
    let (block, done) = device.read(copy.offset(device.size()), Buffer::zeroed(1)).await;
    done.map(|()| Superblock::decode(&block))
}

/// What is on a device the first block of which is no superblock.
async fn without_front(device: &dyn Device, front: Read, back: Read) -> Result<Contents, DeviceError> {
    let ends = ends(device).await;
    // Whoever made something else of the device left the last block alone, perhaps. It is theirs.
    if let Some(what) = ends.as_ref().ok().and_then(known) {
        return Ok(Contents::Foreign(what));
    }
    if let Ok(Ok(back)) = back {
        return Ok(Contents::Pool(back));
    }
    let damaged = |copy: &Read| matches!(copy, Ok(Err(Unusable::Damaged)));
    if damaged(&front) || damaged(&back) {
        return Ok(Contents::Damaged);
    }
    let ends = ends?;
    if is_zero(&ends.front) { Ok(Contents::Blank) } else { Ok(Contents::Foreign("data of an unknown kind")) }
}

/// The first and the last MiB; less of a device that is smaller.
async fn ends(device: &dyn Device) -> Result<Ends, DeviceError> {
    let blocks = device.size() / BLOCK as u64;
    let some = blocks.min(SEGMENTS_START / BLOCK as u64);
    let end_start = (blocks - some) * BLOCK as u64;
    // At most one MiB: it fits.
    let (front, done) = device.read(0, Buffer::zeroed(some as usize)).await;
    done?;
    let (end, done) = device.read(end_start, Buffer::zeroed(some as usize)).await;
    done?;
    Ok(Ends { size: device.size(), front, end_start, end })
}
