//! Exhaustive small cases: all workloads of a few operations, with a crash at every step. No device, or either one, is
//! lost, and a second crash comes inside the recovery. Most crash bugs need no more than that (CrashMonkey, OSDI'18).

use std::time::Duration;

use forebay_engine::Mode;

use crate::client::Client;
use crate::executor::Executor;
use crate::notes::Notary;
use crate::plan::{Plan, Trouble};
use crate::rng::{Rng, mix};
use crate::world::{Crash, World};

/// One step of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A stable write of the first block.
    Whole,
    /// A stable write of bytes within the first block.
    Bytes,
    /// A stable write across two blocks.
    Across,
    /// An unstable write of the first block.
    Unstable,
    /// A commit.
    Commit,
    /// A write beyond the end.
    Beyond,
    /// A truncation within the first block.
    Cut,
    /// A truncation that moves the end up.
    Grow,
    /// A flush, which destages everything.
    Flush,
    /// A stable user record.
    UserRecord,
}

/// Every action.
pub const ACTIONS: [Action; 10] = [
    Action::Whole,
    Action::Bytes,
    Action::Across,
    Action::Unstable,
    Action::Commit,
    Action::Beyond,
    Action::Cut,
    Action::Grow,
    Action::Flush,
    Action::UserRecord,
];

/// The device that is lost when the machine starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No device.
    None,
    /// The first or the second device.
    Device(usize),
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The actions of the client.
    pub actions: Vec<Action>,
    /// The step at which the actions end; 0: after the last one.
    pub crash: u64,
    /// The kind of the crash.
    pub how: Crash,
    /// The device lost in the crash.
    pub loss: Loss,
    /// The step of recovery at which the power fails again; 0 for never.
    pub again: u64,
}

/// Returns all workloads of 1 to `most` actions.
pub fn workloads(most: u32) -> Vec<Vec<Action>> {
    let mut all: Vec<Vec<Action>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..most {
        let longer: Vec<_> = all[from..]
            .iter()
            .flat_map(|short| ACTIONS.iter().map(|action| [short.as_slice(), &[*action]].concat()))
            .collect();
        from = all.len();
        all.extend(longer);
    }
    all.remove(0);
    all
}

/// Returns the plan of every case: two devices, one object, write-back mode, and no faults except the loss of a
/// device if the case `loses` one.
fn plan(rng: &mut Rng, loses: bool) -> Plan {
    let mut plan = Plan::new(rng);
    plan.devices = vec![64 << 20; 2];
    plan.spares.clear();
    plan.victim = 0;
    // The trouble is planned only for the checks that follow from it. The case itself takes the device away.
    plan.troubles = if loses { vec![Trouble::Missing] } else { Vec::new() };
    plan.disaster = None;
    plan.mode = Mode::WriteBack;
    plan.ram = 1 << 20;
    plan.destage_after = Duration::from_secs(5);
    plan.objects = 1;
    plan.volumes = 1;
    plan.sessions = 0;
    plan.notes = true;
    plan.habits.modes.clear();
    plan.habits.extent = 8192;
    plan
}

/// The steps that change the state that a crash leaves. A crash at another step leaves the state of the next of these
/// steps, and less has been acknowledged by then.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Steps of the actions.
    pub work: Vec<u64>,
    /// Steps of the recovery after them.
    pub recovery: Vec<u64>,
}

impl Case {
    /// Runs the case.
    pub fn run(&self, seed: u64) -> Result<Steps, String> {
        // All crashes of a workload share the seed, since they share the steps.
        let mut rng = Rng::new(seed);
        let plan = plan(&mut rng, self.loss != Loss::None);
        let mut world = World::new(plan, rng, false);
        let result = self.steps(&mut world);
        let failure = world.outcome(result.as_ref().err().cloned()).failure;
        match failure {
            Some(failure) => Err(format!("{self:?}: {failure}")),
            None => result,
        }
    }

    /// Runs the case and checks the result. Returns the steps of the work and of the recovery that change what a
    /// crash leaves, as places for the crashes of further cases.
    fn steps(&self, world: &mut World) -> Result<Steps, String> {
        let engine = world.start_through(Vec::new())?;
        let marks = Marks::of(&world.shared.executor);
        world.shared.executor.crash_in((self.crash > 0).then_some(self.crash));
        let rng = world.rng.clone();
        let client = Client::new(&world.shared, &engine, Default::default(), rng);
        let (actions, notary) = (self.actions.clone(), world.notary(&engine));
        let done = world.shared.executor.block_on(Duration::from_secs(3600), act(client, notary, actions));
        if let Err(stop) = done
            && let Some(failure) = world.stopped(stop)
        {
            return Err(failure);
        }
        let work = marks.taken();
        drop(engine);
        world.crash(self.how);
        if let Loss::Device(lost) = self.loss {
            world.disks[lost].vanish();
        }
        let marks = Marks::of(&world.shared.executor);
        let again = if self.again > 0 { vec![self.again] } else { Vec::new() };
        let engine = world.start_through(again)?;
        let recovery = marks.taken();
        let checked = world.look_at_all(&engine).and_then(|()| world.drain(&engine));
        let checked = checked.and_then(|()| world.close(&engine));
        match checked.map_err(|stop| world.stopped(stop).unwrap_or_default()) {
            Err(failure) => Err(failure),
            Ok(()) => Ok(Steps { work, recovery }),
        }
    }
}

/// Records marked steps from `before` on.
struct Marks {
    executor: Executor,
    before: u64,
}

impl Marks {
    /// Starts to record the steps that change what a crash leaves.
    fn of(executor: &Executor) -> Self {
        executor.record_marks();
        Marks { executor: executor.clone(), before: executor.steps() }
    }

    fn taken(self) -> Vec<u64> {
        self.executor.take_marks().into_iter().map(|step| step - self.before).collect()
    }
}

/// Carries out the actions of a case, one after another, on object 1.
async fn act(mut client: Client, notary: Notary, actions: Vec<Action>) {
    for action in actions {
        match action {
            Action::Whole => client.write(1, 0, 4096, true).await,
            Action::Bytes => client.write(1, 1000, 100, true).await,
            Action::Across => client.write(1, 3000, 3000, true).await,
            Action::Unstable => client.write(1, 0, 4096, false).await,
            Action::Commit => client.commit(1).await,
            Action::Beyond => client.write(1, 12_000, 500, true).await,
            Action::Cut => client.truncate(1, 100).await,
            Action::Grow => client.truncate(1, 9000).await,
            Action::Flush => client.flush().await,
            Action::UserRecord => notary.write_one(true).await,
        }
    }
}

/// Runs every case of a workload, with every `stride`th crash of each kind. Returns the number of cases.
pub fn all_of(actions: &[Action], stride: usize) -> Result<u64, String> {
    let seed = actions.iter().fold(1, |seed, action| mix(seed ^ *action as u64));
    let mut count = 0;
    let mut run = |crash, how, loss, again| {
        count += 1;
        Case { actions: actions.to_vec(), crash, how, loss, again }.run(seed)
    };
    let work = run(0, Crash::Kill, Loss::None, 0)?.work;
    let ends = std::iter::once(0).chain(work);
    // A power cut usually leaves less than a kill, so only one end in three is a kill.
    let ends = ends.enumerate().flat_map(|(at, end)| {
        let kill = at.is_multiple_of(3).then_some((end, Crash::Kill));
        std::iter::once((end, Crash::PowerCut)).chain(kill)
    });
    let ends: Vec<_> = ends.enumerate().step_by(stride).collect();
    for loss in [Loss::None, Loss::Device(0), Loss::Device(1)] {
        for &(at, (crash, how)) in &ends {
            let recovery = run(crash, how, loss, 0)?.recovery;
            // The first crash shifts the second one, so that a stride does not always fall on equal steps.
            for again in recovery.into_iter().skip(at / stride % stride).step_by(stride) {
                run(crash, how, loss, again)?;
            }
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_all_there() {
        assert_eq!(workloads(3).len(), 10 + 100 + 1000);
    }

    #[test]
    fn a_write_survives_crashes_anywhere() {
        assert!(all_of(&[Action::Bytes, Action::Cut], 4).unwrap() > 20);
    }

    #[test]
    fn a_note_survives_crashes_anywhere() {
        assert!(all_of(&[Action::UserRecord, Action::Bytes], 4).unwrap() > 20);
    }
}
