//! Fuzzes superblocks: a decoded superblock must encode to its input, except for features that an older format lacks.
#![no_main]

use forebay_engine::pool::Superblock;
use forebay_fuzz::{blocks, seal};
use libfuzzer_sys::fuzz_target;

/// Position of the features that a reader must know.
const FEATURES: std::ops::Range<usize> = 24..32;

fuzz_target!(|bytes: &[u8]| {
    let (mut block, _) = blocks(bytes);
    assert!(bytes.starts_with(b"FOREBAY\0") || Superblock::decode(&block).is_err());
    seal(b"FOREBAY\0", &mut block);
    if let Ok(superblock) = Superblock::decode(&block) {
        let encoded = superblock.encode();
        if encoded[FEATURES] == block[FEATURES] {
            assert_eq!(encoded[..], block[..]);
        }
        assert!(Superblock::decode(&encoded).is_ok_and(|again| again.encode()[..] == encoded[..]));
    }
});
