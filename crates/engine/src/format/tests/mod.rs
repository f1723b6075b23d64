pub(crate) mod golden;
mod reject;
mod round_trip;

use proptest::collection::vec;
use proptest::prelude::*;
use smallvec::SmallVec;

use super::*;
use crate::buffer::BLOCK;
use crate::io::{Key, Time};

const SEGMENT: SegmentId = SegmentId { pool: 0x1111_2222_3333_4444_5555_6666_7777_8888, seq: 77, slots: 256 };

fn head(start: u16, data_blocks: u16, body: &Body) -> FrameHead {
    FrameHead {
        pool: SEGMENT.pool,
        epoch: 5,
        seq: 1001,
        acked: 1000,
        tail: 70,
        oldest_position: 60,
        oldest_seq: 61,
        segment_seq: SEGMENT.seq,
        start,
        data_blocks,
        tail_blocks: u16::try_from(frame::spill_blocks(body_len(body))).unwrap(),
    }
}

/// Returns the frame's bytes, with data blocks filled with 0xdd.
fn encoded(head: &FrameHead, body: &Body) -> Vec<u8> {
    let mut buffer = vec![0xdd; head.blocks() * BLOCK];
    frame::encode(head, body, &mut buffer).unwrap();
    buffer
}

fn tail_of<'a>(head: &FrameHead, frame: &'a [u8]) -> &'a [u8] {
    &frame[(1 + usize::from(head.data_blocks)) * BLOCK..]
}

fn footer(body: Body) -> Footer {
    Footer { pool: SEGMENT.pool, segment_seq: SEGMENT.seq, epoch: 5, body }
}

fn header() -> SegmentHeader {
    SegmentHeader {
        pool: SEGMENT.pool,
        epoch: 5,
        seq: SEGMENT.seq,
        position: SEGMENT.seq,
        kind: SegmentKind::Log,
        here: Place { device: 0, segment: 12 },
        peer: Some(Place { device: 1, segment: 9 }),
        first_frame: 990,
        previous: 61,
    }
}

/// Returns a body with one record of each kind, of two objects. Its data is in slots 11 and 12.
fn small_body() -> Body {
    let mtime = Some(Time { sec: 1_700_000_000, nsec: 999_999_999 });
    let objects = vec![
        Facts { key: Key::new(b"first").unwrap(), size: 8192, mtime },
        Facts { key: Key::new(&[0xab; 64]).unwrap(), size: u64::MAX, mtime: None },
    ];
    let records = vec![
        Record::Data { object: 0, block: 0, slot: 11, checksums: SmallVec::from_slice(&[0xdead_beef, 7]) },
        Record::Truncate { object: 1, size: 0x0102_0304_0506_0708 },
        Record::Truncated { object: 1 },
        Record::Invalidate { object: 0, block: 2, count: u64::MAX },
        Record::Forget { object: 1 },
    ];
    Body { objects, records }
}

/// Returns a body that needs two blocks more than one.
fn large_body() -> Body {
    let mut body = small_body();
    let checksums = (0..100).map(|n| n * 0x0101_0101).collect();
    body.records.push(Record::Data { object: 1, block: 9, slot: 11, checksums });
    let forget = Record::Invalidate { object: 1, block: 1, count: 1 };
    body.records.extend(std::iter::repeat_n(forget, 500));
    body
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let key = vec(any::<u8>(), 1..=64).prop_map(|bytes| Key::new(&bytes).unwrap());
    let mtime =
        proptest::option::of((any::<i64>(), 0..1_000_000_000_u32).prop_map(|(sec, nsec)| Time { sec, nsec }));
    (key, any::<u64>(), mtime).prop_map(|(key, size, mtime)| Facts { key, size, mtime })
}

/// Returns a record of one of `objects` objects. Its data is in slots 2..12.
fn any_record(objects: u16) -> impl Strategy<Value = Record> {
    let data = (0..objects, 0..BLOCKS_MAX - 10, 2..12_u16, vec(any::<u32>(), 10)).prop_map(
        |(object, block, slot, mut sums)| {
            sums.truncate(usize::from(12 - slot));
            Record::Data { object, block, slot, checksums: sums.into() }
        },
    );
    let count = || prop_oneof![Just(u64::MAX), 0..1000_u64];
    prop_oneof![
        data,
        (0..objects, any::<u64>()).prop_map(|(object, size)| Record::Truncate { object, size }),
        (0..objects).prop_map(|object| Record::Truncated { object }),
        (0..objects, 0..BLOCKS_MAX - 1000, count()).prop_map(|(object, block, count)| Record::Invalidate {
            object,
            block,
            count
        }),
        (0..objects, 0..BLOCKS_MAX - 1000, count()).prop_map(|(object, block, count)| Record::Destaged {
            object,
            block,
            count
        }),
        (0..objects).prop_map(|object| Record::Forget { object }),
        vec(any::<u8>(), 1..=64).prop_map(|bytes| Record::UserRecord { bytes: bytes.into() }),
    ]
}

/// Returns any body that a frame in slot 1 with ten blocks of data may have.
fn any_body() -> impl Strategy<Value = Body> {
    let empty = Just(Body::default()).boxed();
    let full = vec(any_facts(), 1..60)
        .prop_flat_map(|objects| {
            let count = u16::try_from(objects.len()).unwrap();
            (Just(objects), vec(any_record(count), 0..400))
        })
        .prop_map(|(objects, records)| Body { objects, records });
    prop_oneof![1 => empty, 20 => full.boxed()]
}
