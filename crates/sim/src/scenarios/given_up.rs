//! Tests of failing changes of the pool. A device that is left then carries no epoch that is in use, and is not used.

use super::*;

/// Kills the second device and lets a superblock write on the first one fail, while clients go on writing. Then the
/// power fails, and the machine starts again.
fn lose_both(seed: u64, spare: bool) -> Result<(), String> {
    let mut world = world(seed, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 20);
    let size = 64 << 20;
    let survivor = world.disks[0].clone();
    survivor.fail_once(move |operation| operation.is_superblock(size));
    if spare {
        // The new device's own superblocks are written. The failing write is on the device that was left alone.
        world.disks[1].vanish();
        let spare = world.shared.spares.lock()[0].clone();
        world.shared.joined.lock().push(spare.clone());
        let theirs = engine.clone();
        let added = async move { theirs.add_device(Arc::new(spare), false).await.is_ok() };
        assert_eq!(world.shared.executor.block_on(LIMIT, added), Ok(false));
    } else {
        world.disks[1].vanish();
    }
    let allowed = Allowed { no_device: true, ..Allowed::default() };
    with_client(&world, &engine, allowed, |mut client| async move {
        for block in 0..30 {
            client.write(1, block * 4096, 4096, true).await;
        }
    });
    let used = engine.active();
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new())?;
    let looked = world.look_at_all(&engine);
    let failed = world.shared.failure.lock().clone();
    world.crash(Crash::Kill);
    failed.map_or(looked.map_err(|stop| format!("{stop:?}")), Err)?;
    if used == 0 { Ok(()) } else { Err("a device is used that carries no epoch which is in use".to_owned()) }
}

#[test]
fn nothing_is_acknowledged_where_the_loss_of_a_device_cannot_be_told_to_the_other_one() {
    for spare in [false, true] {
        let failed: Vec<_> = (0..10).filter_map(|seed| Some((seed, lose_both(seed, spare).err()?))).collect();
        assert!(failed.is_empty(), "{} of 10: {:?}", failed.len(), failed.first());
    }
}
