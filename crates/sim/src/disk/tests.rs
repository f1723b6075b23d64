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
