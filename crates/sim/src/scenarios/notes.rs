//! User records that fill the log while they cannot be released.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::io::Clock as _;

use super::*;
use crate::notes::let_go_slowly;

/// Clients that change names at the same time.
const WRITERS: u64 = 32;
/// More bytes than two devices of 64 MiB hold, if each byte is on both.
const MUCH: u64 = 80 << 20;

/// Starts a session in which the release of user records takes a `checkpoint`, and some records are kept or none.
fn start(world: &mut World, checkpoint: Duration, keeps: bool) -> Arc<Engine> {
    world.plan.notes = false;
    let engine = world.start_through(Vec::new()).unwrap();
    // From now on, the user records that recovery finds are compared.
    world.plan.notes = true;
    let letting_go = let_go_slowly(world.shared.clone(), engine.clone(), keeps, move || checkpoint);
    world.shared.executor.start("notes", Box::pin(letting_go));
    engine
}

/// Runs `write` `count` times in each of [`WRITERS`], one after another. Returns the time of the slowest run.
fn in_parallel<F>(world: &mut World, count: u32, write: impl Fn(&mut World) -> F) -> Result<Duration, Stop>
where
    F: FnMut() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + 'static,
{
    let (longest, left) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(WRITERS)));
    for _ in 0..WRITERS {
        let (mut write, longest, left) = (write(world), longest.clone(), left.clone());
        let executor = world.shared.executor.clone();
        let writing = async move {
            for _ in 0..count {
                let begun = executor.now();
                write().await;
                longest.fetch_max((executor.now() - begun).as_micros() as u64, Ordering::Relaxed);
            }
            left.fetch_sub(1, Ordering::Relaxed);
        };
        world.shared.executor.start("notary", Box::pin(writing));
    }
    match until(world, move || left.load(Ordering::Relaxed) == 0) {
        Stop::Done => Ok(Duration::from_micros(longest.load(Ordering::Relaxed))),
        stop => Err(stop),
    }
}

#[test]
fn while_notes_are_let_go_slowly_their_writers_slow_down_and_none_waits_for_the_end_of_it() {
    let mut world = world(7, 2);
    let engine = start(&mut world, Duration::from_secs(10), false);
    let longest = in_parallel(&mut world, 200, |_| {
        let engine = engine.clone();
        move || {
            let engine = engine.clone();
            Box::pin(async move {
                let (frame, _) = engine.note(&[7; 2000]).await.unwrap();
                engine.commit(frame).await.unwrap();
            })
        }
    });
    // The writers wrote several times the bytes that the log takes until user records have to be released.
    assert!(world.shared.executor.now() > Duration::from_secs(20), "they were faster than the log lets go");
    let longest = longest.unwrap();
    assert!(longest < Duration::from_secs(3), "one waited for {longest:?}");
}

#[test]
fn notes_that_are_needed_for_good_do_not_fill_the_log() {
    let mut world = world(3, 2);
    let engine = start(&mut world, Duration::from_millis(50), true);
    // This is more than the devices hold.
    let written = in_parallel(&mut world, 2000, |world| {
        let notary = Arc::new(world.notary(&engine));
        move || {
            let notary = notary.clone();
            Box::pin(async move { notary.write_one(true).await })
        }
    });
    assert!(written.is_ok(), "the log is full: {written:?}");
    write(&world, &engine, 0, 300);
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
}

#[test]
fn a_note_that_is_needed_for_good_is_carried_through_devices_that_are_full() {
    let mut world = world_with(0, 2, |plan| {
        plan.habits.extent = MUCH;
        plan.destage_after = Duration::from_millis(100);
    });
    // The task that releases user records is late each time: no writer can go on then.
    let engine = start(&mut world, Duration::from_secs(100), true);
    let notary = world.notary(&engine);
    let noting = async move {
        for _ in 0..16 {
            notary.write_one(true).await;
        }
    };
    assert_eq!(world.shared.executor.block_on(LIMIT, noting), Ok(()));
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        for offset in (0..MUCH).step_by(64 << 10) {
            client.write(1, offset, 64 << 10, true).await;
            client.read(1, offset * 7 % MUCH, 64 << 10).await;
        }
    });
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
}

#[test]
fn who_waits_for_notes_to_be_let_go_is_told_when_no_device_is_left() {
    let mut world = world(5, 2);
    world.plan.notes = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    let ended = Arc::new(AtomicU64::new(0));
    let (theirs, done) = (engine.clone(), ended.clone());
    let noting = async move {
        // No task releases any user record.
        while let Ok((frame, _)) = theirs.note(&[7; 2000]).await {
            let _ = theirs.commit(frame).await;
        }
        done.store(1, Ordering::Relaxed);
    };
    world.shared.executor.start("notary", Box::pin(noting));
    let executor = world.shared.executor.clone();
    let later = async move { executor.sleep(Duration::from_secs(1000)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, later), Ok(()));
    assert_eq!(ended.load(Ordering::Relaxed), 0);
    world.disks.iter().for_each(|disk| disk.vanish());
    let object = world.shared.objects.lock().object(1).unwrap();
    let reading = async move {
        for block in 0..100 {
            let _ = engine.read(&object, block * 4096, &mut [0; 4096]).await;
        }
        engine.active()
    };
    assert_eq!(world.shared.executor.block_on(LIMIT, reading), Ok(0));
    assert_eq!(until(&world, move || ended.load(Ordering::Relaxed) == 1), Stop::Done);
}

#[test]
fn a_state_of_more_than_the_share_of_notes_is_not_described_without_end() {
    /// Records that describe the state, of 4,000 bytes each. User records may take a quarter of the log: a little less.
    const STATE: usize = 1500;
    let mut world = world(9, 2);
    world.plan.notes = false;
    let engine = world.start_through(Vec::new()).unwrap();
    let (theirs, described) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    let count = described.clone();
    let describing = async move {
        while theirs.user_records_due().await.is_some() {
            let (mut first, mut last) = (None, 0);
            for _ in 0..STATE {
                let Ok(Some((frame, id))) = theirs.replace_user_records(&[7; 4000]).await else { return };
                first = first.or(Some(id));
                last = frame;
            }
            theirs.commit(last).await.unwrap();
            theirs.let_go_replaced(first.unwrap() - 1, STATE * 4000);
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    world.shared.executor.start("description", Box::pin(describing));
    let longest = in_parallel(&mut world, 200, |_| {
        let engine = engine.clone();
        move || {
            let engine = engine.clone();
            Box::pin(async move {
                let (frame, _) = engine.note(&[7; 2000]).await.unwrap();
                engine.commit(frame).await.unwrap();
            })
        }
    });
    let (longest, described) = (longest.unwrap(), described.load(Ordering::Relaxed));
    assert!(longest < Duration::from_secs(3), "a writer waited for {longest:?}");
    assert!((1..12).contains(&described), "the state was described {described} times");
}
