//! Joined worlds in which one fault happens at a chosen place.

use std::time::Duration;

use forebay_engine::Mode;
use forebay_engine::io::Clock as _;

use super::check::Crashed;
use super::harness::Answer;
use super::world::{LIMIT, World};
use crate::namespace::request::{How, Place, Request};
use crate::namespace::volume::{Refused, Volume};
use crate::world::Crash;

/// The time in which no commit of the journal ends. It is longer than any task waits for one.
const HANG: Duration = Duration::from_secs(15);
/// The time between two attempts at a checkpoint.
const EVERY: Duration = Duration::from_secs(4);

/// Removes a file after a late checkpoint.
///
/// A new file gets a size while the journal does not answer. The commit of the checkpoint before that is late, and the
/// commit of the change itself ends well. Once the journal answers, a client removes the file. The power fails `steps`
/// steps later. The file system may have the removal, and the log not.
fn remove_after_late_checkpoint(seed: u64, steps: u64) -> Result<(), String> {
    let mut world = World::new(seed, false);
    world.plan.mode = Mode::WriteBack;
    (world.plan.loses, world.plan.checkpoint_every) = (false, EVERY);
    {
        let mut model = world.shared.model.lock();
        (model.logged, model.lossy) = (true, false);
    }
    let harness = world.start(0)?;
    let (client, shared, theirs) = (world.client(&harness), world.shared.clone(), harness.clone());
    let work = async move {
        let place: Place = (Volume::root(), b"fresh".as_slice().into());
        let xid = || shared.calls.lock().next();
        let (made, _) = theirs.call(xid(), Request::Create(place.clone(), How::Guarded)).await;
        let Answer::Done { made: Some(file), .. } = made else { panic!("{made:?}") };
        let number = shared.number(file).unwrap();
        shared.store.hang(HANG);
        client.resize(file, number, 5000).await;
        while theirs.is_failing() {
            shared.executor.sleep(Duration::from_micros(20)).await;
        }
        shared.executor.crash_in(Some(steps));
        let (removed, _) = theirs.call(xid(), Request::Remove(place)).await;
        assert_ne!(removed, Answer::Refused(Refused::Busy));
        shared.forget(file);
        shared.executor.sleep(LIMIT).await;
    };
    if let Err(stop) = world.shared.executor.block_on(2 * LIMIT, work) {
        world.stopped(stop)?;
    }
    world.shared.executor.crash_in(None);
    world.crashed = Some(Crashed::new(&mut world, harness.ended()));
    drop(harness);
    world.crash(Crash::PowerCut);
    let harness = world.start(0)?;
    world.look(&harness).map_err(|stop| format!("a look at everything does not end: {stop:?}"))?;
    let failed = world.failure();
    drop(harness);
    world.shared.executor.reset();
    failed
}

#[test]
pub(crate) fn a_size_that_was_answered_survives_a_removal_that_the_log_lost() {
    let cases = (0..240).map(|case| (case, 1 + case % 12));
    let failed: Vec<_> = cases
        .filter_map(|(seed, steps)| Some((seed, remove_after_late_checkpoint(seed, steps).err()?)))
        .collect();
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
}
