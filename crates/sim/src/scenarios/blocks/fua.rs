//! The price of a stability: a change waits for its own frames and syncs, and for no others.

use super::*;

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
