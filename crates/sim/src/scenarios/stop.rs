//! Clean stops while somebody is still at work, or cannot get on.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::io::Clock as _;

use super::*;

#[test]
fn who_notes_something_while_the_engine_stops_is_told_that_it_does() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        world.plan.notes = false;
        let engine = world.start_through(Vec::new()).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (theirs, done) = (engine.clone(), ended.clone());
        let noting = async move {
            while let Ok((frame, _)) = theirs.note(b"late").await
                && theirs.commit(frame).await.is_ok()
            {}
            done.store(true, Ordering::Relaxed);
        };
        world.shared.executor.start("notary", Box::pin(noting));
        let executor = world.shared.executor.clone();
        let later = async move { executor.sleep(Duration::from_micros(5000 + 37 * seed)).await };
        assert_eq!(world.shared.executor.block_on(LIMIT, later), Ok(()));
        assert_eq!(world.close(&engine), Ok(()));
        assert_eq!(until(&world, move || ended.load(Ordering::Relaxed)), Stop::Done, "seed {seed}");
    }
}

#[test]
fn a_stop_ends_though_the_log_is_full_of_what_is_not_let_go() {
    for seed in 0..4 {
        let mut world = world(seed, 2);
        world.plan.notes = false;
        let engine = world.start_through(Vec::new()).unwrap();
        let (theirs, executor) = (engine.clone(), world.shared.executor.clone());
        let noting = async move {
            // Nobody lets go of any.
            while theirs.counters().log_waits == 0 {
                match theirs.try_note(&[7; 4000]) {
                    Ok(Some((frame, _))) => theirs.commit(frame).await.unwrap(),
                    noted => executor.sleep(Duration::from_millis(noted.is_ok().into())).await,
                }
            }
        };
        assert_eq!(world.shared.executor.block_on(LIMIT, noting), Ok(()));
        assert_eq!(world.close(&engine), Ok(()));
    }
}
