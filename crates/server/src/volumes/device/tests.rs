use forebay_runtime::block_on;

use super::*;

fn device(dir: &Path, contents: &[u8]) -> DeviceFile {
    let path = dir.join("image");
    std::fs::write(&path, contents).unwrap();
    DeviceFile::open(&path, false, false).unwrap()
}

fn get(device: &DeviceFile, blocks: usize) -> Vec<u8> {
    let (buffer, read) = block_on(device.read(0, Buffer::zeroed(blocks)));
    buffer[..read.unwrap()].to_vec()
}

#[test]
fn unaligned_writes_leave_the_bytes_around_them() {
    let dir = tempfile::tempdir_in(".").unwrap();
    for size in [5 * BLOCK, 5 * BLOCK + 512] {
        let mut expected = vec![7; size];
        let device = device(dir.path(), &expected);
        for (offset, len) in [(0, 1), (511, 2), (4095, 2), (5000, 9000), (size - 3, 3)] {
            let data = Slice::new(Arc::new(Buffer::from_bytes(&vec![9; len])), 0..len);
            block_on(device.write(offset as u64, data)).unwrap();
            expected[offset..offset + len].fill(9);
        }
        block_on(device.sync()).unwrap();
        assert!(get(&device, 6) == expected && std::fs::read(dir.path().join("image")).unwrap() == expected);
        let beyond = Slice::new(Arc::new(Buffer::from_bytes(&[1; 2])), 0..2);
        assert_eq!(block_on(device.write(size as u64 - 1, beyond)), Err(BackingError::NoSpace));
        assert_eq!(device.measure().unwrap(), size as u64, "a write never makes it longer");
    }
}

#[test]
fn a_size_that_direct_writes_would_pass_is_not_taken_over() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let device = device(dir.path(), &[7; 2 * BLOCK]);
    let path = dir.path().join("image");
    let lengthen =
        |size: usize| File::options().write(true).open(&path).unwrap().set_len(size as u64).unwrap();
    let length = || path.metadata().unwrap().len() as usize;
    let odd = 2 * BLOCK + if device.open.align > 1 { 512 } else { 100 };
    lengthen(odd);
    assert!(device.measure().unwrap_err().to_string().contains("not a multiple"));
    let end = Slice::new(Arc::new(Buffer::from_bytes(&[9])), 0..1);
    assert_eq!(block_on(device.write(odd as u64 - 1, end.clone())), Err(BackingError::NoSpace));
    block_on(device.write(2 * BLOCK as u64 - 1, end)).unwrap();
    assert_eq!((device.size(), length()), (2 * BLOCK as u64, odd), "neither has changed");
    assert!(device.grow(2 * BLOCK as u64).is_err() && length() == odd, "the file is not cut");
    device.grow(3 * BLOCK as u64).unwrap();
    lengthen(5 * BLOCK);
    assert_eq!((device.measure().unwrap(), length()), (5 * BLOCK as u64, 5 * BLOCK));
}

#[test]
fn zeroed_and_discarded_ranges_read_as_zeros_and_the_rest_stays() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let device = device(dir.path(), &[7; 8 * BLOCK]);
    block_on(device.write_zeroes(BLOCK as u64, BLOCK as u64, true)).unwrap();
    block_on(device.write_zeroes(3 * BLOCK as u64, BLOCK as u64, false)).unwrap();
    block_on(device.discard(5 * BLOCK as u64, BLOCK as u64)).unwrap();
    let zeroed = |block: usize| get(&device, 8)[block * BLOCK..][..BLOCK].iter().all(|byte| *byte == 0);
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(zeroed), [false, true, false, true, false, true, false, false]);
    let allocated = block_on(device.allocated(0, 8 * BLOCK as u64, 9)).unwrap();
    assert!(allocated.iter().all(|part| part.start < part.end) && !allocated.is_empty());
}

#[test]
fn a_device_in_use_is_not_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = device(dir.path(), &[0; BLOCK]);
    let second = DeviceFile::open(&dir.path().join("image"), true, false);
    assert!(second.err().unwrap().contains("in use"));
    drop(first);
    // The threads of the first opening end with it, and hold nothing.
    assert!(DeviceFile::open(&dir.path().join("image"), true, false).is_ok());
}

#[test]
fn no_more_parts_are_looked_for_than_are_wanted() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let device = device(dir.path(), &[]);
    let (block, parts) = (BLOCK as u64, 64);
    device.open.file.set_len(2 * parts * block).unwrap();
    device.measure().unwrap();
    for n in 0..parts {
        let data = Slice::new(Arc::new(Buffer::from_bytes(&[7; BLOCK])), 0..BLOCK);
        block_on(device.write(2 * n * block, data)).unwrap();
    }
    let found = |offset, most| {
        block_on(device.allocated(offset, device.size() - offset, most))
            .unwrap()
            .iter()
            .map(|part| part.start / block)
            .collect::<Vec<_>>()
    };
    assert_eq!(found(0, 3), [0, 2, 4]);
    assert_eq!(found(3 * block, 2), [4, 6]);
    assert_eq!(found(0, 1000).len() as u64, parts);
}

#[test]
fn zeros_are_fast_where_the_device_has_an_operation_that_writes_none() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let device = device(dir.path(), &[7; BLOCK]);
    assert!(block_on(device.zeroes_fast()));
    assert_eq!((get(&device, 1), device.measure().unwrap()), (vec![7; BLOCK], BLOCK as u64));
    let limits = |zeroes: &str, discard: &str, rotational: &str| {
        let limits =
            [("write_zeroes_max_bytes", zeroes), ("discard_max_bytes", discard), ("rotational", rotational)];
        limits.iter().for_each(|(name, value)| std::fs::write(dir.path().join(name), value).unwrap());
        zeroes_fast(dir.path())
    };
    assert!(!limits("0\n", "0\n", "1\n"), "a disk that gets zeros as data");
    assert!(!limits("0\n", "4096\n", "0\n"));
    assert!(!limits("4096\n", "0\n", "1\n"), "a disk that writes the zeros itself");
    assert!(limits("4096\n", "4096\n", "1\n"), "an array with thin provisioning");
    assert!(limits("4096\n", "0\n", "0\n"));
}
