//! Self-describing contents. Write `generation` stamps every 8-byte word of a block with the numbers of the write, the
//! object, the block and the word. So wrong bytes are distinguished from old ones at a glance.

use std::ops::Range;

use forebay_engine::buffer::BLOCK;

/// The number of a write; 0 stands for zeros.
pub type Generation = u32;

/// A block of an object, by the world's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The object's number.
    pub object: u8,
    /// The block's number.
    pub block: u64,
}

const WORD: usize = 8;
/// Marks a stamped word. It is never 0, so no stamped word is zero.
const MARK: u64 = 0x2b;

/// Returns the stamp of one word of a block. It is zero only for generation 0, that is for contents that no write has
/// made.
fn word(generation: Generation, place: Place, index: usize) -> u64 {
    if generation == 0 {
        return 0;
    }
    // 24 bits of generation, 8 of object, 16 of block, 9 of word, 7 of mark.
    u64::from(generation) << 40
        | u64::from(place.object) << 32
        | (place.block & 0xffff) << 16
        | (index as u64) << 7
        | MARK
}

/// The stamp of the bytes that a write leaves in a block: the write, the object and the block. A clone of the block has
/// the stamp of its source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp of zeros.
    pub const ZEROS: Stamp = Stamp(0);
    /// The stamp of unknown bytes, whose copies faults have all destroyed. Any write may have left them.
    pub const UNKNOWN: Stamp = Stamp(u64::MAX);

    /// Returns the stamp of write `generation` in a block.
    pub fn new(generation: Generation, place: Place) -> Self {
        Stamp(word(generation, place, 0))
    }

    /// Returns the number of the write.
    #[cfg(test)]
    pub fn generation(self) -> Generation {
        (self.0 >> 40) as Generation
    }

    /// Returns the stamped word with this index.
    fn word(self, index: usize) -> u64 {
        if self == Stamp::ZEROS { 0 } else { self.0 | (index as u64) << 7 }
    }
}

impl std::fmt::Debug for Stamp {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match decode(self.0) {
            _ if *self == Stamp::UNKNOWN => write!(to, "unknown"),
            Some((0, ..)) => write!(to, "zeros"),
            Some((generation, place, _)) => write!(to, "{generation} of {}/{}", place.object, place.block),
            None => write!(to, "{:x}", self.0),
        }
    }
}

/// Returns the write, place and index that a word claims.
fn decode(word: u64) -> Option<(Generation, Place, usize)> {
    if word == 0 {
        return Some((0, Place { object: 0, block: 0 }, 0));
    }
    let place = Place { object: (word >> 32) as u8, block: (word >> 16) & 0xffff };
    (word & 0x7f == MARK).then_some(((word >> 40) as u32, place, (word >> 7) as usize & 0x1ff))
}

/// Fills `bytes`, which begin `start` bytes into the block, with the stamps of write `generation`.
pub fn fill(bytes: &mut [u8], start: usize, generation: Generation, place: Place) {
    if generation == 0 {
        return bytes.fill(0);
    }
    let (head, rest) = bytes.split_at_mut(head(start).min(bytes.len()));
    let part = |bytes: &mut [u8], at: usize| {
        let stamp = word(generation, place, at / WORD).to_le_bytes();
        bytes.copy_from_slice(&stamp[at % WORD..][..bytes.len()]);
    };
    let first = (start + head.len()) / WORD;
    let (words, tail) = rest.as_chunks_mut();
    part(tail, (first + words.len()) * WORD);
    part(head, start);
    for (index, bytes) in (first..).zip(words) {
        *bytes = word(generation, place, index).to_le_bytes();
    }
}

/// Returns the number of bytes from `start` to the next word.
fn head(start: usize) -> usize {
    (WORD - start % WORD) % WORD
}

/// A block's contents as runs of bytes: the start of each run, and the stamp of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Runs(Vec<(u16, Stamp)>);

impl Runs {
    /// Returns unknown contents.
    pub fn unknown() -> Self {
        Runs(vec![(0, Stamp::UNKNOWN)])
    }
}

impl Default for Runs {
    fn default() -> Self {
        Runs(vec![(0, Stamp::ZEROS)])
    }
}

impl Runs {
    /// Returns the runs with their ends.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, Stamp)> {
        self.0.iter().enumerate().map(|(index, (start, stamp))| {
            let end = self.0.get(index + 1).map_or(BLOCK, |next| usize::from(next.0));
            (usize::from(*start)..end, *stamp)
        })
    }

    /// Overwrites the bytes of `range`.
    pub fn apply(&mut self, range: &Range<usize>, stamp: Stamp) {
        if range.is_empty() {
            return;
        }
        let old = std::mem::take(&mut self.0);
        let ends: Vec<usize> = old.iter().skip(1).map(|run| usize::from(run.0)).chain([BLOCK]).collect();
        let mut after = None;
        for ((start, owner), end) in old.iter().copied().zip(ends) {
            let start = usize::from(start);
            if start < range.start {
                self.push(start, owner);
            }
            if end > range.end && after.is_none() {
                after = Some(());
                self.push(range.start, stamp);
                self.push(range.end.max(start), owner);
            } else if end > range.end {
                self.push(start, owner);
            }
        }
        if after.is_none() {
            self.push(range.start, stamp);
        }
    }

    /// Adds the start of a run, unless it continues the last run.
    fn push(&mut self, start: usize, stamp: Stamp) {
        if self.0.last().is_none_or(|last| last.1 != stamp) {
            self.0.push((start as u16, stamp));
        }
    }

    /// Returns true if `bytes`, the block's bytes from `start` on, are these contents.
    pub fn matches(&self, bytes: &[u8], start: usize) -> bool {
        let end = start + bytes.len();
        self.iter().all(|(run, stamp)| {
            let (from, to) = (run.start.max(start), run.end.min(end));
            from >= to || matches(&bytes[from - start..to - start], from, stamp)
        })
    }
}

/// Returns true if `bytes`, which begin `start` bytes into the block, are those that a write with this stamp leaves
/// there.
pub fn matches(bytes: &[u8], start: usize, stamp: Stamp) -> bool {
    if stamp == Stamp::UNKNOWN {
        return true;
    }
    if stamp == Stamp::ZEROS {
        // Whole chunks are compared many bytes at a time, without a branch for each.
        return bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0);
    }
    let (head, rest) = bytes.split_at(head(start).min(bytes.len()));
    let same = |bytes: &[u8], at: usize| stamp.word(at / WORD).to_le_bytes()[at % WORD..].starts_with(bytes);
    let first = (start + head.len()) / WORD;
    let (words, tail) = rest.as_chunks();
    let whole = |(index, bytes): (usize, &[u8; WORD])| u64::from_le_bytes(*bytes) == stamp.word(index);
    same(head, start) && (first..).zip(words).all(whole) && same(tail, (first + words.len()) * WORD)
}

/// Returns true if every whole word is zero, or a stamp from a write up to `newest` of a place that `fits`. An old
/// version counts as well.
pub fn plausible(bytes: &[u8], start: usize, newest: Generation, fits: impl Fn(Place) -> bool) -> bool {
    let head = head(start);
    let words = bytes.get(head..).unwrap_or_default().chunks_exact(WORD);
    let mut all = words.enumerate().map(|(index, bytes)| (index + (start + head) / WORD, bytes));
    // Words at the ends of unaligned writes are mixed. Two neighbours suffice to distinguish this block from an
    // unrelated one.
    let strange = all
        .by_ref()
        .filter(|(index, bytes)| {
            let value = u64::from_le_bytes((*bytes).try_into().unwrap_or_default());
            match decode(value) {
                Some((0, ..)) => false,
                Some((generation, found, at)) => generation > newest || !fits(found) || at != *index,
                None => true,
            }
        })
        .count();
    strange <= 8
}

/// Describes the stamps in the bytes, for a person.
pub fn describe(bytes: &[u8], start: usize) -> String {
    let head = head(start);
    let mut text = String::new();
    let mut last = None;
    for (index, chunk) in bytes.get(head..).unwrap_or_default().chunks_exact(WORD).enumerate() {
        let found = decode(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
        let kind = found.map(|(generation, place, _)| (generation, place));
        if last != Some(kind) {
            last = Some(kind);
            let at = start + head + index * WORD;
            match kind {
                Some((0, _)) => text += &format!(" {at}: zeros"),
                Some((generation, place)) => {
                    text += &format!(" {at}: write {generation} of {}/{}", place.object, place.block);
                }
                None => text += &format!(" {at}: mixed or garbage"),
            }
            if text.len() > 400 {
                return text + " ...";
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Stamps and their comparison, byte by byte.
    #[test]
    fn words_and_parts_of_words_are_stamped_and_compared_as_single_bytes_are() {
        let mut rng = Rng::new(2);
        for _ in 0..2000 {
            let place = Place { object: rng.draw() as u8, block: rng.draw() };
            let generation = rng.index(3) as u32 * 70_000;
            let start = rng.index(BLOCK);
            let mut bytes = vec![7; rng.index((BLOCK - start).min(400) + 1)];
            fill(&mut bytes, start, generation, place);
            for (at, byte) in (start..).zip(&bytes) {
                assert_eq!(*byte, word(generation, place, at / WORD).to_le_bytes()[at % WORD]);
            }
            assert!(matches(&bytes, start, Stamp::new(generation, place)));
            if !bytes.is_empty() {
                let at = rng.index(bytes.len());
                bytes[at] ^= 1 << rng.index(8);
                assert!(!matches(&bytes, start, Stamp::new(generation, place)));
            }
        }
    }

    #[test]
    fn runs_are_what_a_byte_by_byte_model_says() {
        let mut rng = Rng::new(1);
        for _ in 0..300 {
            let mut runs = Runs::default();
            let mut bytes = vec![0; BLOCK];
            let place = Place { object: 3, block: 77 };
            for generation in 1..rng.within(2, 9) as u32 {
                let (a, b) = (rng.index(BLOCK + 1), rng.index(BLOCK + 1));
                let range = a.min(b)..a.max(b);
                let generation = if rng.chance(2000) { 0 } else { generation };
                fill(&mut bytes[range.clone()], range.start, generation, place);
                runs.apply(&range, Stamp::new(generation, place));
                assert!(runs.matches(&bytes, 0), "{runs:?}");
                let from = rng.index(BLOCK);
                assert!(runs.matches(&bytes[from..], from));
            }
            assert!(plausible(&bytes, 0, 9, |found| found == place));
            let at = rng.index(BLOCK);
            bytes[at] ^= 1;
            assert!(!runs.matches(&bytes, 0));
        }
    }
}
