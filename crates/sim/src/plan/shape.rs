//! Worlds of kinds that chance alone would make too rarely. They are drawn apart, so that all other worlds do not
//! depend on them.

use std::time::Duration;

use forebay_engine::Mode;

use super::{Plan, Trouble};
use crate::rng::Rng;
use crate::workload::{Habits, Kind};

/// Turns some plans into a certain kind. A plan that is not free, since it already has a kind, may only be enlarged.
pub(super) fn choose(plan: &mut Plan, is_free: bool, rng: &mut Rng) {
    match rng.below(24) {
        0 => enlarge(plan, is_free, rng),
        1 if is_free => crowd(plan, rng),
        2 if is_free => fill(plan, rng),
        3 | 4 if is_free && plan.devices.len() > 1 => hang(plan, rng),
        5..=7 if is_free => turn(plan, rng),
        8 | 9 if is_free && plan.devices.len() > 1 => plan.foreign = true,
        10 | 11 if is_free => change_policies(plan, rng),
        12..=14 if is_free => punch(plan, rng),
        _ => {}
    }
}

/// Enlarges devices so that segments have 2 MiB and more. Clients may then write the largest frames.
fn enlarge(plan: &mut Plan, is_free: bool, rng: &mut Rng) {
    let factor = rng.pick(&[2, 8, 8, 16]);
    plan.devices.iter_mut().chain(&mut plan.spares).for_each(|size| *size *= factor);
    if is_free && rng.chance(7000) {
        plan.habits = Habits::flood(rng);
        plan.mode = Mode::WriteBack;
    }
}

/// Makes many writes at once on one object or two.
fn crowd(plan: &mut Plan, rng: &mut Rng) {
    plan.objects = rng.within(1, 2) as u32;
    plan.habits = Habits::crowd(rng);
}

/// Lets writers fill a small log while nothing is destaged.
fn fill(plan: &mut Plan, rng: &mut Rng) {
    plan.devices.iter_mut().chain(&mut plan.spares).for_each(|size| *size = 64 << 20);
    plan.habits = Habits::torrent(rng);
    plan.habits.slow_store = 1;
    // Overwriting dirty blocks takes no room for dirty blocks, but it takes space in the log.
    plan.habits.extent = rng.pick(&[4 << 20, 64 << 20]);
    plan.mode = Mode::WriteBack;
    plan.destage_after = Duration::from_secs(30);
    plan.volumes = 1;
    plan.troubles = vec![Trouble::Stuck];
    // The user records that fill the log come from the filler, not from the notaries.
    (plan.fills, plan.notes) = (true, false);
    plan.sessions = rng.within(1, 2) as u32;
}

/// Changes the policies of objects, mostly while writes turn a small cache over.
fn change_policies(plan: &mut Plan, rng: &mut Rng) {
    plan.policies = true;
    plan.objects = rng.within(2, 6) as u32;
    if rng.chance(7000) {
        plan.devices.iter_mut().chain(&mut plan.spares).for_each(|size| *size = 64 << 20);
        plan.habits = Habits::torrent(rng);
        plan.habits.extent = rng.pick(&[4 << 20, 16 << 20, 64 << 20]);
        if rng.chance(7000) {
            // Live blocks become clean, and leave the cache.
            plan.habits.slow_store = 1;
        }
        plan.mode = rng.pick(&[Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough]);
        plan.sessions = rng.within(1, 2) as u32;
    }
}

/// Lets clients make holes, reserve space and clone, among few objects.
fn punch(plan: &mut Plan, rng: &mut Rng) {
    plan.holes = true;
    plan.objects = rng.within(1, 4) as u32;
    plan.habits.extent = plan.habits.extent.min(4 << 20);
    plan.habits.operations = plan.habits.operations.min(600);
    for kind in [Kind::Hole, Kind::Allocate, Kind::Clone] {
        plan.habits.add(kind, rng.pick(&[0, 4, 12, 30]));
    }
    plan.habits.add(Kind::Hole, 6);
    if rng.chance(5000) {
        plan.mode = Mode::WriteBack;
        plan.destage_after = rng.pick(&[1, 30, 600]) * Duration::from_secs(1);
    }
    plan.sessions = rng.within(1, 4) as u32;
}

/// Lets a device hang, be lost, and be added again.
fn hang(plan: &mut Plan, rng: &mut Rng) {
    shorten(plan);
    plan.troubles = vec![Trouble::DeviceHang];
    plan.sessions = rng.within(1, 4) as u32;
    plan.deadline = rng.pick(&[500, 2000, 10_000]) * Duration::from_millis(1);
    plan.mode = Mode::WriteBack;
}

/// Makes sessions short, since there are to be many of them.
fn shorten(plan: &mut Plan) {
    plan.habits.extent = plan.habits.extent.min(4 << 20);
    plan.habits.operations = plan.habits.operations.min(300);
}

/// Lets devices vanish in turn. Restarts find any of them.
fn turn(plan: &mut Plan, rng: &mut Rng) {
    shorten(plan);
    plan.devices = vec![rng.pick(&[64 << 20, 96 << 20]); rng.pick(&[2, 2, 2, 3])];
    plan.victim = 0;
    plan.spares.clear();
    plan.habits.without(Kind::Drain);
    plan.habits.without(Kind::Add);
    plan.troubles = vec![Trouble::Turns];
    plan.sessions = rng.within(2, 6) as u32;
    plan.mode = Mode::WriteBack;
    plan.destage_after = rng.pick(&[0, 1, 30, 600]) * Duration::from_secs(1);
}
