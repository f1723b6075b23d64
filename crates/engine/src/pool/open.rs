//! Decides which devices make a pool: a decision table over their contents. It reads nothing and writes nothing.
//!
//! | row | found | decision |
//! |---|---|---|
//! | O1 | no devices, or more than 16 | refuse |
//! | O2 | a pool of a newer format | refuse |
//! | O3 | a pool with unknown required features | refuse |
//! | O4 | data of another program | refuse |
//! | O5 | all blank | refuse: no pool |
//! | O6 | no member with a good superblock; some damaged or unreadable | refuse |
//! | O7 | members of two pools | refuse |
//! | O8 | one member twice | refuse |
//! | O9 | a pool never opened, and another one or a blank, unfinished or damaged device | refuse: format again |
//! | O10 | a member and a blank device | refuse |
//! | O11 | two members, each used without the other | refuse |
//! | O12 | a member that the table no longer names, or names as removed | go on without it |
//! | O13 | a member that the table names as lost | go on without it: stale |
//! | O14 | an active member older than the newest epoch in use | go on without it: stale |
//! | O15 | an active member smaller than its segments | go on without it; refuse if the others are not enough |
//! | O16 | a damaged, unfinished or unreadable device beside good members | go on without it |
//! | O17 | one active member missing (or dropped by O12 to O16) | go on, degraded |
//! | O18 | more than one active member missing | refuse |
//! | O19 | all active members, in any order | open |
//!
//! "The table" is the one of the superblock with the highest (epoch in use, epoch, generation).

use super::error::{Notice, PoolError, Uuid};
use super::geometry::{segments, size_for};
use super::identify::Contents;
use super::superblock::{State, Superblock};
use crate::format::DEVICES_MAX;
use crate::io::DeviceError;
use crate::planted_bugs;

/// A device and its contents.
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) contents: Result<Contents, DeviceError>,
}

/// The decision to open a pool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// The superblock that counts. Its epoch and generation are the highest of all.
    pub(super) superblock: Superblock,
    /// For each member by index: the position of its device in the list.
    pub(super) devices: Vec<Option<usize>>,
    pub(super) notices: Vec<Notice>,
}

struct PoolDevice<'a> {
    at: usize,
    name: &'a str,
    size: u64,
    superblock: &'a Superblock,
}

/// Decides by the table at the top of this file.
pub(super) fn decide(seen: &[Seen]) -> Result<Decision, PoolError> {
    refuse_what_is_not_ours(seen)?;
    let mut notices = Vec::new();
    let mut blank = None;
    let mut found = Vec::new();
    for (at, Seen { name, size, contents }) in seen.iter().enumerate() {
        match contents {
            Ok(Contents::Pool(superblock)) => found.push(PoolDevice { at, name, size: *size, superblock }),
            Ok(Contents::Blank) => blank = blank.or(Some(name)),
            Ok(Contents::Damaged) => notices.push(Notice::Damaged(name.clone())),
            Ok(Contents::Unfinished) => notices.push(Notice::Unfinished(name.clone())),
            Err(DeviceError::Silent) => notices.push(Notice::Silent(name.clone())),
            Err(error) => notices.push(Notice::Unreadable { device: name.clone(), error: *error }),
            // `refuse_what_is_not_ours` has refused these.
            Ok(Contents::Foreign(_) | Contents::Newer { .. } | Contents::UnknownFeatures(_)) => {}
        }
    }
    let newest = found.iter().max_by_key(|found| {
        let Superblock { in_use, epoch, generation, .. } = found.superblock;
        (in_use, epoch, generation)
    });
    let Some(newest) = newest else { return Err(no_pool(notices)) };
    refuse_what_does_not_match(&found, newest)?;
    let unusable = notices.iter().any(|notice| matches!(notice, Notice::Damaged(_) | Notice::Unfinished(_)));
    if newest.superblock.in_use == 0 && (blank.is_some() || unusable) {
        return Err(PoolError::Unfinished(newest.name.to_owned()));
    }
    if let Some(blank) = blank {
        return Err(PoolError::Blank(blank.clone()));
    }
    let mut superblock = newest.superblock.clone();
    let mut devices = vec![None; superblock.members.len()];
    for found in &found {
        match member(found, newest)? {
            Ok(index) => devices[index] = Some(found.at),
            Err(notice) => notices.push(notice),
        }
    }
    notices.extend(missing(&superblock, &devices, &notices)?);
    superblock.epoch = highest(&found, |superblock| superblock.epoch);
    superblock.generation = highest(&found, |superblock| superblock.generation);
    Ok(Decision { superblock, devices, notices })
}

fn highest(found: &[PoolDevice<'_>], of: impl Fn(&Superblock) -> u64) -> u64 {
    found.iter().map(|found| of(found.superblock)).max().unwrap_or(0)
}

/// Applies rows O1 to O4.
fn refuse_what_is_not_ours(seen: &[Seen]) -> Result<(), PoolError> {
    if seen.is_empty() {
        return Err(PoolError::NoDevices);
    }
    if seen.len() > DEVICES_MAX {
        return Err(PoolError::TooManyDevices(seen.len()));
    }
    for Seen { name, contents, .. } in seen {
        let device = name.clone();
        match *contents {
            Ok(Contents::Newer { version }) => return Err(PoolError::Newer { device, version }),
            Ok(Contents::UnknownFeatures(bits)) => return Err(PoolError::UnknownFeatures { device, bits }),
            Ok(Contents::Foreign(what)) => return Err(PoolError::Foreign { device, what }),
            Ok(Contents::Blank | Contents::Unfinished | Contents::Pool(_) | Contents::Damaged) | Err(_) => {}
        }
    }
    Ok(())
}

/// Applies rows O5 and O6. A device with an unfinished format counts as blank.
fn no_pool(notices: Vec<Notice>) -> PoolError {
    match notices.into_iter().find(|notice| !matches!(notice, Notice::Unfinished(_))) {
        Some(Notice::Unreadable { device, error }) => PoolError::Unreadable { device, error },
        Some(Notice::Silent(device)) => PoolError::Unreadable { device, error: DeviceError::Silent },
        Some(Notice::Damaged(device)) => PoolError::Damaged(device),
        _ => PoolError::NoPool,
    }
}

/// Applies rows O7 and O8, and O9 for two pools.
fn refuse_what_does_not_match(found: &[PoolDevice<'_>], newest: &PoolDevice<'_>) -> Result<(), PoolError> {
    for other in found {
        if other.superblock.pool != newest.superblock.pool
            && !planted_bugs::active("a device of another pool is left out")
        {
            if newest.superblock.in_use == 0 {
                return Err(PoolError::Unfinished(newest.name.to_owned()));
            }
            let (first, second) = if other.at < newest.at { (other, newest) } else { (newest, other) };
            return Err(PoolError::OtherPool {
                first: first.name.to_owned(),
                first_pool: Uuid(first.superblock.pool),
                second: second.name.to_owned(),
                second_pool: Uuid(second.superblock.pool),
            });
        }
        let same =
            |twin: &&PoolDevice<'_>| twin.at > other.at && twin.superblock.device == other.superblock.device;
        if let Some(twin) = found.iter().find(same) {
            return Err(PoolError::Duplicate { first: other.name.to_owned(), second: twin.name.to_owned() });
        }
    }
    Ok(())
}

/// Applies rows O11 to O15. Returns the member's index, or the reason why the pool continues without it.
fn member(found: &PoolDevice<'_>, newest: &PoolDevice<'_>) -> Result<Result<usize, Notice>, PoolError> {
    let table = newest.superblock;
    let own = found.superblock;
    let split = || PoolError::Split { first: newest.name.to_owned(), second: found.name.to_owned() };
    // All members of one change carry one table.
    if (own.in_use, own.epoch) == (table.in_use, table.epoch) && own.members != table.members {
        return Err(split());
    }
    let name = found.name.to_owned();
    let Some(index) = table.members.iter().position(|entry| entry.uuid == own.device) else {
        return Ok(Err(Notice::NotMember(name)));
    };
    let entry = &table.members[index];
    match entry.state {
        State::Removed => Ok(Err(Notice::NotMember(name))),
        // The member continued alone after the other members had given it up.
        State::Lost if own.in_use >= entry.since_epoch => Err(split()),
        State::Lost => Ok(Err(Notice::Stale(name))),
        // An epoch comes into use when all active members carry it, so this member fell back since.
        State::Active if own.epoch < table.in_use => Ok(Err(Notice::Stale(name))),
        State::Active if segments(found.size, table.segment_size) < entry.segments => {
            let needed = size_for(entry.segments, table.segment_size);
            Ok(Err(Notice::Shrunk { device: name, size: found.size, needed }))
        }
        State::Active => Ok(Ok(index)),
    }
}

/// Applies rows O17 to O19, and the refusal of O15. `found` are the findings about the devices that are there.
fn missing(
    superblock: &Superblock,
    devices: &[Option<usize>],
    found: &[Notice],
) -> Result<Option<Notice>, PoolError> {
    let missing: Vec<_> = (0..)
        .zip(&superblock.members)
        .zip(devices)
        .filter(|((_, entry), device)| entry.state == State::Active && device.is_none())
        .map(|((index, entry), _)| (index, Uuid(entry.uuid)))
        .collect();
    let shrunk = found.iter().find_map(|notice| match notice {
        Notice::Shrunk { device, size, needed } => Some((device.clone(), *size, *needed)),
        _ => None,
    });
    if let Some((device, size, needed)) = shrunk
        && (missing.len() > 1 || devices.iter().all(Option::is_none))
    {
        return Err(PoolError::Shrunk { device, size, needed });
    }
    match missing[..] {
        [] => Ok(None),
        [(index, uuid)] => Ok(Some(Notice::Missing { index, uuid })),
        _ => Err(PoolError::TooManyMissing(missing.into_iter().map(|(_, uuid)| uuid).collect())),
    }
}
