use forebay_engine::buffer::Buffer;
use forebay_engine::io::{Device, DeviceError, Durability};

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn disk(seed: u64) -> (Executor, Disk) {
    let mut rng = Rng::new(seed);
    let executor = Executor::new(rng.fork());
    let disk = Disk::new(&executor, "a", 1 << 20, rng, &Arc::default());
    (executor, disk)
}

fn write(executor: &Executor, disk: &Disk, block: u64, byte: u8, durability: Durability) {
    let data = Buffer::from_bytes(&[byte; BLOCK]).into();
    let done = executor.block_on(LIMIT, disk.write(block * BLOCK as u64, data, durability));
    assert_eq!(done, Ok(Ok(())));
}

fn read(executor: &Executor, disk: &Disk, block: u64) -> Result<Vec<u8>, DeviceError> {
    let (buffer, result) =
        executor.block_on(LIMIT, disk.read(block * BLOCK as u64, Buffer::zeroed(1))).unwrap();
    result.map(|()| buffer.to_vec())
}

#[test]
fn a_cut_keeps_what_was_flushed_and_any_subset_of_the_rest() {
    let mut seen = [false; 3];
    for seed in 0..200 {
        let (executor, disk) = disk(seed);
        write(&executor, &disk, 0, 1, Durability::Later);
        assert_eq!(executor.block_on(LIMIT, disk.flush()), Ok(Ok(())));
        write(&executor, &disk, 1, 2, Durability::Later);
        write(&executor, &disk, 2, 3, Durability::Later);
        assert_eq!(read(&executor, &disk, 1).unwrap(), [2; BLOCK], "the cache is read");
        disk.power_cut();
        assert_eq!(read(&executor, &disk, 0).unwrap(), [1; BLOCK]);
        let kept = read(&executor, &disk, 1).unwrap() == [2; BLOCK];
        let other = read(&executor, &disk, 2).unwrap() == [3; BLOCK];
        seen[usize::from(kept) + usize::from(other)] = true;
    }
    assert_eq!(seen, [true; 3]);
}

#[test]
fn a_durable_write_is_durable_with_all_before_it_unless_flushes_are_dropped() {
    for seed in 0..50 {
        let (executor, disk) = disk(seed);
        disk.set_rates(Rates { drop_flushes: seed >= 25, ..Rates::default() });
        write(&executor, &disk, 0, 1, Durability::Later);
        write(&executor, &disk, 1, 2, Durability::Now);
        let durable = disk.state.lock().cached.is_empty();
        assert_eq!(durable, seed < 25);
    }
}

#[test]
fn a_latent_error_ends_with_a_rewrite() {
    let (executor, disk) = disk(1);
    write(&executor, &disk, 0, 1, Durability::Now);
    disk.set_rates(Rates { latent_lasting: 10_000, ..Rates::default() });
    assert_eq!(read(&executor, &disk, 0), Err(DeviceError::Io));
    disk.set_rates(Rates::default());
    assert_eq!(read(&executor, &disk, 0), Err(DeviceError::Io));
    write(&executor, &disk, 0, 2, Durability::Now);
    assert_eq!(read(&executor, &disk, 0).unwrap(), [2; BLOCK]);
}

#[test]
fn rot_changes_one_bit() {
    let (executor, disk) = disk(1);
    write(&executor, &disk, 3, 1, Durability::Now);
    disk.rot_at(3 * BLOCK as u64);
    let differs = read(&executor, &disk, 3).unwrap().iter().map(|byte| (byte ^ 1).count_ones()).sum::<u32>();
    assert_eq!(differs, 1);
}

/// Writes the head block of a frame, as `durable` as flushes are. The frame has one block, in slot 1 of the segment
/// that begins with block 0.
fn write_frame(executor: &Executor, disk: &Disk, frame: u64) {
    let mut bytes = [0; BLOCK];
    bytes[..8].copy_from_slice(b"FBYFRAME");
    (bytes[18], bytes[56], bytes[72], bytes[96]) = (1, frame as u8, 1, 1);
    let data = Buffer::from_bytes(&bytes).into();
    let done = executor.block_on(LIMIT, disk.write(BLOCK as u64, data, Durability::Now));
    assert_eq!(done, Ok(Ok(())));
}

#[test]
fn a_frame_is_destroyed_when_faults_have_taken_every_copy_that_counts() {
    for seed in 0..20 {
        let (executor, first) = disk(seed);
        let other = Disk::new(&executor, "b", 1 << 20, Rng::new(seed), &Arc::default());
        let both = [first.clone(), other.clone()];
        both.iter().for_each(|disk| write_frame(&executor, disk, 5));
        first.power_cut();
        assert_eq!(first_destroyed(&both, &both), None);
        first.rot_at(BLOCK as u64);
        assert_eq!(first_destroyed(&both, &both), None, "the other one has it");
        assert_eq!(first_destroyed(&both, &both[..1]), Some(5), "which does not count");
        other.rot_at(0);
        assert_eq!(first_destroyed(&both, &both), Some(5), "nobody finds it without its segment's header");
        write_frame(&executor, &first, 5);
        assert_eq!(first_destroyed(&both, &both), None, "written again");
    }
}

#[test]
fn what_a_dropped_flush_promised_and_a_power_cut_took_is_known() {
    let mut seen = [false; 2];
    for seed in 0..50 {
        let (executor, disk) = disk(seed);
        disk.set_rates(Rates { drop_flushes: true, ..Rates::default() });
        write_frame(&executor, &disk, 5);
        disk.kill();
        let all = std::slice::from_ref(&disk);
        assert_eq!(first_destroyed(all, all), None, "the device's cache is still there");
        disk.power_cut();
        let there =
            read(&executor, &disk, 1).unwrap()[56] == 5 && read(&executor, &disk, 1).unwrap()[96] == 1;
        assert_eq!(first_destroyed(all, all), (!there).then_some(5));
        seen[usize::from(there)] = true;
    }
    assert_eq!(seen, [true; 2]);
}
