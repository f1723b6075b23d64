//! Fuzzes footers: a decoded footer must encode to its input. The input is the last block, followed by the earlier
//! blocks.
#![no_main]

use forebay_engine::format::{SegmentId, footer};
use forebay_fuzz::{at, blocks, hash, seal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut last, spilled) = blocks(bytes);
    last[56..64].copy_from_slice(&hash(&spilled));
    seal(b"FBYFOOTR", &mut last);
    let pool = u128::from_le_bytes(at(&last, 32));
    let seq = u64::from_le_bytes(at(&last, 24));
    let segment = SegmentId { pool, seq, slots: 16384 };
    let counted = footer::decode_trailer(&last, &segment);
    let whole = [spilled, last].concat();
    let Some(footer) = footer::decode(&whole, &segment) else { return };
    assert_eq!(counted.map(|blocks| usize::from(blocks) * 4096), Some(whole.len()));
    assert_eq!(footer.encode(segment.slots).as_deref(), Ok(&whole[..]));
});
