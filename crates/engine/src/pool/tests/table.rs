//! One test for each row of the table in `pool/open.rs`.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

/// Returns the refusal, and checks that nothing was written.
fn refused(rams: &[Arc<Ram>]) -> PoolError {
    let before: Vec<_> = rams.iter().map(|ram| ram.image()).collect();
    let error = open(rams).expect_err("refused");
    let after: Vec<_> = rams.iter().map(|ram| ram.image()).collect();
    assert!(before == after, "a refusal writes nothing");
    error
}

/// Writes the changed superblock to both places.
fn forge(ram: &Ram, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = superblock(ram);
    change(&mut superblock);
    ram.poke(0, &superblock.encode());
    ram.poke(ram.size() - BLOCK as u64, &superblock.encode());
}

/// Writes bytes to one place in both superblocks, and seals them.
fn forge_bytes(ram: &Ram, at: usize, bytes: &[u8]) {
    let mut block = superblock(ram).encode();
    block[at..at + bytes.len()].copy_from_slice(bytes);
    crate::format::seal(*b"FOREBAY\0", &mut block);
    ram.poke(0, &block);
    ram.poke(ram.size() - BLOCK as u64, &block);
}

fn name(ram: &Ram) -> String {
    ram.name().to_owned()
}

#[test]
fn o1_no_devices_or_too_many() {
    assert_eq!(refused(&[]), PoolError::NoDevices);
    let many: Vec<_> = (0..17).map(|_| Ram::new("x", 64 * MIB)).collect();
    assert_eq!(refused(&many), PoolError::TooManyDevices(17));
}

#[test]
fn o2_newer_format() {
    let rams @ [_, b] = &used();
    forge_bytes(b, 16, &[2, 0]);
    assert_eq!(refused(rams), PoolError::Newer { device: name(b), version: 2 });
}

#[test]
fn o3_unknown_features() {
    let rams @ [_, b] = &used();
    forge_bytes(b, 24, &[16]);
    assert_eq!(refused(rams), PoolError::UnknownFeatures { device: name(b), bits: 16 });
}

#[test]
fn o4_foreign() {
    let [a] = used();
    let b = Ram::new("b", 64 * MIB);
    b.poke(0, b"XFSB");
    let expected = PoolError::Foreign { device: name(&b), what: "an XFS file system" };
    assert_eq!(refused(&[a, b]), expected);
}

#[test]
fn o5_all_blank() {
    assert_eq!(refused(&blank::<2>()), PoolError::NoPool);
}

#[test]
fn o5_an_unfinished_format_is_as_good_as_blank() {
    let rams @ [a, b] = &blank();
    b.poke(0, b"FOREBAY\0");
    assert_eq!(refused(rams), PoolError::NoPool);
    assert_eq!(refused(std::slice::from_ref(b)), PoolError::NoPool);
    a.poke(0, b"FOREBAY\0 and no more");
    assert_eq!(refused(rams), PoolError::Damaged(name(a)));
}

#[test]
fn o6_no_good_superblock() {
    let rams @ [a, _] = &used();
    for offset in [100, 64 * MIB - 100] {
        a.poke(offset, &[0xff]);
    }
    assert_eq!(refused(std::slice::from_ref(a)), PoolError::Damaged(name(a)));
    a.gone.store(true, Relaxed);
    let expected = PoolError::Unreadable { device: name(a), error: DeviceError::Gone };
    assert_eq!(refused(std::slice::from_ref(a)), expected);
    assert!(open(rams).is_ok(), "b is a good one");
}

#[test]
fn o7_two_pools() {
    let [a] = used();
    let b = Ram::new("b", 64 * MIB);
    let mut other = block_on(Pool::format(vec![b.clone()], &mut random(100), false)).unwrap();
    block_on(other.open_epoch()).unwrap();
    let (first_pool, second_pool) = (Uuid(1), Uuid(100));
    let expected = PoolError::OtherPool { first: name(&a), first_pool, second: name(&b), second_pool };
    assert_eq!(refused(&[a, b]), expected);
}

#[test]
fn o8_duplicate() {
    let [a, b] = used();
    let expected = PoolError::Duplicate { first: name(&a), second: name(&a) };
    assert_eq!(refused(&[a.clone(), b.clone(), a.clone()]), expected);
    let copy = b.copy("copy of b", b.size());
    assert_eq!(
        refused(&[a, b.clone(), copy.clone()]),
        PoolError::Duplicate { first: name(&b), second: name(&copy) }
    );
}

#[test]
fn o9_interrupted_formatting() {
    let [a, _] = &blank::<2>();
    format(std::slice::from_ref(a));
    let b = Ram::new("b", 64 * MIB);
    let rams = [a.clone(), b.clone()];
    assert_eq!(refused(&rams), PoolError::Unfinished(name(a)), "a blank device");
    b.poke(0, b"FOREBAY\0 and no more");
    assert_eq!(refused(&rams), PoolError::Unfinished(name(a)), "a torn superblock");
    b.poke(0, &[0; 30]);
    b.poke(0, b"FOREBAY\0");
    assert_eq!(refused(&rams), PoolError::Unfinished(name(a)), "an unfinished format");
    block_on(Pool::format(vec![b], &mut random(100), false)).unwrap();
    assert!(matches!(refused(&rams), PoolError::Unfinished(_)), "an earlier attempt's superblock");
    block_on(Pool::format(devices(&rams), &mut random(200), false)).unwrap();
    assert_eq!(present(&open(&rams).unwrap()), ["a", "b"], "it can be done again");
}

#[test]
fn o10_blank_beside_a_member() {
    let [a] = used();
    let b = Ram::new("b", 64 * MIB);
    assert_eq!(refused(&[a, b.clone()]), PoolError::Blank(name(&b)));
}

#[test]
fn o11_each_used_without_the_other() {
    let rams @ [a, b] = &used();
    for ram in rams {
        let mut alone = open(std::slice::from_ref(ram)).unwrap();
        block_on(alone.open_epoch()).unwrap();
    }
    assert!(matches!(refused(rams), PoolError::Split { .. }), "each once");
    block_on(open(std::slice::from_ref(b)).unwrap().open_epoch()).unwrap();
    let expected = PoolError::Split { first: name(b), second: name(a) };
    assert_eq!(refused(rams), expected, "one more often than the other");
    assert_eq!(present(&open(std::slice::from_ref(a)).unwrap()), ["a"], "each by itself can be had");
    assert_eq!(present(&open(std::slice::from_ref(b)).unwrap()), ["b"]);
}

#[test]
fn o12_no_member_any_more() {
    let rams @ [a, b, c] = &used();
    let removed = b.copy("b", b.size());
    let mut pool = open(rams).unwrap();
    block_on(pool.remove(1)).unwrap();
    assert_eq!(contents(b), Contents::Blank);
    let rams = [removed, a.clone(), c.clone()];
    let pool = open(&rams).unwrap();
    assert_eq!(present(&pool), ["a", "c"]);
    assert_eq!(pool.notices, [Notice::NotMember("b".to_owned())]);
    // The table has another device in its place now.
    forge(a, |superblock| superblock.members[1].uuid = 99);
    forge(c, |superblock| superblock.members[1].uuid = 99);
    assert_eq!(open(&rams).unwrap().notices, [Notice::NotMember("b".to_owned())]);
}

#[test]
fn o13_a_lost_member_comes_back() {
    let rams @ [a, b] = &used();
    let mut pool = open(rams).unwrap();
    block_on(pool.lose(0)).unwrap();
    for rams in [rams.clone(), [b.clone(), a.clone()]] {
        let pool = open(&rams).unwrap();
        assert_eq!(present(&pool), ["b"]);
        assert_eq!(states(&pool), [State::Lost, State::Active]);
        assert_eq!(pool.notices, [Notice::Stale("a".to_owned())], "it is known, so nothing is missing");
    }
}

#[test]
fn o13_what_a_lost_member_tried_alone_never_counts() {
    let rams @ [a, b] = &used();
    block_on(open(rams).unwrap().lose(1)).unwrap();
    // The member was opened without the other several times, and the power failed before that was in use.
    forge(b, |superblock| {
        (superblock.epoch, superblock.generation) = (9, 99);
        superblock.members[0].state = State::Lost;
        superblock.members[0].since_epoch = 9;
    });
    let mut pool = open(rams).unwrap();
    assert_eq!((present(&pool), &pool.notices[..]), (vec!["a"], &[Notice::Stale("b".to_owned())][..]));
    block_on(pool.open_epoch()).unwrap();
    let after = superblock(a);
    assert!(after.epoch > 9 && after.generation > 99, "no number is used twice");
}

#[test]
fn o14_an_active_member_fell_back() {
    let rams @ [a, b] = &used();
    let old = b.copy("b", b.size());
    block_on(open(rams).unwrap().open_epoch()).unwrap();
    let pool = open(&[old, a.clone()]).unwrap();
    assert_eq!(present(&pool), ["a"]);
    let missing = Notice::Missing { index: 1, uuid: Uuid(3) };
    assert_eq!(pool.notices, [Notice::Stale("b".to_owned()), missing]);
}

#[test]
fn o15_shrunk() {
    let [a, b] = used();
    let (size, needed) = (64 * MIB - BLOCK as u64, 64 * MIB);
    let [small, too] = [&a, &b].map(|whole| whole.copy(whole.name(), size));
    let mut pool = open(&[a.clone(), too.clone()]).unwrap();
    assert_eq!(present(&pool), ["a"]);
    let missing = Notice::Missing { index: 1, uuid: Uuid(3) };
    assert_eq!(pool.notices, [Notice::Shrunk { device: name(&b), size, needed }, missing]);
    let cut = too.image();
    block_on(pool.open_epoch()).unwrap();
    assert!(cut == too.image(), "nothing is written to a device that has shrunk");
    assert_eq!(superblock(&a).members[1].state, State::Lost);
    let whole_again = open(&[a.clone(), b.clone()]).unwrap();
    assert_eq!(
        (present(&whole_again), &whole_again.notices[..]),
        (vec!["a"], &[Notice::Stale("b".into())][..])
    );
    let expected = |device: &Arc<Ram>| PoolError::Shrunk { device: name(device), size, needed };
    assert_eq!(refused(std::slice::from_ref(&too)), expected(&b), "the other one is not there");
    assert_eq!(refused(&[small.clone(), too]), expected(&small), "no device is whole");
    let [a, b] = used();
    let larger = b.copy("b", 100 * MIB);
    assert_eq!(open(&[a, larger]).unwrap().members[1].segments, 62, "more room is not used");
}

#[test]
fn o16_damaged_or_unreadable_beside_a_good_one() {
    let rams @ [_, b] = &used();
    for offset in [100, 64 * MIB - 100] {
        b.poke(offset, &[0xff]);
    }
    let missing = Notice::Missing { index: 1, uuid: Uuid(3) };
    let pool = open(rams).unwrap();
    assert_eq!(present(&pool), ["a"]);
    assert_eq!(pool.notices, [Notice::Damaged(name(b)), missing.clone()]);
    let new = Ram::new("new", 64 * MIB);
    new.poke(0, b"FOREBAY\0");
    let with_new = [rams[0].clone(), rams[1].clone(), new.clone()];
    assert_eq!(open(&with_new).unwrap().notices[1], Notice::Unfinished(name(&new)));
    b.gone.store(true, Relaxed);
    let unreadable = Notice::Unreadable { device: name(b), error: DeviceError::Gone };
    assert_eq!(open(rams).unwrap().notices, [unreadable, missing]);
}

#[test]
fn o17_one_missing() {
    let [_, b] = used();
    let pool = open(&[b]).unwrap();
    assert_eq!(present(&pool), ["b"]);
    assert_eq!(states(&pool), [State::Active, State::Active], "to be recorded as lost by a new epoch");
    assert_eq!(pool.notices, [Notice::Missing { index: 0, uuid: Uuid(2) }]);
}

#[test]
fn o18_two_missing() {
    let [_, b, _] = used();
    assert_eq!(refused(&[b]), PoolError::TooManyMissing(vec![Uuid(2), Uuid(4)]));
}

#[test]
fn o19_any_order() {
    let [a, b, c] = used();
    for rams in [[&a, &b, &c], [&c, &b, &a], [&b, &c, &a]] {
        let pool = open(&rams.map(Arc::clone)).unwrap();
        assert_eq!(present(&pool), ["a", "b", "c"]);
        assert_eq!(pool.notices, []);
        assert_eq!((pool.uuid, pool.epoch, pool.segment_size), (1, 1, 1 << 20));
    }
}
