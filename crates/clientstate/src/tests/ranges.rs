//! The table of ranges against a map from byte to locks, and its speed in operations.

use super::*;
use crate::ranges::{EMPTY, Lock, Ranges, mix};

/// A deterministic source of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % bound
    }
}

#[test]
fn ranges_equal_a_map_of_bytes() {
    const BYTES: u64 = 24;
    for seed in 0..400 {
        let mut random = Random(seed);
        let (mut ranges, mut root) = (Ranges::new(seed), EMPTY);
        // For each owner and byte: 0 free, 1 read, 2 write.
        let mut bytes = [[0u8; BYTES as usize]; 4];
        for _ in 0..60 {
            let owner = random.below(4) as u32;
            let (one, two) = (random.below(BYTES), random.below(BYTES));
            let range = range(one.min(two), one.max(two));
            let kind = [None, Some(LockKind::Read), Some(LockKind::Write)][random.below(3) as usize];
            let covered = range.first as usize..=range.last as usize;
            if let Some(kind) = kind {
                let excludes = |held: u8| held == 2 || held == 1 && kind == LockKind::Write;
                let others = (0..4).filter(|other| *other != owner as usize);
                let expected = others
                    .clone()
                    .any(|other| bytes[other][covered.clone()].iter().any(|held| excludes(*held)));
                let found = ranges.conflict(root, Lock { range, kind, owner });
                assert_eq!(found.is_some(), expected, "seed {seed}");
                if found.is_some() {
                    continue;
                }
            }
            ranges.set(&mut root, (owner, 0), range, kind);
            bytes[owner as usize][covered].fill(kind.map_or(0, |kind| kind as u8 + 1));
            let mut listed = [[0u8; BYTES as usize]; 4];
            let all = ranges.all(root);
            assert_eq!(all.len(), ranges.len());
            for lock in all {
                listed[lock.owner as usize][lock.range.first as usize..=lock.range.last as usize]
                    .fill(lock.kind as u8 + 1);
            }
            assert_eq!(listed, bytes, "seed {seed}");
            for owner in 0..4 {
                let own: Vec<_> = ranges.of(owner, 0).collect();
                let merged =
                    own.windows(2).all(|two| two[0].0.last + 1 < two[1].0.first || two[0].1 != two[1].1);
                assert!(merged, "seed {seed}: {own:?}");
            }
        }
    }
}

#[test]
fn the_last_byte_can_be_locked() {
    let (mut ranges, mut root) = (Ranges::new(1), EMPTY);
    ranges.set(&mut root, (1, 0), range(u64::MAX, u64::MAX), Some(LockKind::Write));
    let other = Lock { range: range(u64::MAX, u64::MAX), kind: LockKind::Read, owner: 2 };
    assert!(ranges.conflict(root, other).is_some());
    ranges.set(&mut root, (1, 0), range(0, u64::MAX - 1), Some(LockKind::Write));
    assert_eq!(ranges.of(1, 0).collect::<Vec<_>>(), [(range(0, u64::MAX), LockKind::Write)]);
    ranges.set(&mut root, (1, 0), range(5, 5), None);
    assert_eq!(ranges.of(1, 0).count(), 2);
    ranges.set(&mut root, (1, 0), range(0, u64::MAX), None);
    assert_eq!((root, ranges.len()), (EMPTY, 0));
}

#[test]
fn a_file_with_many_locks_stays_usable() {
    // With a scan per call this would take 10,000 million steps.
    const LOCKS: u64 = 100_000;
    let (mut ranges, mut root) = (Ranges::new(1), EMPTY);
    for index in 0..LOCKS {
        let owner = (index % 1000) as u32;
        let wanted = Lock { range: range(index * 10, index * 10 + 4), kind: LockKind::Write, owner };
        assert_eq!(ranges.conflict(root, wanted), None);
        ranges.set(&mut root, (owner, 0), wanted.range, Some(wanted.kind));
    }
    // One more owner holds all of them, and a whole-file lock finds the first conflict at once.
    for index in 0..LOCKS {
        let whole = Lock { range: range(0, u64::MAX), kind: LockKind::Read, owner: 5000 };
        assert!(ranges.conflict(root, whole).is_some());
        let gap = Lock { range: range(index * 10 + 5, index * 10 + 9), kind: LockKind::Write, owner: 5000 };
        assert_eq!(ranges.conflict(root, gap), None);
        ranges.set(&mut root, (5000, 0), gap.range, Some(gap.kind));
    }
    assert_eq!(ranges.len(), 2 * LOCKS as usize);
    for owner in (0..1000).chain([5000]) {
        ranges.set(&mut root, (owner, 0), range(0, u64::MAX), None);
    }
    assert_eq!((root, ranges.len()), (EMPTY, 0));
}

#[test]
fn ranges_of_requests() {
    assert_eq!(Range::v4(0, 0), Err(Error::Inval));
    assert_eq!(Range::v4(5, u64::MAX), Ok(range(5, u64::MAX)));
    assert_eq!(Range::v4(u64::MAX, 1), Ok(range(u64::MAX, u64::MAX)));
    assert_eq!(Range::v4(u64::MAX, 2), Err(Error::Inval));
    assert_eq!(Range::nlm(5, 0), range(5, u64::MAX));
    assert_eq!(Range::nlm(u64::MAX, 2), range(u64::MAX, u64::MAX));
    assert_eq!(range(5, 9).to_v4(), (5, 5));
    assert_eq!(range(5, u64::MAX).to_v4(), (5, u64::MAX));
    assert_eq!(range(5, u64::MAX).to_nlm(), (5, 0));
}
