//! Checks that nothing is answered or carried out before it is durable. The write that makes it durable is held back.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::disk::Operation;

/// Returns true for frames and headers, not for superblocks.
fn is_log(operation: Operation) -> bool {
    let last = (64 << 20) / 4096 - 1;
    matches!(operation, Operation::Write(block) if block > 0 && block < last)
}

/// Runs `act` beside all other tasks for a second; a device counts as late only after ten. The flag is set once `act`
/// has ended.
fn ends_at_once<F>(world: &mut World, engine: &Arc<Engine>, act: impl FnOnce(Client) -> F) -> Arc<AtomicBool>
where
    F: Future<Output = ()> + Send + 'static,
{
    let client = Client::new(&world.shared, engine, Allowed::default(), world.rng.fork());
    let (ended, acting) = (Arc::new(AtomicBool::new(false)), act(client));
    let done = ended.clone();
    let acting = async move {
        acting.await;
        done.store(true, Ordering::Relaxed);
    };
    world.shared.executor.start("client", Box::pin(acting));
    let executor = world.shared.executor.clone();
    let a_while = async move { forebay_engine::io::Clock::sleep(&executor, Duration::from_secs(1)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
    ended
}

/// Releases the held operations. Then the action must end, and everything must be right, also after a power cut.
fn ends_once_released(mut world: World, engine: Arc<Engine>, ended: &Arc<AtomicBool>) {
    assert!(!ended.load(Ordering::Relaxed), "it did not wait");
    world.disks.iter().for_each(|disk| disk.release());
    let ended = ended.clone();
    assert_eq!(until(&world, move || ended.load(Ordering::Relaxed)), Stop::Done);
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
    world.crash(Crash::Kill);
}

#[test]
pub(super) fn a_write_is_answered_once_its_own_frame_is_durable() {
    let mut world = world(1, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 20);
    world.disks[0].hold(is_log);
    let write = |mut client: Client| async move { client.write(1, 0, 4096, true).await };
    let ended = ends_at_once(&mut world, &engine, write);
    assert_eq!(world.disks[0].holds(), 1);
    ends_once_released(world, engine, &ended);
}

#[test]
pub(super) fn a_write_is_answered_once_the_survivor_says_durably_that_the_other_device_is_lost() {
    let mut world = world(2, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 20);
    world.disks[0].hold(|operation| operation.is_superblock(64 << 20));
    world.disks[1].vanish();
    let write = |mut client: Client| async move { client.write(1, 0, 4096, true).await };
    let ended = ends_at_once(&mut world, &engine, write);
    assert!(world.disks[0].holds() > 0, "nothing says so");
    ends_once_released(world, engine, &ended);
}

#[test]
pub(super) fn a_file_is_cut_once_the_record_of_that_is_durable() {
    let mut world = world(3, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 20);
    let key = world.shared.objects.lock().key(1).unwrap();
    let before = world.shared.store.size_of(&key);
    world.disks[0].hold(is_log);
    let truncate = |mut client: Client| async move { client.truncate(1, 5000).await };
    let ended = ends_at_once(&mut world, &engine, truncate);
    assert_eq!(world.disks[0].holds(), 1);
    assert_eq!(world.shared.store.size_of(&key), before, "after a crash it may never have been asked for");
    ends_once_released(world, engine, &ended);
}
