//! Blocks with valid checksums, so that the fuzzer reaches the code behind the checksum test. The checksums follow
//! docs/on-disk-format.md and do not use the code under test.

use forebay_engine::buffer::BLOCK;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Returns the first block of `bytes`, and the remaining blocks. The last block is filled with zeros.
pub fn blocks(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (first, rest) = bytes.split_at(bytes.len().min(BLOCK));
    let filled = |bytes: &[u8], blocks: usize| {
        let mut filled = bytes.to_vec();
        filled.resize(blocks * BLOCK, 0);
        filled
    };
    (filled(first, 1), filled(rest, rest.len().div_ceil(BLOCK)))
}

/// Gives the block this magic number and a valid checksum.
pub fn seal(magic: &[u8; 8], block: &mut [u8]) {
    let sum = xxh3_64_with_seed(&block[16..], u64::from_le_bytes(*magic));
    block[..8].copy_from_slice(magic);
    block[8..16].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the checksum of blocks that a sealed block covers.
pub fn hash(blocks: &[u8]) -> [u8; 8] {
    xxh3_64(blocks).to_le_bytes()
}

/// Returns the bytes of a field.
pub fn at<const N: usize>(block: &[u8], offset: usize) -> [u8; N] {
    std::array::from_fn(|byte| block[offset + byte])
}
