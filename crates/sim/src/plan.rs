//! The plan of a world: its size, its use, and its faults. The seed determines it.

mod shape;

use std::time::Duration;

use forebay_engine::Mode;

use crate::backing;
use crate::disk;
use crate::rng::{Rng, mix};
use crate::workload::{Habits, Kind, MODES};

/// A fault of the one device that misbehaves, or of the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Failing writes.
    WriteError,
    /// Failing flushes.
    FlushError,
    /// Writes that are lost.
    LostWrite,
    /// Writes that go elsewhere.
    MisdirectedWrite,
    /// Reads from elsewhere.
    MisdirectedRead,
    /// Bits rot.
    Rot,
    /// Sectors unreadable for a while.
    LatentPassing,
    /// Sectors unreadable until rewritten.
    LatentLasting,
    /// The device becomes slow.
    Slow,
    /// The device vanishes in service.
    Vanish,
    /// The device is missing at a restart, and back at a later one.
    Missing,
    /// The device is replaced by a blank one at a restart.
    Wiped,
    /// The device forgets what it flushed.
    DropFlushes,
    /// EIO of the backing store.
    BackingError,
    /// Failing syncs.
    SyncError,
    /// Operations that hang.
    Hang,
    /// ENOSPC.
    NoSpace,
    /// EDQUOT.
    Quota,
    /// The clock jumps.
    ClockJump,
    /// The device vanishes in service during a read.
    VanishOnRead,
    /// One of two volumes does not answer for a while.
    Stuck,
    /// Headers of segments rot at a restart. After the engine reports that everything is mirrored again, the other
    /// device vanishes.
    LoneLegs,
    /// Devices are removed in service, and one dies for good meanwhile or later.
    Leaving,
    /// The device hangs in service.
    DeviceHang,
    /// Devices vanish in service, one after another, and come back. At a restart any of them may be present.
    Turns,
}

const TROUBLES: [Trouble; 19] = [
    Trouble::WriteError,
    Trouble::FlushError,
    Trouble::LostWrite,
    Trouble::MisdirectedWrite,
    Trouble::MisdirectedRead,
    Trouble::Rot,
    Trouble::LatentPassing,
    Trouble::LatentLasting,
    Trouble::Slow,
    Trouble::Vanish,
    Trouble::Missing,
    Trouble::Wiped,
    Trouble::DropFlushes,
    Trouble::BackingError,
    Trouble::SyncError,
    Trouble::Hang,
    Trouble::NoSpace,
    Trouble::Quota,
    Trouble::ClockJump,
];

/// A fault of both copies. After it, the engine promises only that it returns no wrong bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disaster {
    /// Bits rot on every device.
    Rot,
    /// Every device forgets what it flushed.
    DropFlushes,
    /// Every device vanishes in service and is back at the next start. Nothing is lost, and no older contents may be
    /// seen.
    AllGone,
}

/// A world before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sizes of the devices, in bytes.
    pub devices: Vec<u64>,
    /// Sizes of devices that may be added later.
    pub spares: Vec<u64>,
    /// The device that may misbehave.
    pub victim: usize,
    /// The faults of the victim and of the backing store.
    pub troubles: Vec<Trouble>,
    /// A fault of all devices.
    pub disaster: Option<Disaster>,
    /// The mode at the start.
    pub mode: Mode,
    /// Memory for cached blocks, in bytes.
    pub ram: u64,
    /// The time after which dirty data is destaged.
    pub destage_after: Duration,
    /// Backing files at the start.
    pub objects: u32,
    /// Volumes of the backing store.
    pub volumes: usize,
    /// Starts of the engine before the last one.
    pub sessions: u32,
    /// Chances in 10,000 that a session ends in a crash.
    pub crashes: u32,
    /// True if a crash comes when a segment was opened, not at any step.
    pub cuts_at_headers: bool,
    /// Clients fill the log to its end.
    pub fills: bool,
    /// The time after which a device without an answer is lost.
    pub deadline: Duration,
    /// Devices of other pools are offered, and devices change their names.
    pub foreign: bool,
    /// The policies of objects change.
    pub policies: bool,
    /// Clients make holes, reserve space and clone. These go past the log.
    pub holes: bool,
    /// The habits of the clients.
    pub habits: Habits,
    /// True if there are user records in the log.
    pub notes: bool,
}

impl Plan {
    /// Makes the plan that belongs to the stream.
    pub fn new(rng: &mut Rng) -> Self {
        // Drawn from a stream of its own, so that worlds without user records do not depend on this draw.
        let notes = Rng::new(mix(rng.clone().draw())).chance(5000);
        let mut habits = Habits::new(rng);
        let mib = 1 << 20;
        let count = rng.pick(&[1, 2, 2, 2, 2, 2, 2, 3, 4]);
        let sizes = [64 * mib, 64 * mib, 65 * mib + 4096, 96 * mib];
        let devices: Vec<u64> = (0..count).map(|_| rng.pick(&sizes)).collect();
        let spares = (0..rng.pick(&[0, 0, 1, 2])).map(|_| rng.pick(&sizes)).collect();
        let mode = rng.pick(&[
            Mode::WriteBack,
            Mode::WriteBack,
            Mode::WriteBack,
            Mode::WriteBack,
            Mode::WriteThrough,
            Mode::WriteAround,
            Mode::PassThrough,
        ]);
        if rng.chance(2000) {
            habits.modes = MODES.to_vec();
        }
        if rng.chance(8000) {
            habits.without(Kind::Drain);
        }
        let mut troubles = match rng.below(4) {
            0 => Vec::new(),
            1 => vec![rng.pick(&TROUBLES)],
            most => (0..rng.within(1, 2 * most)).map(|_| rng.pick(&TROUBLES)).collect(),
        };
        if count == 1 {
            // The promises of a service without any device are tested elsewhere.
            use Trouble::*;
            troubles.retain(|trouble| ![WriteError, FlushError, Vanish].contains(trouble));
        }
        let mut disaster = match rng.below(24) {
            0 => Some(Disaster::Rot),
            1 => Some(Disaster::DropFlushes),
            _ => None,
        };
        // Drawn apart, so that worlds without these faults do not depend on these draws.
        let mut apart = Rng::new(mix(rng.clone().draw()));
        let mut sessions = rng.within(0, 4) as u32;
        let (mut cuts_at_headers, mut lone) = (false, None);
        match apart.below(16) {
            0 | 3 if count > 1 => {
                troubles = vec![Trouble::LoneLegs];
                (disaster, sessions) = (None, apart.within(3, 8) as u32);
                cuts_at_headers = apart.chance(5000);
                lone = Some(apart.pick(&[0, 30, 600]) * Duration::from_secs(1));
            }
            1 if count > 1 => {
                troubles.push(Trouble::VanishOnRead);
                sessions = sessions.max(2);
            }
            2 => {
                troubles.clear();
                disaster = Some(Disaster::AllGone);
            }
            4 | 5 if count > 1 => {
                troubles = vec![Trouble::Leaving];
                (disaster, sessions) = (None, apart.within(1, 5) as u32);
                lone = Some(apart.pick(&[0, 1, 600]) * Duration::from_secs(1));
            }
            _ => {}
        }
        let mut divided = Rng::new(mix(mix(rng.clone().draw())));
        let volumes = divided.pick(&[1, 2]);
        if volumes > 1 && lone.is_none() && disaster.is_none() && divided.chance(3000) {
            troubles.push(Trouble::Stuck);
        }
        let mut plan = Plan {
            victim: rng.index(count),
            devices,
            spares,
            troubles,
            disaster,
            mode,
            ram: rng.pick(&[16 << 10, 256 << 10, 4 * mib, 64 * mib]),
            destage_after: rng.time(Duration::ZERO, rng.clone().pick(&[0, 1, 30]) * Duration::from_secs(1)),
            objects: rng.within(1, 6) as u32,
            volumes,
            sessions,
            crashes: rng.pick(&[0, 5000, 8000, 10_000]),
            cuts_at_headers,
            deadline: Duration::from_secs(10),
            foreign: false,
            policies: false,
            holes: false,
            fills: false,
            habits,
            notes,
        };
        if let Some(destage_after) = lone {
            // Many dirty blocks, for as long as possible.
            (plan.mode, plan.destage_after) = (Mode::WriteBack, destage_after);
            plan.habits.modes.clear();
            plan.crashes = if plan.has(Trouble::Leaving) { plan.crashes.min(5000) } else { 10_000 };
        }
        plan
    }

    /// Makes the plan of the world that belongs to the stream. Some plans are of a kind that chance alone would make
    /// too rarely.
    pub fn of_world(rng: &mut Rng) -> Self {
        let mut plan = Plan::new(rng);
        let apart = plan.has(Trouble::LoneLegs) || plan.has(Trouble::Leaving) || plan.disaster.is_some();
        shape::choose(&mut plan, !apart, &mut Rng::new(mix(mix(mix(rng.clone().draw())))));
        plan
    }

    /// Returns true if `trouble` is part of the plan.
    pub fn has(&self, trouble: Trouble) -> bool {
        self.troubles.contains(&trouble)
    }

    /// Returns true if the backing store may fail or run full.
    pub fn backing_fails(&self) -> bool {
        use Trouble::*;
        [BackingError, SyncError, NoSpace, Quota].iter().any(|trouble| self.has(*trouble))
    }

    /// Returns true if all data certainly goes through the log in the order of its numbers.
    pub fn logged(&self) -> bool {
        self.mode == Mode::WriteBack
            && self.habits.modes.is_empty()
            && self.devices.len() > 1
            && !self.victim_fails()
            && !self.holes
            // Longer writes may be streams, which may bypass the log.
            && self.habits.longest <= 64 << 10
    }

    /// Returns true if a device may leave the pool.
    pub fn device_fails(&self) -> bool {
        use Trouble::*;
        let all = [WriteError, FlushError, Vanish, Missing, Wiped, LatentPassing, LatentLasting, LostWrite];
        let late = [VanishOnRead, LoneLegs, Leaving, DeviceHang, Turns];
        all.iter().chain(&late).any(|trouble| self.has(*trouble))
            || self.has(MisdirectedWrite)
            || self.has(MisdirectedRead)
            || self.has(Rot)
            || self.disaster.is_some()
    }

    /// Returns true if the engine promises only that it returns no wrong bytes.
    pub fn is_lenient(&self) -> bool {
        // A lone device that forgets its flushed writes also forgets that its copies are out of date. No other device
        // knows.
        let forgetful = self.devices.len() == 1 && self.has(Trouble::DropFlushes);
        forgetful || matches!(self.disaster, Some(Disaster::Rot | Disaster::DropFlushes))
    }

    /// Returns true if the victim may forget contents that a pool needs.
    pub fn victim_fails(&self) -> bool {
        self.device_fails() || self.has(Trouble::DropFlushes)
    }

    /// Returns true if a volume may take long to answer.
    pub fn is_late(&self) -> bool {
        self.has(Trouble::Hang) || self.has(Trouble::Stuck) || self.habits.slow_store > 1
    }

    /// Returns a minimum for the longest bad hour. In such an hour a volume may not answer for longer than the engine
    /// needs to notice.
    pub fn longest_stuck(&self) -> Duration {
        Duration::from_secs(if self.has(Trouble::Stuck) { 40 } else { 0 })
    }

    /// Returns the rates at which the victim misbehaves in a bad hour.
    pub fn disk_rates(&self, rng: &mut Rng) -> disk::Rates {
        let mut rate = |trouble, most: u64| {
            if self.has(trouble) { rng.within(1, most) as u32 } else { 0 }
        };
        disk::Rates {
            write_error: rate(Trouble::WriteError, 300),
            flush_error: rate(Trouble::FlushError, 1000),
            lost_write: rate(Trouble::LostWrite, 1000),
            misdirected_write: rate(Trouble::MisdirectedWrite, 1000),
            misdirected_read: rate(Trouble::MisdirectedRead, 2000),
            rot: rate(Trouble::Rot, 2000),
            latent_passing: rate(Trouble::LatentPassing, 2000),
            latent_lasting: rate(Trouble::LatentLasting, 1000),
            vanish: rate(Trouble::Vanish, 100),
            vanish_read: rate(Trouble::VanishOnRead, 500),
            drop_flushes: self.has(Trouble::DropFlushes),
            slow: if self.has(Trouble::Slow) { 50 } else { 1 },
        }
    }

    /// Returns the rates at which the backing store misbehaves in a bad hour.
    pub fn backing_rates(&self, rng: &mut Rng) -> backing::Rates {
        let mut rate = |trouble, most: u64| {
            if self.has(trouble) { rng.within(1, most) as u32 } else { 0 }
        };
        backing::Rates {
            error: rate(Trouble::BackingError, 3000),
            sync_error: rate(Trouble::SyncError, 5000),
            hang: rate(Trouble::Hang, 500),
            over_quota: self.has(Trouble::Quota),
            slow: 1,
            stuck: None,
        }
    }
}
