use rustix::fs::FileType;

use crate::attr::{Attr, Time};
use crate::caches::access_cache::Classes;
use crate::caches::attr_cache::*;
use crate::sys::KERNEL_HANDLE_MAX;

fn kernel(n: u64) -> KernelHandle {
    let mut kernel = KernelHandle { kind: 1, len: 8, bytes: [0; KERNEL_HANDLE_MAX] };
    kernel.bytes[..8].copy_from_slice(&n.to_le_bytes());
    kernel
}

fn attr(n: u64) -> Attr {
    let time = |sec| Time { sec, nsec: (n % 1_000_000_000) as u32 };
    Attr {
        kind: FileType::RegularFile,
        mode: 0o4755,
        nlink: 3,
        uid: u32::MAX,
        gid: 7,
        size: u64::MAX - n,
        used: n * 512,
        rdev: (n as u32, 9),
        ino: n,
        atime: time(-5),
        mtime: time(1 << 33),
        ctime: time(n as i64),
        backing_ctime: time(0),
    }
}

/// Returns an entry with these attributes and without access verdicts.
fn of(attr: Attr) -> CachedAttr {
    CachedAttr { attr, verdicts: Classes::default() }
}

fn seen(n: u64) -> CachedAttr {
    of(attr(n))
}

fn learn(known: &AttrCache, n: u64) {
    known.learn(0, &kernel(n), seen(n), || true);
}

#[test]
fn what_is_learnt_is_known_as_it_was_until_it_is_forgotten() {
    let known = AttrCache::new(1 << 20);
    learn(&known, 1);
    learn(&known, 2);
    assert_eq!((known.get(0, &kernel(1)), known.get(0, &kernel(2))), (Some(seen(1)), Some(seen(2))));
    assert_eq!(known.get(1, &kernel(1)), None, "of another file system");
    known.learn(0, &kernel(1), seen(5), || true);
    known.learn(0, &kernel(2), seen(5), || false);
    assert_eq!((known.get(0, &kernel(1)), known.get(0, &kernel(2))), (Some(seen(5)), Some(seen(2))));
    known.forget(0, &kernel(1));
    known.forget(0, &kernel(3));
    assert_eq!((known.get(0, &kernel(1)), known.get(0, &kernel(2))), (None, Some(seen(2))));
    // An inode whose attributes do not fit into a record leaves the cache.
    let strange = Attr { mtime: Time { sec: 1 << 40, nsec: 0 }, ..attr(2) };
    known.learn(0, &kernel(2), of(strange), || true);
    assert_eq!(known.get(0, &kernel(2)), None);
    known.check();
    learn(&known, 4);
    known.clear();
    known.check();
    assert!(known.is_empty() && known.get(0, &kernel(4)).is_none());
}

#[test]
fn what_the_kernel_said_counts_as_long_as_the_change_time_stands() {
    let known = AttrCache::new(1 << 20);
    let said = |sec, verdicts| CachedAttr {
        attr: Attr { backing_ctime: Time { sec, nsec: 5 }, ..attr(1) },
        verdicts,
    };
    let verdicts = |known: &AttrCache| known.get(0, &kernel(1)).unwrap().verdicts;
    let learn = |known: &AttrCache, sec, verdicts| {
        known.learn(0, &kernel(1), said(sec, verdicts), || true);
    };
    let (none, some) = (Classes::default(), Classes::of_everybody(0o4));
    learn(&known, 1, some);
    assert_eq!(verdicts(&known), some);
    learn(&known, 1, none);
    assert_eq!(verdicts(&known), some, "seen by somebody who had nothing to ask");
    learn(&known, 2, none);
    assert_eq!(verdicts(&known), none);
}

#[test]
fn a_walk_over_everything_displaces_nothing_that_is_asked_for() {
    let limit = 64 * 100 * COST;
    let known = AttrCache::new(limit);
    for n in 0..2000 {
        learn(&known, n);
        assert!(known.get(0, &kernel(n)).is_some());
    }
    for n in 10_000..200_000 {
        learn(&known, n);
        known.forget(0, &kernel(n - 3));
        if n % 1000 == 0 {
            known.check();
        }
    }
    let left = (0..2000).filter(|n| known.get(0, &kernel(*n)) == Some(seen(*n))).count();
    assert!(left > 1800, "{left} of 2000");
    assert!(known.bytes() <= limit, "{} of {limit}", known.bytes());
}

#[test]
fn what_is_forgotten_and_learnt_again_takes_no_more_room() {
    let known = AttrCache::new(1 << 30);
    let mut most = 0;
    for round in 0..1000 {
        for n in 0..1000 {
            learn(&known, n);
        }
        for n in (0..1000).filter(|n| (n + round) % 3 > 0) {
            known.forget(0, &kernel(n));
            assert_eq!(known.get(0, &kernel(n)), None);
        }
        known.check();
        if round == 10 {
            most = known.bytes();
        }
    }
    assert_eq!(known.len(), 334);
    assert!(known.bytes() <= most + most / 4, "{} bytes, {most} at first", known.bytes());
}

#[test]
fn the_place_of_a_forgotten_inode_is_used_again_in_a_full_cache() {
    let known = AttrCache::new(64 * 100 * COST);
    (0..20_000).for_each(|n| learn(&known, n));
    let full = known.len();
    for n in (0..20_000).filter(|n| n % 10 == 0) {
        known.forget(0, &kernel(n));
    }
    assert!(known.len() < full);
    (30_000..50_000).for_each(|n| learn(&known, n));
    known.check();
    assert_eq!(known.len(), full);
}

/// Uses 100,000 files, or the number in FOREBAY_TEST_FILES.
#[test]
fn ten_million_files_fit_into_less_than_a_third_of_four_gibibytes() {
    let files: u64 = std::env::var("FOREBAY_TEST_FILES").map_or(100_000, |text| text.parse().unwrap());
    let limit = files as usize * COST * 21 / 20;
    let known = AttrCache::new(limit);
    (0..files).for_each(|n| learn(&known, n));
    eprintln!("{} bytes for each of {}", known.bytes() / known.len(), known.len());
    known.check();
    assert!(known.len() as u64 > files / 100 * 99);
    assert!(known.bytes() <= limit);
    assert!(known.bytes() / known.len() < (4 << 30) / 10_000_000 / 3);
}
