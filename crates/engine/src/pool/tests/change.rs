use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};

use super::*;
use crate::pool::deadline::{Ticks, Watched};

#[test]
fn segments_are_a_64th_of_the_smallest_device() {
    const GIB: u64 = 1 << 30;
    for (sizes, segment_size, segments) in [
        ([64 * MIB, 64 * MIB], MIB, [62, 62]),
        ([127 * MIB, 64 * GIB + 4095], MIB, [125, 65534]),
        ([GIB, 2 * GIB], 16 * MIB, [63, 127]),
        ([16 << 40, 4 * GIB], 64 * MIB, [262_143, 63]),
    ] {
        let rams = [Ram::new("a", sizes[0]), Ram::new("b", sizes[1])];
        let pool = format(&rams);
        assert_eq!(u64::from(pool.segment_size), segment_size);
        assert_eq!([pool.members[0].segments, pool.members[1].segments], segments);
        for member in &pool.members {
            let end = pool.offset(member.segments);
            assert!(end <= sizes[usize::from(member.index)] - MIB, "the last MiB holds only a superblock");
        }
        assert_eq!(open(&rams).unwrap().members.len(), 2);
    }
}

/// Returns the refusal, and checks that nothing was written.
fn format_refused(rams: &[Arc<Ram>]) -> PoolError {
    let before: Vec<_> = rams.iter().map(|ram| ram.image()).collect();
    let error = block_on(Pool::format(devices(rams), &mut random(500), false)).expect_err("refused");
    let after: Vec<_> = rams.iter().map(|ram| ram.image()).collect();
    assert!(before == after, "nothing is written before everything is accepted");
    error
}

#[test]
fn devices_that_are_not_formatted() {
    let [good] = blank();
    assert_eq!(format_refused(&[]), PoolError::NoDevices);
    let small = Ram::new("small", 64 * MIB - 1);
    let too_small = PoolError::TooSmall { device: "small".into(), size: 64 * MIB - 1, needed: 64 * MIB };
    assert_eq!(format_refused(&[good.clone(), small]), too_small);
    let large = Ram::new("large", (16 << 40) + 1);
    let too_large = PoolError::TooLarge { device: "large".into(), size: (16 << 40) + 1 };
    assert_eq!(format_refused(&[good.clone(), large]), too_large);
    let [member] = used();
    let what = "a member of Forebay pool 00000000-0000-0000-0000-000000000001".to_owned();
    let in_use = PoolError::InUse { device: "a".into(), what };
    assert_eq!(format_refused(&[good.clone(), member.clone()]), in_use);
    let foreign = Ram::new("foreign", 64 * MIB);
    foreign.poke(1080, &[0x53, 0xef]);
    let in_use =
        PoolError::InUse { device: "foreign".into(), what: "an ext2, ext3 or ext4 file system".into() };
    assert_eq!(format_refused(&[good.clone(), foreign.clone()]), in_use);
    let rams = [good, member, foreign];
    block_on(Pool::format(devices(&rams), &mut random(500), true)).expect("forced");
    assert_eq!(present(&open(&rams).unwrap()), ["a", "a", "foreign"]);
}

#[test]
fn one_device_by_two_names_is_not_formatted() {
    let [a] = blank();
    let error = block_on(Pool::format(devices(&[a.clone(), a]), &mut random(1), false)).unwrap_err();
    assert!(matches!(error, PoolError::Duplicate { .. }), "{error}");
}

#[test]
fn every_epoch_is_higher_than_all_before() {
    let rams = &used::<2>();
    for epoch in 1..5 {
        let mut pool = open(rams).unwrap();
        assert_eq!(pool.epoch, epoch);
        assert_eq!(block_on(pool.open_epoch()), Ok(vec![]));
        assert_eq!(pool.epoch, epoch + 1);
        for ram in rams {
            let superblock = superblock(ram);
            assert_eq!((superblock.epoch, superblock.in_use), (epoch + 1, epoch + 1));
        }
    }
}

#[test]
fn a_missing_member_becomes_lost() {
    let rams @ [a, _] = &used();
    let mut pool = open(std::slice::from_ref(a)).unwrap();
    assert_eq!(block_on(pool.open_epoch()), Ok(vec![1]));
    assert_eq!(states(&pool), [State::Active, State::Lost]);
    assert_eq!(pool.members[1].since_epoch, 2);
    assert_eq!(open(rams).unwrap().notices, [Notice::Stale("b".to_owned())]);
}

#[test]
fn a_member_that_fails_during_a_change_is_lost_by_it() {
    let rams @ [a, b, c] = &used();
    let mut pool = open(rams).unwrap();
    c.read_only.store(true, Relaxed);
    assert_eq!(block_on(pool.lose(0)), Ok(vec![2]));
    assert_eq!(states(&pool), [State::Lost, State::Active, State::Lost]);
    assert_eq!(present(&pool), ["b"]);
    for rams in [[a, b, c], [c, a, b]] {
        assert_eq!(present(&open(&rams.map(Arc::clone)).unwrap()), ["b"]);
    }
    b.gone.store(true, Relaxed);
    assert_eq!(block_on(pool.open_epoch()), Err(PoolError::NoMemberLeft));
}

#[test]
fn losing_what_is_lost_writes_nothing() {
    let rams = &used::<2>();
    let mut pool = open(rams).unwrap();
    block_on(pool.lose(1)).unwrap();
    let epoch = pool.epoch;
    assert_eq!(block_on(pool.lose(1)), Ok(vec![]));
    assert_eq!(block_on(pool.lose(7)), Ok(vec![]));
    assert_eq!(pool.epoch, epoch);
}

#[test]
fn a_removed_device_is_blank() {
    let rams @ [a, b] = &used();
    let mut pool = open(rams).unwrap();
    assert_eq!(block_on(pool.remove(5)), Err(PoolError::NoSuchMember(5)));
    assert_eq!(block_on(pool.remove(0)), Ok(vec![]));
    assert_eq!(contents(a), Contents::Blank);
    assert_eq!(block_on(pool.remove(0)), Err(PoolError::NoSuchMember(0)));
    assert_eq!(block_on(pool.remove(1)), Err(PoolError::LastMember("b".to_owned())));
    let pool = open(std::slice::from_ref(b)).unwrap();
    assert_eq!(states(&pool), [State::Removed, State::Active]);
    assert_eq!(pool.notices, []);
}

fn add(pool: &mut Pool, ram: &Arc<Ram>, force: bool) -> Result<u16, PoolError> {
    block_on(pool.add(ram.clone(), force)).map(|(index, also_lost)| {
        assert!(also_lost.is_empty(), "{also_lost:?}");
        index
    })
}

#[test]
fn an_added_device_is_a_member() {
    let rams @ [a, b] = &used();
    let mut pool = open(rams).unwrap();
    let c = Ram::new("c", 200 * MIB);
    assert_eq!(add(&mut pool, &c, false), Ok(2));
    assert_eq!((pool.members[2].segments, pool.members[2].since_epoch), (198, 2));
    let pool = open(&[c, b.clone(), a.clone()]).unwrap();
    assert_eq!(present(&pool), ["a", "b", "c"]);
}

#[test]
fn a_lost_member_can_be_added_again() {
    let rams @ [_, b] = &used();
    let mut pool = open(rams).unwrap();
    block_on(pool.lose(1)).unwrap();
    let lost = pool.members[1].uuid;
    assert_eq!(add(&mut pool, b, false), Ok(1), "in its old place");
    assert_ne!(pool.members[1].uuid, lost, "as a new member");
    let pool = open(rams).unwrap();
    assert_eq!((present(&pool), pool.notices.len()), (vec!["a", "b"], 0));
    assert_eq!(pool.members[1].since_epoch, 3, "what it held before does not count");
}

#[test]
fn a_member_that_went_on_alone_is_not_added() {
    let [a, b] = &used();
    let mut pool = open(std::slice::from_ref(a)).unwrap();
    block_on(pool.open_epoch()).unwrap();
    block_on(open(std::slice::from_ref(b)).unwrap().open_epoch()).unwrap();
    assert!(matches!(add(&mut pool, b, false), Err(PoolError::InUse { .. })));
    assert_eq!(add(&mut pool, b, true), Ok(2));
}

#[test]
fn devices_that_are_not_added() {
    let rams @ [a, _] = &used();
    let mut pool = open(rams).unwrap();
    let twin = a.copy("twin", a.size());
    for force in [false, true] {
        let expected = PoolError::Duplicate { first: "a".into(), second: "twin".into() };
        assert_eq!(add(&mut pool, &twin, force), Err(expected), "not even by force");
    }
    let foreign = Ram::new("foreign", 64 * MIB);
    foreign.poke(0, b"XFSB");
    assert!(matches!(add(&mut pool, &foreign, false), Err(PoolError::InUse { .. })));
    let broken = Ram::new("broken", 64 * MIB);
    broken.read_only.store(true, Relaxed);
    assert!(matches!(add(&mut pool, &broken, false), Err(PoolError::Unwritable { .. })));
    let large: [_; 2] = std::array::from_fn(|_| Ram::new("large", 4 << 30));
    let mut coarse = format(&large);
    let needed = MIB + 16 * 64 * MIB + MIB;
    let too_small = PoolError::TooSmall { device: "small".into(), size: needed - 1, needed };
    assert_eq!(add(&mut coarse, &Ram::new("small", needed - 1), false), Err(too_small));
    assert_eq!(add(&mut coarse, &Ram::new("just enough", needed), false), Ok(2));
    assert_eq!(present(&open(rams).unwrap()), ["a", "b"]);
    assert_eq!(block_on(pool.open_epoch()), Ok(vec![]), "the pool is as before");
    assert_eq!(add(&mut pool, &foreign, true), Ok(2));
}

#[test]
fn places_are_used_again_when_all_are_taken() {
    let rams: Vec<_> = (0..16).map(|at| Ram::new(&at.to_string(), 64 * MIB)).collect();
    let mut pool = format(&rams);
    block_on(pool.open_epoch()).unwrap();
    let another = || Ram::new("another", 64 * MIB);
    assert_eq!(add(&mut pool, &another(), false), Err(PoolError::Full));
    block_on(pool.lose(3)).unwrap();
    block_on(pool.remove(9)).unwrap();
    assert_eq!(add(&mut pool, &another(), false), Ok(9), "a removed one's first");
    assert_eq!(add(&mut pool, &another(), false), Ok(3));
}

#[test]
fn optional_features_are_kept() {
    let rams @ [a, _] = &used();
    let mut changed = superblock(a);
    changed.optional = 1 << 40;
    changed.generation += 10;
    a.poke(0, &changed.encode());
    block_on(open(rams).unwrap().open_epoch()).unwrap();
    assert!(rams.iter().all(|ram| superblock(ram).optional == 1 << 40));
}

#[test]
fn every_message_is_one_sentence() {
    let errors = [
        PoolError::TooManyMissing(vec![Uuid(1), Uuid(u128::MAX)]).to_string(),
        PoolError::Split { first: "a".into(), second: "b".into() }.to_string(),
        PoolError::UnknownFeatures { device: "a".into(), bits: 6 }.to_string(),
    ];
    assert_eq!(
        errors[0],
        "2 members of the pool are missing (00000000-0000-0000-0000-000000000001, \
         ffffffff-ffff-ffff-ffff-ffffffffffff), but at most one may be; name the others too"
    );
    assert_eq!(
        errors[1],
        "a and b were each used without the other, and both may hold what the other lacks; name only the one whose \
         contents you want"
    );
    assert_eq!(
        errors[2],
        "a needs features that this version of Forebay does not have (0x6); use a newer one"
    );
}

#[test]
fn changes_may_be_made_on_any_thread() {
    fn assert_send(_: impl Send) {}
    let rams = &used::<2>();
    assert_send(Pool::open(devices(rams)));
    assert_send(Pool::format(devices(rams), &mut random(1), false));
    let mut pool = open(rams).unwrap();
    assert_send(pool.open_epoch());
    assert_send(pool.lose(1));
    assert_send(pool.remove(1));
    assert_send(pool.add(Ram::new("c", 64 * MIB), false));
}

/// Only devices that look late are given up, and none if all look late.
#[test]
fn a_member_that_has_answered_does_not_look_late_behind_one_that_does_not() {
    let rams: [_; 3] = used();
    for silent in 0..3 {
        let mut pool = open(&rams).unwrap();
        let ticks = Arc::<Ticks>::default();
        let watched: Vec<_> =
            rams.iter().map(|ram| Watched::new(ram.clone(), &ticks)).collect::<Vec<Arc<Watched>>>();
        for (member, device) in pool.members.iter_mut().zip(&watched) {
            member.device = Some(device.clone());
        }
        rams[silent].silent.store(true, Relaxed);
        let mut change = pin!(pool.save_newest(1, 1));
        assert!(change.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let under_way: Vec<_> = watched.iter().map(|device| device.under_way()).collect();
        assert_eq!(under_way, [0, 1, 2].map(|at| usize::from(at == silent)));
        rams[silent].silent.store(false, Relaxed);
    }
}
