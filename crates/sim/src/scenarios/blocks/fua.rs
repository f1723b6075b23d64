//! The price of a stability: a change waits for its own frames and syncs, and for no others.

use super::*;

#[test]
pub(in crate::scenarios) fn a_write_with_fua_is_durable_and_waits_for_no_other_write() {
    for seed in 0..4 {
        let mut blocks = Blocks::new(seed, true);
        let volume = blocks.open(None);
        let (store, theirs) = (blocks.world.shared.store.clone(), volume.clone());
        let client = async move {
            theirs.write_zeroes(8192, ZEROS_PAST_THE_LOG, false, Stability::Unstable).await.unwrap();
            // From here on each sync of the backing device fails.
            store.set_rates(Rates { sync_error: 10_000, ..Rates::default() });
            assert_eq!(theirs.write(0, &[7; 4096], Stability::Durable).await, Ok(()), "seed {seed}");
            assert_eq!(theirs.flush().await, Err(DiskError::Io), "seed {seed}: the zeros are not durable");
            store.set_rates(Rates::default());
        };
        assert_eq!(blocks.world.shared.executor.block_on(LIMIT, client), Ok(()));
        drop(volume);
        blocks.world.crash(Crash::PowerCut);
        let volume = blocks.open(None);
        assert_eq!(first_byte(&blocks.world, &volume, 0), Ok(7), "seed {seed}");
    }
}

#[test]
fn a_change_past_the_log_takes_one_frame() {
    let mut blocks = Blocks::new(1, true);
    let engine = blocks.world.start_through(Vec::new()).unwrap();
    let volume = Volume::new(&engine, UUID, blocks.device.clone(), None, false);
    let client = async move {
        volume.write(0, &[7; 4096], Stability::Durable).await.unwrap();
        let before = engine.counters().frames;
        for _ in 0..20 {
            volume.write_zeroes(8192, ZEROS_PAST_THE_LOG, false, Stability::Unstable).await.unwrap();
        }
        engine.counters().frames - before
    };
    // The record that older copies do not count has to be durable before the device changes. No other record is needed.
    assert_eq!(blocks.world.shared.executor.block_on(LIMIT, client), Ok(20));
}

#[test]
fn a_flush_with_nothing_to_make_durable_is_free() {
    for mode in [None, Some(Mode::WriteThrough)] {
        let mut blocks = Blocks::new(1, true);
        let engine = blocks.world.start_through(Vec::new()).unwrap();
        let volume = Volume::new(&engine, UUID, blocks.device.clone(), mode, false);
        let executor = blocks.world.shared.executor.clone();
        let client = async move {
            volume.write(0, &[7; 4096], Stability::Unstable).await.unwrap();
            volume.write_zeroes(8192, ZEROS_PAST_THE_LOG, false, Stability::Unstable).await.unwrap();
            let begun = executor.now();
            volume.flush().await.unwrap();
            assert!(executor.now() > begun, "{mode:?}: the first flush has changes to make durable");
            let (begun, frames) = (executor.now(), engine.counters().frames);
            for _ in 0..20 {
                volume.flush().await.unwrap();
            }
            // Every operation of a device takes time in this world.
            (executor.now() - begun, engine.counters().frames - frames)
        };
        let spent = blocks.world.shared.executor.block_on(LIMIT, client);
        assert_eq!(spent, Ok((Duration::ZERO, 0)), "{mode:?}");
    }
}
