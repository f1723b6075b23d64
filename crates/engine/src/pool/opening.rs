//! A pool is opened.

use std::sync::Arc;

use super::error::PoolError;
use super::geometry::Copy;
use super::looking::{Looked, look_at_all};
use super::open::{Decision, Seen, decide};
use super::superblock::Entry;
use super::table::{Member, Pool};
use super::watched::WitnessRecord;
use crate::io::Device;

impl Pool {
    /// Opens the pool whose members `devices` are, in any order. Writes nothing, and its findings are durable.
    /// Missing or unusable members are in [`Pool::notices`]. A caller that wants to write calls [`Pool::open_epoch`]
    /// first.
    ///
    /// # Errors
    /// Every refusal of the table in `pool/open.rs`.
    pub async fn open(devices: Vec<Arc<dyn Device>>) -> Result<Pool, PoolError> {
        let looked = look_at_all(&devices).await;
        Pool::of(devices, looked)
    }

    /// Returns the pool that `devices` with these contents are the members of.
    pub(super) fn of(devices: Vec<Arc<dyn Device>>, looked: Vec<Looked>) -> Result<Pool, PoolError> {
        let (contents, write_first): (Vec<_>, Vec<_>) = looked.into_iter().unzip();
        let seen = devices.iter().zip(contents).map(|(device, contents)| Seen {
            name: device.name().to_owned(),
            size: device.size(),
            contents,
        });
        let Decision { superblock, devices: places, notices } = decide(&seen.collect::<Vec<_>>())?;
        let member = |((index, entry), at): ((u16, &Entry), Option<usize>)| Member {
            uuid: entry.uuid,
            index,
            segments: entry.segments,
            state: entry.state,
            since_epoch: entry.since_epoch,
            device: at.map(|at| devices[at].clone()),
            write_first: at.map_or(Copy::A, |at| write_first[at]),
        };
        Ok(Pool {
            uuid: superblock.pool,
            epoch: superblock.epoch,
            segment_size: superblock.segment_size,
            members: (0..).zip(&superblock.members).zip(places).map(member).collect(),
            notices,
            in_use: superblock.in_use,
            generation: superblock.generation,
            optional: superblock.optional,
            reach: superblock.reach,
            newest: superblock.newest,
            durable: superblock.durable,
            owner: superblock.owner,
            watched: WitnessRecord::default(),
            refused: Vec::new(),
        })
    }
}
