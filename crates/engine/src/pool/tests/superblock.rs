use proptest::prelude::*;

use super::*;
use crate::format::seal;
use crate::format::tests::golden::{assert_golden, from_hex};
use crate::segments::Reach;

fn sample() -> Superblock {
    let entry = |uuid, state, since_epoch| Entry { uuid, segments: 62, state, since_epoch };
    let members =
        vec![entry(0xa1, State::Active, 0), entry(0xa2, State::Lost, 8), entry(0xa3, State::Removed, 7)];
    Superblock {
        pool: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        device: 0xa1,
        index: 0,
        segment_size: 1 << 20,
        epoch: 9,
        in_use: 8,
        generation: 20,
        optional: 1 << 63,
        reach: Reach { tail: 5, oldest: (4, false, 3) },
        newest: 6,
        durable: 77,
        owner: b"somebody's files".to_vec(),
        members,
    }
}

#[test]
fn what_is_just_not_dead_stays_so() {
    // These are orders of a clean segment, and of the log segment of its position.
    for oldest in [(4, false, 3), (4, true, 4), (0, false, 0)] {
        let superblock = Superblock { reach: Reach { tail: 5, oldest }, ..sample() };
        let read = Superblock::decode(&superblock.encode()).unwrap().reach;
        assert_eq!(read.tail, 5);
        assert!(oldest >= read.oldest, "{oldest:?} is alive");
        assert!(read.oldest > (3, true, 3) || oldest.0 == 0, "what was dead before it is dead");
        assert!(read.oldest > (4, false, 2) || oldest.0 == 0, "also within its position");
    }
}

#[test]
fn golden() {
    let expected = include_str!("../../format/golden/superblock_with_destaged_and_owner.hex");
    assert_golden("superblock_with_destaged_and_owner", expected, &sample().encode());
    // A superblock without an owner lacks the feature bit of owners.
    let expected = include_str!("../../format/golden/superblock_with_destaged.hex");
    assert_golden(
        "superblock_with_destaged",
        expected,
        &Superblock { owner: Vec::new(), ..sample() }.encode(),
    );
}

/// Pools of earlier versions lack user records, the newest segment in the superblock, or the records of destaged
/// blocks.
#[test]
fn superblocks_of_fewer_features_are_read() {
    let none = from_hex(include_str!("../../format/golden/superblock.hex"));
    let notes = from_hex(include_str!("../../format/golden/superblock_with_notes.hex"));
    for (features, block) in [(0, none), (1, notes)] {
        assert_eq!(block[24..32], [features, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            Superblock::decode(&block),
            Ok(Superblock { newest: 0, durable: 0, owner: Vec::new(), ..sample() })
        );
    }
    let newest = from_hex(include_str!("../../format/golden/superblock_with_newest.hex"));
    let owner = from_hex(include_str!("../../format/golden/superblock_with_owner.hex"));
    assert_eq!([newest[24], owner[24]], [3, 7]);
    assert_eq!(Superblock::decode(&newest), Ok(Superblock { owner: Vec::new(), ..sample() }));
    assert_eq!(Superblock::decode(&owner), Ok(sample()));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut block = sample().encode();
    assert_eq!(Superblock::decode(&block), Ok(sample()));
    for bit in 0..BLOCK * 8 {
        block[bit / 8] ^= 1 << (bit % 8);
        let expected = if bit < 64 { Unusable::None } else { Unusable::Damaged };
        assert_eq!(Superblock::decode(&block), Err(expected), "bit {bit}");
        block[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Returns the sample with some bytes changed and sealed again, as another version or a defect would write it.
fn forged(at: usize, bytes: &[u8]) -> Result<Superblock, Unusable> {
    let mut block = sample().encode();
    block[at..at + bytes.len()].copy_from_slice(bytes);
    seal(crate::pool::superblock::MAGIC, &mut block);
    Superblock::decode(&block)
}

#[test]
fn newer_versions_and_unknown_features() {
    assert_eq!(forged(16, &[2, 0]), Err(Unusable::Newer(2)));
    assert_eq!(forged(16, &[0, 1]), Err(Unusable::Newer(256)));
    assert_eq!(forged(24, &[0b11101]), Err(Unusable::UnknownFeatures(0b10000)));
    let known = forged(32, &[0xff]).unwrap();
    assert_eq!(known.optional, 0xff | 1 << 63, "optional features need not be known");
}

#[test]
fn superblocks_that_contradict_themselves() {
    for (what, at, bytes) in [
        ("no version", 16, &[0, 0][..]),
        ("an index that is another's", 18, &[1]),
        ("an index beyond the members", 18, &[3]),
        ("no members", 20, &[0]),
        ("more members than there is room for", 20, &[17]),
        ("fewer members than there are", 20, &[2]),
        ("a reserved field", 22, &[1]),
        ("another device", 56, &[0xa2]),
        ("an epoch below the one in use", 72, &[7]),
        ("a segment size that is no power of two", 96, &[1]),
        ("segments of 512 KiB", 96, &[0, 0, 8, 0]),
        ("segments of 128 MiB", 96, &[0, 0, 0, 8]),
        ("another reserved field", 100, &[1]),
        ("no segments", 128 + 24, &[0]),
        ("more segments than 16 TiB", 128 + 24, &[1, 0, 0, 1]),
        ("an unknown state", 128 + 32 + 28, &[4]),
        ("an own state that is not active", 128 + 28, &[2]),
        ("a reserved field of a member", 128 + 30, &[1]),
        ("a member since an epoch to come", 128 + 16, &[10]),
        ("two members that are the same", 128 + 32, &[0xa1]),
        ("a member behind the last", 128 + 3 * 32, &[1]),
        ("a newest segment, without the feature", 24, &[0b1101]),
        ("an owner that is longer than it says", 656, &[15]),
        ("an owner without the feature", 24, &[3]),
        ("an owner beyond the block", 656, &[0xff, 0xff]),
        ("something at the end", 4095, &[1]),
    ] {
        assert_eq!(forged(at, bytes), Err(Unusable::Damaged), "{what}");
    }
}

#[test]
fn what_is_no_superblock() {
    assert_eq!(Superblock::decode(&[]), Err(Unusable::None));
    assert_eq!(Superblock::decode(&[0; BLOCK]), Err(Unusable::None));
    assert_eq!(Superblock::decode(&sample().encode()[..BLOCK - 1]), Err(Unusable::None));
}

fn any_superblock() -> impl Strategy<Value = Superblock> {
    let entry = (any::<u128>(), 1..=262_144_u32, 0..3_u8, any::<u64>());
    let entries = proptest::collection::vec(entry, 1..=16);
    let scalars = (any::<u128>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), 20..=26_u32);
    (entries, scalars, any::<usize>()).prop_map(
        |(entries, (pool, epoch, in_use, generation, optional, shift), own)| {
            let mut members: Vec<_> = (0_u128..)
                .zip(entries)
                .map(|(at, (uuid, segments, state, since))| Entry {
                    uuid: uuid << 4 | at,
                    segments,
                    state: [State::Active, State::Lost, State::Removed][usize::from(state)],
                    since_epoch: since.min(epoch),
                })
                .collect();
            let own = own % members.len();
            members[own].state = State::Active;
            Superblock {
                reach: Reach::new(generation, epoch, in_use),
                newest: in_use,
                durable: epoch,
                pool,
                device: members[own].uuid,
                index: own as u16,
                segment_size: 1 << shift,
                epoch,
                in_use: in_use.min(epoch),
                generation,
                optional,
                owner: optional.to_le_bytes().repeat((epoch % 9) as usize),
                members,
            }
        },
    )
}

proptest! {
    #[test]
    fn round_trip(superblock in any_superblock()) {
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
        prop_assert_eq!(Superblock::decode(&bytes), Err(Unusable::None));
        bytes[16..18].copy_from_slice(&[1, 0]);
        bytes[24..32].fill(0);
        seal(crate::pool::superblock::MAGIC, &mut bytes);
        prop_assert_eq!(Superblock::decode(&bytes), Err(Unusable::Damaged));
    }
}
