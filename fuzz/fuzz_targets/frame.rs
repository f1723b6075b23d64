//! Fuzzes the heads and bodies of frames: a decoded frame must encode to its input.
#![no_main]

use forebay_engine::buffer::BLOCK;
use forebay_engine::format::{SegmentId, frame};
use forebay_fuzz::{at, blocks, hash, seal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut block, tail) = blocks(bytes);
    block[104..112].copy_from_slice(&hash(&tail));
    seal(b"FBYFRAME", &mut block);
    let pool = u128::from_le_bytes(at(&block, 32));
    let seq = u64::from_le_bytes(at(&block, 96));
    let start = u16::from_le_bytes(at(&block, 18));
    let segment = SegmentId { pool, seq, slots: 16384 };
    let head = frame::decode_head(&block, &segment, start);
    let Some(body) = frame::decode_body(&block, &tail, &segment, start) else { return };
    let head = head.expect("a frame with a body has a head");
    // A frame as long as a segment takes much time, and the decoder does not read its data.
    if head.data_blocks > 64 {
        return;
    }
    let mut again = vec![0xdd; head.blocks() * BLOCK];
    assert_eq!(frame::encode(&head, &body, &mut again), Ok(()));
    assert_eq!(again[..BLOCK], block);
    assert_eq!(again[(1 + usize::from(head.data_blocks)) * BLOCK..], tail);
});
