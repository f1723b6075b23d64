//! The common part of all structures: a magic number, then a checksum of everything behind it in the block.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::buffer::BLOCK;

/// Bytes of a magic number. The checksum follows it.
pub(crate) const MAGIC_LEN: usize = 8;
const CONTENTS: usize = 16;

/// Returns the XXH3-64 of everything behind the checksum. The magic number is the seed, so that it is covered as
/// well.
fn checksum(magic: [u8; MAGIC_LEN], contents: &[u8]) -> [u8; 8] {
    xxh3_64_with_seed(contents, u64::from_le_bytes(magic)).to_le_bytes()
}

/// Puts magic and checksum in front of a block that is otherwise complete.
pub(crate) fn seal(magic: [u8; MAGIC_LEN], block: &mut [u8]) {
    let sum = checksum(magic, &block[CONTENTS..]);
    block[..MAGIC_LEN].copy_from_slice(&magic);
    block[MAGIC_LEN..CONTENTS].copy_from_slice(&sum);
}

/// Returns true if `block` is one whole block that [`seal`] made with `magic`.
pub(crate) fn sealed(magic: [u8; MAGIC_LEN], block: &[u8]) -> bool {
    block.len() == BLOCK
        && block[..MAGIC_LEN] == magic
        && block[MAGIC_LEN..CONTENTS] == checksum(magic, &block[CONTENTS..])
}

/// Returns true if all bytes are zeros.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Chunks of 64 bytes are checked at once. Byte by byte, this was a sixth of the time of the simulator's
    // exhaustive cases.
    bytes.chunks(64).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}
