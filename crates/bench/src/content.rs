//! The content of files. Every unit (4 KiB, or one record if records are smaller) is a function of file, offset and
//! generation, and contains these three. So a reader can tell right from wrong, and stale from torn, by the unit
//! alone.

/// Bytes of a unit, if records are a multiple of it.
pub(crate) const UNIT: usize = 4096;
/// Number of eight-byte words that name the unit: magic and file, offset, generation.
const NAMING_WORDS: usize = 3;
/// Smallest unit in bytes: the naming words, and one word that depends on all of them.
pub(crate) const MIN_UNIT: usize = 32;

const MAGIC: u64 = 0x464f_5245_4241_5931;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The defect of a unit that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    /// The bytes are not a unit.
    #[error("the bytes were not written by forebay bench")]
    Foreign,
    /// The unit belongs to another file or offset.
    #[error("the bytes belong to file {file} at offset {offset}")]
    Misplaced {
        /// Number of the file that the unit names.
        file: u64,
        /// Offset in bytes that the unit names.
        offset: u64,
    },
    /// The unit's names are right, but its body belongs to other contents.
    #[error("generation {generation} is torn or corrupt {at} bytes into the unit")]
    Torn {
        /// Generation that the unit names.
        generation: u32,
        /// Offset of the first wrong byte in the unit.
        at: usize,
    },
}

/// Returns the finaliser of splitmix64: every bit of the result depends on every bit of `word`.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn base(file: u64, offset: u64, generation: u32) -> u64 {
    mix(mix(mix(file ^ MAGIC) ^ offset) ^ u64::from(generation))
}

/// Appends the unit of `file` at byte `offset` with `generation`. `unit` is the size in bytes, a multiple of 8 and at
/// least 32.
pub(crate) fn append(out: &mut Vec<u8>, file: u64, offset: u64, generation: u32, unit: usize) {
    let start = out.len();
    out.resize(start + unit, 0);
    let base = base(file, offset, generation);
    let words = out[start..].as_chunks_mut::<8>().0;
    for (number, word) in (0u64..).zip(words.iter_mut()) {
        *word = base.wrapping_add(number.wrapping_mul(STEP)).to_le_bytes();
    }
    words[0] = (MAGIC ^ file).to_le_bytes();
    words[1] = offset.to_le_bytes();
    words[2] = u64::from(generation).to_le_bytes();
}

/// Returns the generation of a unit read from `file` at byte `offset`; 0 for a unit that was never written.
pub(crate) fn check(bytes: &[u8], file: u64, offset: u64) -> Result<u32, Mismatch> {
    let words = bytes.as_chunks::<8>().0;
    let naming = |number: usize| u64::from_le_bytes(words[number]);
    if words.len() <= NAMING_WORDS {
        return Err(Mismatch::Foreign);
    }
    let (named_file, named_offset) = (naming(0) ^ MAGIC, naming(1));
    let Ok(generation) = u32::try_from(naming(2)) else { return Err(Mismatch::Foreign) };
    if (named_file, named_offset) != (file, offset) {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(0);
        }
        // File numbers are small, so bytes that name a large one are not a unit.
        return Err(if named_file >> 48 == 0 {
            Mismatch::Misplaced { file: named_file, offset: named_offset }
        } else {
            Mismatch::Foreign
        });
    }
    let base = base(file, offset, generation);
    let expected = |number: usize| base.wrapping_add((number as u64).wrapping_mul(STEP)).to_le_bytes();
    // The loop has no early exit, so that the compiler can compare many words at once.
    let difference = (NAMING_WORDS..words.len()).fold(0, |difference, number| {
        difference | (u64::from_le_bytes(words[number]) ^ u64::from_le_bytes(expected(number)))
    });
    if difference == 0 {
        return Ok(generation);
    }
    let first = (NAMING_WORDS..words.len()).find(|number| words[*number] != expected(*number));
    Err(Mismatch::Torn { generation, at: first.unwrap_or_default() * 8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(file: u64, offset: u64, generation: u32) -> Vec<u8> {
        let mut out = Vec::new();
        append(&mut out, file, offset, generation, UNIT);
        out
    }

    #[test]
    fn a_unit_names_its_generation() {
        let bytes = unit(3, 8192, 77);
        assert_eq!(bytes.len(), UNIT);
        assert_eq!(check(&bytes, 3, 8192), Ok(77));
        assert_eq!(check(&[0; UNIT], 3, 8192), Ok(0));
        let mut small = Vec::new();
        append(&mut small, 1, 0, 2, MIN_UNIT);
        assert_eq!(check(&small, 1, 0), Ok(2));
    }

    #[test]
    fn every_kind_of_damage_is_told() {
        let bytes = unit(3, 8192, 77);
        assert_eq!(check(&bytes, 4, 8192), Err(Mismatch::Misplaced { file: 3, offset: 8192 }));
        assert_eq!(check(&bytes, 3, 4096), Err(Mismatch::Misplaced { file: 3, offset: 8192 }));
        let mut torn = bytes.clone();
        torn[2048..].copy_from_slice(&unit(3, 8192, 78)[2048..]);
        assert_eq!(check(&torn, 3, 8192), Err(Mismatch::Torn { generation: 77, at: 2048 }));
        let mut short = bytes.clone();
        short[4095] = 0;
        short[4094] = !short[4094];
        assert_eq!(check(&short, 3, 8192), Err(Mismatch::Torn { generation: 77, at: 4088 }));
        assert_eq!(check(&[0xaa; UNIT], 3, 8192), Err(Mismatch::Foreign));
        let mut zeroed = bytes;
        zeroed[100..].fill(0);
        assert!(matches!(check(&zeroed, 3, 8192), Err(Mismatch::Torn { .. })));
    }
}
