use super::*;

proptest! {
    #[test]
    fn frames(body in any_body(), seq: u64, epoch: u64, acked: u64, tail: u64, oldest: u64, seq_of: u64) {
        let head = FrameHead { seq, epoch, acked, tail, oldest_position: oldest, oldest_seq: seq_of, ..head(1, 10, &body) };
        let frame = encoded(&head, &body);
        prop_assert_eq!(frame::decode_head(&frame[..BLOCK], &SEGMENT, 1), Some(head));
        let decoded = frame::decode_body(&frame[..BLOCK], tail_of(&head, &frame), &SEGMENT, 1);
        prop_assert_eq!(decoded, Some(body));
        prop_assert!(frame[BLOCK..11 * BLOCK].iter().all(|&byte| byte == 0xdd), "the data is the caller's");
    }

    #[test]
    fn footers(body in any_body(), epoch: u64) {
        let footer = Footer { epoch, ..footer(body) };
        let bytes = footer.encode(SEGMENT.slots).unwrap();
        let last = &bytes[bytes.len() - BLOCK..];
        let count = frame_count(&bytes);
        prop_assert_eq!(decode_trailer(last), Some(count));
        prop_assert_eq!(usize::from(count), footer::blocks(body_len(&footer.body)));
        prop_assert_eq!(footer::decode(&bytes, &SEGMENT), Some(footer));
    }

    #[test]
    fn headers(
        epoch: u64, seq: u64, position: u64, first_frame: u64, previous: u64, log: bool, device in 0..16_u16, segment in 0..u32::MAX,
        peer in proptest::option::of(0..u32::MAX),
    ) {
        let kind = if log { SegmentKind::Log } else { SegmentKind::Clean };
        let peer = peer.filter(|_| log).map(|segment| Place { device: (device + 1) % 16, segment });
        let here = Place { device, segment };
        let header =
            SegmentHeader { pool: SEGMENT.pool, epoch, seq, position, kind, here, peer, first_frame, previous };
        let mut block = vec![0xdd; BLOCK];
        header.encode(&mut block).unwrap();
        prop_assert_eq!(SegmentHeader::decode(&block, SEGMENT.pool, here), Some(header));
    }

    #[test]
    fn lengths_are_exact(body in any_body()) {
        let mut len = BODY_BASE;
        len += body.objects.iter().map(facts_len).sum::<usize>();
        len += body.records.iter().map(record_len).sum::<usize>();
        prop_assert_eq!(body::encode(&body).len(), len);
    }
}

fn decode_trailer(last: &[u8]) -> Option<u16> {
    footer::decode_trailer(last, &SEGMENT)
}

fn frame_count(bytes: &[u8]) -> u16 {
    u16::try_from(bytes.len() / BLOCK).unwrap()
}

#[test]
fn a_body_spills_when_it_does_not_fit() {
    assert_eq!(frame::spill_blocks(0), 0);
    assert_eq!(frame::spill_blocks(frame::INLINE), 0);
    assert_eq!(frame::spill_blocks(frame::INLINE + 1), 1);
    assert_eq!(frame::spill_blocks(frame::INLINE + BLOCK), 1);
    assert_eq!(frame::spill_blocks(frame::INLINE + BLOCK + 1), 2);
}

#[test]
fn bodies_of_every_length_around_a_block_survive() {
    for padding in 0..12 {
        let mut body = small_body();
        while body_len(&body) < frame::INLINE - 24 {
            body.records.push(Record::Truncated { object: 0 });
        }
        body.records.extend(std::iter::repeat_n(Record::Forget { object: 0 }, padding));
        let head = head(10, 3, &body);
        let frame = encoded(&head, &body);
        let decoded = frame::decode_body(&frame[..BLOCK], tail_of(&head, &frame), &SEGMENT, 10);
        assert_eq!(decoded.as_ref(), Some(&body), "{} bytes", body_len(&body));
        let footer = footer(body);
        let bytes = footer.encode(SEGMENT.slots).unwrap();
        assert_eq!(footer::decode(&bytes, &SEGMENT), Some(footer));
    }
}

#[test]
fn a_frame_may_fill_its_segment_to_the_last_slot() {
    let body = Body::default();
    let head = head(200, 55, &body);
    let frame = encoded(&head, &body);
    assert_eq!(frame::decode_head(&frame[..BLOCK], &SEGMENT, 200), Some(head));
}
