//! A backing store for measurements.

use std::future::ready;

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing, BackingResult, Disowned, Io, Key, Time};

/// A backing store whose objects have this number of bytes, all zeros, and which takes every write.
pub(crate) struct Zeros(pub(crate) u64);

impl Backing for Zeros {
    fn volumes(&self) -> Vec<u32> {
        vec![0]
    }

    fn volume(&self, _: &Key) -> u32 {
        0
    }

    fn name(&self, _: u32) -> String {
        "zeros".to_owned()
    }

    fn size(&self, _: &Key) -> Io<BackingResult<u64>> {
        Box::pin(ready(Ok(self.0)))
    }

    fn read(&self, _: &Key, _: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        let len = buffer.len();
        Box::pin(ready((buffer, Ok(len))))
    }

    fn write(&self, _: &Key, _: u64, _: Slice) -> Io<BackingResult<()>> {
        Box::pin(ready(Ok(())))
    }

    fn truncate(&self, _: &Key, _: u64) -> Io<BackingResult<()>> {
        Box::pin(ready(Ok(())))
    }

    fn set_mtime(&self, _: &Key, _: Time) -> Io<BackingResult<()>> {
        Box::pin(ready(Ok(())))
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        Box::pin(ready(objects.iter().map(|_| Ok(())).collect()))
    }

    fn free(&self) -> Io<BackingResult<u64>> {
        Box::pin(ready(Ok(u64::MAX)))
    }

    fn disown(&self, _: u128, _: &Key, _: Disowned) -> Io<BackingResult<()>> {
        Box::pin(ready(Ok(())))
    }

    fn disowned(&self, _: u128) -> Io<BackingResult<Vec<(Key, Disowned)>>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn forget_disowned(&self, _: u128) -> Io<BackingResult<()>> {
        Box::pin(ready(Ok(())))
    }
}
