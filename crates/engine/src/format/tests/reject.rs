//! Tests of the data that decoders refuse.

use super::*;

fn decode(head: &FrameHead, frame: &[u8]) -> Option<Body> {
    frame::decode_body(&frame[..BLOCK], tail_of(head, frame), &SEGMENT, head.start)
}

/// Calls `accepts` with every version of `bytes` that differs in one bit.
fn flip_every_bit(bytes: &[u8], accepts: impl Fn(&[u8]) -> bool) {
    assert!(accepts(bytes), "intact");
    let mut bytes = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!accepts(&bytes), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn every_flipped_bit_of_a_frame() {
    let body = small_body();
    let head = head(10, 3, &body);
    let frame = encoded(&head, &body);
    flip_every_bit(&frame[..BLOCK], |block| frame::decode_head(block, &SEGMENT, 10).is_some());
}

#[test]
fn every_flipped_bit_of_a_tail() {
    let body = large_body();
    let head = head(10, 101, &body);
    assert_eq!(head.tail_blocks, 2);
    let frame = encoded(&head, &body);
    let tail = tail_of(&head, &frame);
    flip_every_bit(tail, |tail| frame::decode_body(&frame[..BLOCK], tail, &SEGMENT, 10).is_some());
}

#[test]
fn every_flipped_bit_of_a_header() {
    let mut block = vec![0; BLOCK];
    header().encode(&mut block).unwrap();
    flip_every_bit(&block, |block| SegmentHeader::decode(block, SEGMENT.pool, header().here).is_some());
}

#[test]
fn every_flipped_bit_of_a_footer() {
    let bytes = footer(large_body()).encode(SEGMENT.slots).unwrap();
    assert_eq!(bytes.len(), 3 * BLOCK);
    flip_every_bit(&bytes, |bytes| footer::decode(bytes, &SEGMENT).is_some());
}

#[test]
fn a_frame_in_another_place() {
    let body = small_body();
    let head = head(10, 3, &body);
    let frame = encoded(&head, &body);
    let block = &frame[..BLOCK];
    let found = |segment: SegmentId, start| frame::decode_head(block, &segment, start).is_some();
    assert!(found(SEGMENT, 10));
    assert!(!found(SEGMENT, 11), "misdirected within its segment");
    assert!(!found(SegmentId { seq: 76, ..SEGMENT }, 10), "left over from the segment's last use");
    assert!(!found(SegmentId { pool: 1, ..SEGMENT }, 10), "another pool's");
    assert!(!found(SegmentId { slots: 13, ..SEGMENT }, 10), "beyond the end of the segment");
}

#[test]
fn a_header_in_another_place() {
    let mut block = vec![0; BLOCK];
    header().encode(&mut block).unwrap();
    let here = header().here;
    assert!(SegmentHeader::decode(&block, SEGMENT.pool, here).is_some());
    assert!(SegmentHeader::decode(&block, 1, here).is_none());
    assert!(SegmentHeader::decode(&block, SEGMENT.pool, Place { segment: 13, ..here }).is_none());
    assert!(SegmentHeader::decode(&block, SEGMENT.pool, Place { device: 1, ..here }).is_none());
}

#[test]
fn a_footer_in_another_place() {
    let bytes = footer(small_body()).encode(SEGMENT.slots).unwrap();
    let found = |segment| footer::decode(&bytes, &segment).is_some();
    assert!(found(SEGMENT));
    assert!(!found(SegmentId { seq: 76, ..SEGMENT }));
    assert!(!found(SegmentId { pool: 1, ..SEGMENT }));
    assert!(!found(SegmentId { slots: 13, ..SEGMENT }), "its data would overlap it");
    let long = footer(large_body()).encode(SEGMENT.slots).unwrap();
    let counted = |slots| footer::decode_trailer(&long[2 * BLOCK..], &SegmentId { slots, ..SEGMENT });
    assert_eq!((counted(4), counted(3), counted(2)), (Some(3), None, None), "longer than its segment");
}

#[test]
fn a_tail_or_footer_of_another_length() {
    let body = large_body();
    let head = head(10, 101, &body);
    let frame = encoded(&head, &body);
    let tail = tail_of(&head, &frame);
    for tail in [&tail[..BLOCK], &tail[..BLOCK + 1], &[]] {
        assert_eq!(frame::decode_body(&frame[..BLOCK], tail, &SEGMENT, 10), None);
    }
    let bytes = footer(body).encode(SEGMENT.slots).unwrap();
    for len in [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK] {
        assert_eq!(footer::decode(&bytes[bytes.len() - len..], &SEGMENT), None, "{len} bytes");
    }
}

/// Returns bodies with one defect each: no encoder writes them, and no decoder accepts them.
fn bad_bodies() -> Vec<(&'static str, Body)> {
    let with = |change: &dyn Fn(&mut Body)| {
        let mut body = small_body();
        change(&mut body);
        body
    };
    let push = |record: Record| with(&|body| body.records.push(record.clone()));
    let data = |object, block, slot, count: usize| {
        push(Record::Data { object, block, slot, checksums: SmallVec::from_elem(1, count) })
    };
    let mtime = Some(Time { sec: 0, nsec: 1_000_000_000 });
    vec![
        ("an object that is not there", push(Record::Forget { object: 2 })),
        ("no objects at all", with(&|body| body.objects.clear())),
        ("a billion nanoseconds", with(&|body| body.objects[1].mtime = mtime)),
        ("data in the head block", data(0, 0, 10, 1)),
        ("data behind the frame's", data(0, 0, 14, 1)),
        ("data that ends behind the frame's", data(0, 0, 13, 2)),
        ("a slot at the end of what fits", data(0, 0, u16::MAX, 2)),
        ("no checksums", data(0, 0, 11, 0)),
        ("data beyond the last block", data(0, BLOCKS_MAX, 11, 1)),
        ("an empty note", push(Record::UserRecord { bytes: Box::default() })),
        (
            "a note that is too long",
            push(Record::UserRecord { bytes: vec![1; crate::USER_RECORD_MAX + 1].into() }),
        ),
        ("a block number that overflows", data(0, u64::MAX, 11, 2)),
        (
            "invalidation beyond the last block",
            push(Record::Invalidate { object: 0, block: BLOCKS_MAX, count: 1 }),
        ),
        (
            "invalidation that overflows",
            push(Record::Invalidate { object: 0, block: 2, count: u64::MAX - 1 }),
        ),
        (
            "invalidation from beyond the last block",
            push(Record::Invalidate { object: 0, block: BLOCKS_MAX + 1, count: u64::MAX }),
        ),
    ]
}

#[test]
fn bad_bodies_are_neither_written_nor_read() {
    for (what, body) in bad_bodies() {
        let head = head(10, 3, &body);
        let mut buffer = vec![0xdd; head.blocks() * BLOCK];
        assert!(frame::encode(&head, &body, &mut buffer).is_err(), "{what}");
        assert!(buffer.iter().all(|&byte| byte == 0xdd), "{what}: nothing is written");
        assert_eq!(body::decode(&body::encode(&body), &(11..14)), None, "{what}");
    }
}

#[test]
fn footers_hold_no_data_in_header_or_footer() {
    let at = |slot| {
        let mut body = small_body();
        body.records[0] =
            Record::Data { object: 0, block: 0, slot, checksums: SmallVec::from_slice(&[1, 2]) };
        footer(body).encode(SEGMENT.slots).is_ok()
    };
    assert!(at(1) && at(253));
    assert!(!at(0) && !at(254) && !at(255));
    assert!(footer(large_body()).encode(3).is_err());
}

#[test]
fn counts_that_lie() {
    let bytes = body::encode(&small_body());
    let accepts = |bytes: &[u8]| body::decode(bytes, &(11..14)).is_some();
    assert!(accepts(&bytes));
    for (position, count) in [(0, 1_u32), (0, 3), (0, u32::MAX), (4, 4), (4, 6), (4, u32::MAX)] {
        let mut bytes = bytes.clone();
        bytes[position..position + 4].copy_from_slice(&count.to_le_bytes());
        assert!(!accepts(&bytes), "{count} at {position}");
    }
    for len in 0..bytes.len() {
        assert!(!accepts(&bytes[..len]), "cut to {len} bytes");
    }
    assert!(!accepts(&[&bytes[..], &[0]].concat()), "trailing garbage");
}

#[test]
fn keys_of_no_or_too_many_bytes() {
    let body = Body { objects: vec![small_body().objects.remove(1)], records: vec![] };
    let mut bytes = body::encode(&body);
    bytes.resize(200, 0);
    for len in [0, 65, 255] {
        bytes[BODY_BASE] = len;
        let len = usize::from(len) + BODY_BASE + 10;
        bytes.resize(len, 7);
        assert_eq!(body::decode(&bytes, &(1..2)), None);
    }
}

#[test]
fn heads_that_contradict_themselves_are_not_written() {
    let body = small_body();
    let refused = |head: FrameHead| frame::encode(&head, &body, &mut vec![0; head.blocks() * BLOCK]).is_err();
    let good = head(10, 3, &body);
    assert!(!refused(good));
    assert!(refused(FrameHead { start: 0, ..good }), "the header's slot");
    assert!(refused(FrameHead { tail_blocks: 1, ..good }), "more blocks than the body needs");
    assert!(refused(FrameHead { start: SLOTS_MAX - 3, ..good }), "beyond the largest segment");
}

#[test]
fn headers_that_contradict_themselves_are_not_written() {
    let refused = |header: SegmentHeader| header.encode(&mut [0; BLOCK]).is_err();
    let place = |device| Place { device, segment: 0 };
    assert!(!refused(header()));
    assert!(refused(SegmentHeader { here: place(16), ..header() }));
    assert!(refused(SegmentHeader { peer: Some(place(16)), ..header() }));
    assert!(refused(SegmentHeader { peer: Some(place(0)), ..header() }), "both legs on one device");
    assert!(refused(SegmentHeader { kind: SegmentKind::Clean, ..header() }), "clean with two legs");
    assert!(!refused(SegmentHeader { kind: SegmentKind::Clean, peer: None, ..header() }));
}

/// Sets a field and seals the block again, as a later version or a defect of this one would.
fn forged(block: &[u8], magic: [u8; 8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut block = block.to_vec();
    block[at..at + bytes.len()].copy_from_slice(bytes);
    seal(magic, &mut block);
    block
}

#[test]
fn sealed_blocks_with_unknown_contents() {
    let mut block = vec![0; BLOCK];
    header().encode(&mut block).unwrap();
    for (at, bytes) in [(16, [2, 0]), (18, [3, 0]), (88, [1, 0]), (4094, [0, 1])] {
        let block = forged(&block, *b"FBYSEGMT", at, &bytes);
        assert_eq!(SegmentHeader::decode(&block, SEGMENT.pool, header().here), None, "at {at}");
    }
    let body = small_body();
    let head = head(10, 3, &body);
    let frame = encoded(&head, &body);
    for (at, bytes) in [(16, [2, 0]), (20, [0, 1]), (22, [1, 0]), (28, [1, 0]), (4094, [0, 1])] {
        let mut frame = frame.clone();
        frame.splice(..BLOCK, forged(&frame[..BLOCK], *b"FBYFRAME", at, &bytes));
        assert_eq!(decode(&head, &frame), None, "at {at}");
    }
    let footer = footer(body).encode(SEGMENT.slots).unwrap();
    for (at, bytes) in [(16, [2, 0]), (18, [2, 0]), (20, [255, 255]), (4094, [0, 1])] {
        let footer = forged(&footer, *b"FBYFOOTR", at, &bytes);
        assert_eq!(footer::decode(&footer, &SEGMENT), None, "at {at}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        mut bytes in vec(any::<u8>(), 3 * BLOCK), magic in 0..3_usize, seal_it: bool, start: u16, slots: u16,
    ) {
        if seal_it {
            seal([*b"FBYSEGMT", *b"FBYFRAME", *b"FBYFOOTR"][magic], &mut bytes[..BLOCK]);
        }
        let segment = SegmentId { slots, ..SEGMENT };
        prop_assert_eq!(frame::decode_head(&bytes[..BLOCK], &segment, start), None);
        prop_assert_eq!(frame::decode_body(&bytes[..BLOCK], &bytes[BLOCK..], &segment, start), None);
        prop_assert_eq!(footer::decode_trailer(&bytes[..BLOCK], &segment), None);
        prop_assert_eq!(footer::decode(&bytes, &segment), None);
        prop_assert_eq!(SegmentHeader::decode(&bytes[..BLOCK], SEGMENT.pool, header().here), None);
    }

    #[test]
    fn random_bodies_never_panic(bytes in vec(any::<u8>(), 0..600), objects in 0..4_u32, records in 0..9_u32) {
        let bytes = [&objects.to_le_bytes()[..], &records.to_le_bytes(), &bytes].concat();
        if let Some(body) = body::decode(&bytes, &(1..200)) {
            prop_assert_eq!(body::encode(&body), bytes);
        }
    }

    #[test]
    fn bodies_with_changed_bytes_never_panic(body in any_body(), changes in vec((any::<u16>(), any::<u8>()), 1..9)) {
        let mut bytes = body::encode(&body);
        for (at, byte) in changes {
            let len = bytes.len();
            bytes[usize::from(at) % len] = byte;
        }
        if let Some(body) = body::decode(&bytes, &(1..12)) {
            prop_assert_eq!(body::encode(&body), bytes, "one encoding for each body");
        }
    }
}
