//! A hash that never changes between versions, because ids and directory names derived from it outlive the program.

/// Returns the FNV-1a hash, 64 bits, of all parts in order.
pub(crate) fn fnv1a(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        // The terminator keeps ["ab", "c"] and ["a", "bc"] apart; no path contains a NUL.
        for &byte in part.iter().chain(&[0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// Folds both halves of the 64-bit hash into 32 bits. The result is never 0.
pub(crate) fn fold32(hash: u64) -> u32 {
    let folded = (hash >> 32) as u32 ^ hash as u32;
    folded.max(1)
}
