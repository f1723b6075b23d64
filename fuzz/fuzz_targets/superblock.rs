//! Superblocks: what decodes is encoded as the same bytes.
#![no_main]

use forebay_engine::pool::Superblock;
use forebay_fuzz::{blocks, seal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (mut block, _) = blocks(bytes);
    assert!(bytes.starts_with(b"FOREBAY\0") || Superblock::decode(&block).is_err());
    seal(b"FOREBAY\0", &mut block);
    if let Ok(superblock) = Superblock::decode(&block) {
        assert_eq!(superblock.encode()[..], block[..]);
    }
});
