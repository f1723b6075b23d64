//! Fuzzes headers of segments: a decoded header must encode to its input.
#![no_main]

use forebay_engine::format::{Place, SegmentHeader};
use forebay_fuzz::{at, blocks, seal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut block, _) = blocks(bytes);
    seal(b"FBYSEGMT", &mut block);
    let pool = u128::from_le_bytes(at(&block, 32));
    let device = u16::from_le_bytes(at(&block, 20));
    let here = Place { device, segment: u32::from_le_bytes(at(&block, 24)) };
    let Some(header) = SegmentHeader::decode(&block, pool, here) else { return };
    let mut again = vec![0xdd; block.len()];
    assert_eq!(header.encode(&mut again), Ok(()));
    assert_eq!(again, block);
    assert_eq!(SegmentHeader::decode(&block, !pool, here), None);
});
