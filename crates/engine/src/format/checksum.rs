//! Checksums of blocks. A block's checksum binds its identity (pool, object, block number) to its place and time of
//! writing (segment sequence, slot). So a stale, misplaced or foreign block never passes for the right one.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::io::Key;

/// Returns the hash of a block's contents alone. It is the costly part, to be computed outside of locks.
pub fn content_hash(block: &[u8]) -> u64 {
    xxh3_64(block)
}

/// Returns the hash of an object's key, for [`bind`]. The hash is part of the format and equal in every version of
/// Forebay.
pub fn key_hash(key: &Key) -> u64 {
    xxh3_64(key.as_bytes())
}

/// Returns the checksum of a block. The block has contents with hash `content`, and is block `block` of the object
/// with [`key_hash`] `key`. It is in slot `slot` of the segment that was opened as number `segment` of pool `pool`.
pub fn bind(content: u64, pool: u128, key: u64, block: u64, segment: u64, slot: u16) -> u32 {
    let mut identity = [0; 50];
    identity[..8].copy_from_slice(&content.to_le_bytes());
    identity[8..24].copy_from_slice(&pool.to_le_bytes());
    identity[24..32].copy_from_slice(&key.to_le_bytes());
    identity[32..40].copy_from_slice(&block.to_le_bytes());
    identity[40..48].copy_from_slice(&segment.to_le_bytes());
    identity[48..].copy_from_slice(&slot.to_le_bytes());
    xxh3_64_with_seed(&identity, 0) as u32
}
