use forebay_engine::buffer::Buffer;
use forebay_engine::io::{Backing, BackingResult};

use super::*;

const LIMIT: Duration = Duration::from_secs(600);

fn store(seed: u64) -> (Executor, Store, Key) {
    let mut rng = Rng::new(seed);
    let executor = Executor::new(rng.fork());
    let store = Store::new(&executor, 1 << 20, rng, &Arc::default());
    let key = Key::new(b"file").unwrap();
    store.create(&key, Content::default());
    (executor, store, key)
}

fn write(executor: &Executor, store: &Store, key: &Key, offset: u64, data: &[u8]) -> BackingResult<()> {
    let mut buffer = Buffer::zeroed(data.len().div_ceil(BLOCK));
    buffer[..data.len()].copy_from_slice(data);
    let slice = Slice::new(Arc::new(buffer), 0..data.len());
    executor.block_on(LIMIT, store.write(key, offset, slice)).unwrap()
}

fn bytes(content: &Content) -> Vec<u8> {
    let mut bytes = vec![0; content.size as usize];
    content.read(0, &mut bytes);
    bytes
}

#[test]
fn only_a_successful_sync_makes_durable() {
    let (executor, store, key) = store(1);
    write(&executor, &store, &key, 10, b"abc").unwrap();
    assert_eq!(store.durable(&key).unwrap().size, 0);
    assert_eq!(executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap(), [Ok(())]);
    store.power_cut();
    assert_eq!(bytes(&store.current(&key).unwrap()), b"\0\0\0\0\0\0\0\0\0\0abc");
}

#[test]
fn a_failed_sync_loses_pages_that_a_later_one_does_not_bring_back() {
    let mut lost = 0;
    for seed in 0..20 {
        let (executor, store, key) = store(seed);
        write(&executor, &store, &key, 0, b"abc").unwrap();
        store.set_rates(Rates { sync_error: 10_000, ..Rates::default() });
        assert!(executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap()[0].is_err());
        store.set_rates(Rates::default());
        assert_eq!(executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap(), [Ok(())]);
        assert_eq!(bytes(&store.current(&key).unwrap()), b"abc", "reads go on seeing them");
        store.power_cut();
        lost += usize::from(bytes(&store.current(&key).unwrap()) == b"\0\0\0");
    }
    assert!((5..20).contains(&lost));
}

#[test]
fn a_cut_never_keeps_more_than_was_written_and_what_a_cut_off_end_had() {
    for seed in 0..100 {
        let (executor, store, key) = store(seed);
        write(&executor, &store, &key, 0, &[1; 5000]).unwrap();
        executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap();
        executor.block_on(LIMIT, store.truncate(&key, 100)).unwrap().unwrap();
        executor.block_on(LIMIT, store.truncate(&key, 6000)).unwrap().unwrap();
        store.power_cut();
        let content = store.current(&key).unwrap();
        let ones = bytes(&content).iter().filter(|byte| **byte == 1).count();
        assert_eq!(ones, if content.size == 5000 { 5000 } else { 100 });
    }
}

#[test]
fn space_is_limited_but_overwriting_needs_none() {
    let (executor, store, key) = store(1);
    write(&executor, &store, &key, 0, &[1; 8192]).unwrap();
    store.set_free(4096);
    assert_eq!(write(&executor, &store, &key, 4096, &[2; 8192]), Ok(()));
    assert_eq!(write(&executor, &store, &key, 12_288, b"x"), Err(BackingError::NoSpace));
    assert_eq!(write(&executor, &store, &key, 0, &[3; 12_288]), Ok(()));
}
