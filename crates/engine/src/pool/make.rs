//! Formats devices for a new pool.

use std::sync::Arc;

use super::error::{PoolError, Uuid};
use super::geometry::{Copy, DEVICE_MAX, DEVICE_MIN, MARGIN, segment_size, segments, whole_blocks};
use super::identify::{Contents, identify};
use super::superblock::{State, Superblock};
use super::table::{Member, Pool};
use crate::buffer::{BLOCK, Buffer, Slice};
use crate::format::DEVICES_MAX;
use crate::io::{Device, Durability};

impl Pool {
    /// Makes a new pool of `devices`, and destroys their contents. `random` returns the UUIDs. Without `force` each
    /// device must be blank, or a member of a pool that was never opened, as an interrupted formatting leaves it.
    ///
    /// The pool is durable on all devices when this returns `Ok`. After a crash the devices are blank, hold an
    /// unfinished format, or hold a pool that was never opened. Then they can be formatted again, without `force`
    /// unless a write of a single block was torn.
    ///
    /// # Errors
    /// Devices of a wrong size, in use, or named twice; I/O errors. Nothing is written before all devices are
    /// accepted.
    pub async fn format(
        devices: Vec<Arc<dyn Device>>,
        random: &mut (dyn FnMut() -> u128 + Send),
        force: bool,
    ) -> Result<Pool, PoolError> {
        if devices.is_empty() {
            return Err(PoolError::NoDevices);
        }
        if devices.len() > DEVICES_MAX {
            return Err(PoolError::TooManyDevices(devices.len()));
        }
        for device in &devices {
            check_size(device.as_ref())?;
            check_free(device.as_ref(), force).await?;
        }
        for device in &devices {
            wipe(device.as_ref()).await?;
            discard(device.as_ref()).await;
        }
        let smallest = devices.iter().map(|device| device.size()).min().unwrap_or(DEVICE_MIN);
        let segment_size = segment_size(smallest);
        let uuid = random();
        let member = |(index, device): (u16, &Arc<dyn Device>)| Member {
            uuid: random(),
            index,
            segments: segments(device.size(), segment_size),
            state: State::Active,
            since_epoch: 0,
            device: Some(device.clone()),
            write_first: Copy::A,
        };
        let mut pool = Pool {
            uuid,
            epoch: 0,
            segment_size,
            members: (0..).zip(&devices).map(member).collect(),
            notices: Vec::new(),
            in_use: 0,
            generation: 0,
            optional: 0,
            reach: Default::default(),
            newest: 0,
            durable: 0,
            owner: Vec::new(),
            watched: Default::default(),
            refused: Vec::new(),
        };
        let all: Vec<_> = (0..devices.len()).collect();
        if let Some((at, error)) = pool.write(&all).await.pop() {
            return Err(PoolError::Unwritable { device: devices[at].name().to_owned(), error });
        }
        for member in &pool.members {
            read_back(member, &pool.members).await?;
        }
        Ok(pool)
    }
}

/// Checks that a device of this size can hold a pool.
pub(super) fn check_size(device: &dyn Device) -> Result<(), PoolError> {
    let (size, name) = (device.size(), || device.name().to_owned());
    if size < DEVICE_MIN {
        return Err(PoolError::TooSmall { device: name(), size, needed: DEVICE_MIN });
    }
    if size > DEVICE_MAX {
        return Err(PoolError::TooLarge { device: name(), size });
    }
    Ok(())
}

/// Refuses a device that holds anything but a pool that no longer uses it, unless `force`.
async fn check_free(device: &dyn Device, force: bool) -> Result<(), PoolError> {
    let name = || device.name().to_owned();
    let contents = identify(device).await.map_err(|error| PoolError::Unreadable { device: name(), error })?;
    let free = match &contents {
        Contents::Blank | Contents::Unfinished => true,
        Contents::Pool(superblock) => superblock.in_use == 0,
        _ => false,
    };
    if free || force { Ok(()) } else { Err(PoolError::InUse { device: name(), what: contents.to_string() }) }
}

/// Erases both ends of a device durably: other programs have their signatures there, and Forebay old superblocks.
/// Leaves a mark in place of each superblock ([`Superblock::unfinished`]) and zeros in the rest.
pub(super) async fn wipe(device: &dyn Device) -> Result<(), PoolError> {
    let unwritable = |error| PoolError::Unwritable { device: device.name().to_owned(), error };
    // One mark after the other, and before the zeros: a superblock or a whole mark is there at any moment.
    for copy in [Copy::A, Copy::B] {
        let mark = Slice::from(Superblock::unfinished());
        device.write(copy.offset(device.size()), mark, Durability::Now).await.map_err(unwritable)?;
    }
    let zeros = Slice::from(Buffer::zeroed(MARGIN as usize / BLOCK - 1));
    let end = whole_blocks(device.size()) - MARGIN;
    for offset in [BLOCK as u64, end] {
        device.write(offset, zeros.clone(), Durability::Later).await.map_err(unwritable)?;
    }
    device.flush().await.map_err(unwritable)
}

/// Discards everything between the ends of a wiped device. Discards of this size happen only here: decision 009.
pub(crate) async fn discard(device: &dyn Device) {
    let end = whole_blocks(device.size()) - MARGIN;
    // A discard is only advice: a device that refuses it works as well.
    let _ = device.discard(MARGIN, end - MARGIN).await;
}

/// Reads back the superblock just written for `member`. If one device goes by two names, the device has another
/// member's superblock.
pub(super) async fn read_back(member: &Member, members: &[Member]) -> Result<(), PoolError> {
    let Some(device) = &member.device else { return Ok(()) };
    let name = || device.name().to_owned();
    match identify(device.as_ref()).await {
        Ok(Contents::Pool(superblock)) if superblock.device == member.uuid => Ok(()),
        Ok(Contents::Pool(superblock)) => {
            let twin = members.iter().find(|other| other.uuid == superblock.device);
            let twin = twin.and_then(|other| other.device.as_ref());
            let forgetful = PoolError::Forgetful(name());
            Err(twin.map_or(forgetful, |twin| PoolError::Duplicate {
                first: name(),
                second: twin.name().to_owned(),
            }))
        }
        Ok(_) => Err(PoolError::Forgetful(name())),
        Err(error) => Err(PoolError::Unreadable { device: name(), error }),
    }
}

impl std::fmt::Display for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Contents::Blank => write!(f, "nothing"),
            Contents::Unfinished => write!(f, "a format of Forebay that was interrupted"),
            Contents::Foreign(what) => write!(f, "{what}"),
            Contents::Pool(superblock) => write!(f, "a member of Forebay pool {}", Uuid(superblock.pool)),
            Contents::Damaged => write!(f, "a damaged member of a Forebay pool"),
            Contents::Newer { version } => write!(f, "a member of a Forebay pool of format {version}"),
            Contents::UnknownFeatures(bits) => {
                write!(f, "a member of a Forebay pool with unknown features ({bits:#x})")
            }
        }
    }
}
