//! Identifies the contents of a device.

use super::geometry::Copy;
use super::signature::{Ends, known};
use super::superblock::{Superblock, Unusable};
use crate::buffer::{BLOCK, Buffer};
use crate::format::is_zero;
use crate::io::{Device, DeviceError};

/// The contents of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// No data that could be missed: no known signature, and zeros in the first MiB.
    Blank,
    /// Data of another program, with its name.
    Foreign(&'static str),
    /// A format of Forebay that was cut short before a superblock was whole, and nothing else.
    Unfinished,
    /// A member of a pool, with the newer of its superblocks.
    Pool(Superblock),
    /// A member of a pool; both its superblocks are damaged.
    Damaged,
    /// A member of a pool of a later version of the format.
    Newer {
        /// The version of the format.
        version: u16,
    },
    /// A member of a pool that requires features unknown here.
    UnknownFeatures(u64),
}

/// Reads both ends of `device`; writes nothing.
///
/// # Errors
/// Too much cannot be read to identify the contents. One readable superblock is enough.
pub async fn identify(device: &dyn Device) -> Result<Contents, DeviceError> {
    look(device).await.map(|(contents, _)| contents)
}

/// Identifies the contents as [`identify`]. Also returns the superblock copy to be written first next time: the older
/// copy, or the one that is not whole.
pub(super) async fn look(device: &dyn Device) -> Result<(Contents, Copy), DeviceError> {
    let a = superblock(device, Copy::A).await;
    let b = superblock(device, Copy::B).await;
    let whole = |copy: &Read| matches!(copy, Ok(Ok(_)));
    let (a_whole, b_whole) = (whole(&a), whole(&b));
    let mut ends = ends(device).await;
    if let Ok(ends) = &mut ends {
        ends.forget_own(a_whole, b_whole);
        // Some programs leave Forebay's superblocks alone when they take a device: MD and bcache begin in the second
        // block.
        if let Some(what) = known(ends) {
            return Ok((Contents::Foreign(what), Copy::A));
        }
    }
    for copy in [&a, &b] {
        match copy {
            Ok(Err(Unusable::Newer(version))) => return Ok((Contents::Newer { version: *version }, Copy::A)),
            Ok(Err(Unusable::UnknownFeatures(bits))) => {
                return Ok((Contents::UnknownFeatures(*bits), Copy::A));
            }
            _ => {}
        }
    }
    let has =
        |unusable| [&a, &b].into_iter().any(|copy| matches!(copy, Ok(Err(found)) if *found == unusable));
    let damaged = has(Unusable::Damaged);
    let unfinished = has(Unusable::Unfinished) && ends.as_ref().is_ok_and(|ends| has_no_other_data(ends, &a));
    match (a, b) {
        (Ok(Ok(a)), Ok(Ok(b))) if a.device == b.device && b.generation > a.generation => {
            Ok((Contents::Pool(b), Copy::A))
        }
        (Ok(Ok(a)), _) => Ok((Contents::Pool(a), Copy::B)),
        (_, Ok(Ok(b))) => Ok((Contents::Pool(b), Copy::A)),
        _ if unfinished => Ok((Contents::Unfinished, Copy::A)),
        _ if damaged => Ok((Contents::Damaged, Copy::A)),
        _ if is_zero(ends?.front()) => Ok((Contents::Blank, Copy::A)),
        _ => Ok((Contents::Foreign("data of an unknown kind"), Copy::A)),
    }
}

/// Returns true if the first MiB holds zeros, apart from what Forebay has written in place of superblock copy A.
fn has_no_other_data(ends: &Ends, first: &Read) -> bool {
    let is_own = !matches!(first, Ok(Err(Unusable::None)));
    ends.front().get(if is_own { BLOCK } else { 0 }..).is_some_and(is_zero)
}

type Read = Result<Result<Superblock, Unusable>, DeviceError>;

/// Reads a superblock copy of a device.
async fn superblock(device: &dyn Device, copy: Copy) -> Read {
    if device.size() < 2 * BLOCK as u64 {
        return Ok(Err(Unusable::None));
    }
    let (block, done) = device.read(copy.offset(device.size()), Buffer::zeroed(1)).await;
    done.map(|()| Superblock::decode(&block))
}

/// Reads both ends of a device.
async fn ends(device: &dyn Device) -> Result<Ends, DeviceError> {
    let [front, end] = Ends::ranges(device.size());
    let blocks = (front.end - front.start) as usize / BLOCK;
    let (front, done) = device.read(front.start, Buffer::zeroed(blocks)).await;
    done?;
    let (end, done) = device.read(end.start, Buffer::zeroed(blocks)).await;
    done?;
    Ok(Ends::new(device.size(), [front, end]))
}
