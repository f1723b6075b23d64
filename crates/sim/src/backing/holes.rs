//! Changes of a file that only the file system can make: holes, reserved space, and clones.

use std::ops::Range;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::{BackingError, BackingResult, Io, Key, Time};

use super::io::EIO;
use super::{State, Store, Stuck};
use crate::hits::Fault;

/// The error of a clone that ends behind the source, or within a block of the target (EINVAL).
pub const UNFIT: BackingError = BackingError::Io(22);

/// The bytes of a clone.
#[derive(Clone)]
pub struct CloneRange {
    /// The file to share blocks of.
    pub source: Key,
    /// Offset in the source, a multiple of the block size.
    pub from: u64,
    /// The file that gets the blocks.
    pub target: Key,
    /// Offset in the target, a multiple of the block size.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Store {
    /// Fills bytes with zeros, and frees the space of whole blocks. After an error this may have happened up to the end
    /// of a block.
    pub fn punch(&self, object: &Key, range: Range<u64>, now: Time) -> Io<BackingResult<()>> {
        let (object, volume) = (object.clone(), self.volume_of(object));
        self.sticky(volume, Stuck::Write, 10, move |store, state| {
            let fails = store.fails(state, volume);
            let len = match fails {
                true => state.part(range.start, (range.end - range.start) as usize) as u64,
                false => range.end - range.start,
            };
            state.assert_apart(&object, &range);
            let number = state.number();
            let file = state.files.get_mut(&object).ok_or(BackingError::Gone)?;
            file.punch(number, &(range.start..range.start + len), now);
            if fails { Err(BackingError::Io(EIO)) } else { Ok(()) }
        })
    }

    /// Reserves space. The file grows if the range ends behind its end.
    pub fn reserve(&self, object: &Key, range: Range<u64>, now: Time) -> Io<BackingResult<()>> {
        let (object, volume) = (object.clone(), self.volume_of(object));
        self.sticky(volume, Stuck::Write, 10, move |store, state| {
            if store.fails(state, volume) {
                return Err(BackingError::Io(EIO));
            }
            let len = (range.end - range.start) as usize;
            if let Some((_, error)) = state.room(&object, range.start, len) {
                store.hits.hit(if error == BackingError::Quota { Fault::Quota } else { Fault::NoSpace });
                return Err(error);
            }
            let number = state.number();
            let file = state.files.get_mut(&object).ok_or(BackingError::Gone)?;
            file.reserve(number, &range, now);
            Ok(())
        })
    }

    /// Makes blocks of one file have the contents of blocks of a file. Passes these to `taken` at that moment.
    pub fn share(
        &self,
        range: CloneRange,
        now: Time,
        taken: impl FnOnce(&[u8]) + Send + 'static,
    ) -> Io<BackingResult<()>> {
        let volume = self.volume_of(&range.target);
        self.sticky(volume, Stuck::Write, 10, move |store, state| {
            if store.fails(state, volume) {
                return Err(BackingError::Io(EIO));
            }
            taken(&state.share_now(&range, now)?);
            Ok(())
        })
    }
}

impl State {
    /// Carries out a clone, and returns the shared bytes.
    fn share_now(&mut self, range: &CloneRange, now: Time) -> BackingResult<Vec<u8>> {
        let CloneRange { source, from, target, offset, len } = range;
        let (block, end) = (BLOCK as u64, offset + len);
        let (there, own) = (self.size(source)?, self.size(target)?);
        // Only the last part of a file may be less than a block, and only where the target does not go on behind it.
        let whole = len.is_multiple_of(block) || from + len == there && end >= own;
        if from + len > there || !whole {
            return Err(UNFIT);
        }
        self.assert_apart(target, &(*offset..end));
        let blocks = from / block..(from + len).div_ceil(block);
        let file = self.files.get(source).ok_or(BackingError::Gone)?;
        let pages: Vec<_> = blocks.map(|at| file.shared(at)).collect();
        let mut bytes: Vec<u8> =
            pages.iter().flat_map(|page| page.as_ref().map_or([0; BLOCK], |page| **page)).collect();
        bytes.truncate(*len as usize);
        let number = self.number();
        let file = self.files.get_mut(target).ok_or(BackingError::Gone)?;
        file.share(number, offset / block, pages, end, now);
        Ok(bytes)
    }

    fn size(&self, object: &Key) -> BackingResult<u64> {
        Ok(self.files.get(object).ok_or(BackingError::Gone)?.current.size)
    }
}
