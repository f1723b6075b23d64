//! Reads: from the write cache, from read-ahead, or from the disks.

use super::Nanos;
use super::array::{Array, Token};
use super::geometry::Extent;
use crate::model::BLOCK;

impl Array {
    /// Serves a read from the write cache, from pieces that were read ahead, or with commands to the disks. Then
    /// reads ahead if the read continues a stream.
    pub(super) fn read_arrived(&mut self, at: Nanos, request: usize, offset: u64, length: u64) {
        let stream = self.readers.observe(offset, length);
        let window = u64::from(self.model.controller.read_ahead_kib) * 1024;
        let mut missing = Vec::new();
        let mut waits = 0;
        if !self.in_write_cache(offset, length) {
            match stream.filter(|_| window > 0) {
                Some(slot) => waits = self.readers.join(slot, (offset, length), request, &mut missing),
                None => missing.push((offset, length)),
            }
        }
        let mut extents = Vec::new();
        for (offset, length) in missing {
            self.geometry.extents(offset, length, &mut extents);
        }
        if let Some(waiting) = self.requests[request].as_mut() {
            waiting.pending = waits + extents.len() as u32;
            if waiting.pending == 0 {
                self.answer(at, request);
            }
        }
        self.command(at, &extents, false, Token::Request(request));
        if let Some(slot) = stream.filter(|_| window > 0) {
            self.read_ahead(at, slot, window, &mut extents);
        }
    }

    /// Sends the disk commands that fill the read-ahead window of a stream. `extents` is scratch space.
    fn read_ahead(&mut self, at: Nanos, slot: usize, window: u64, extents: &mut Vec<Extent>) {
        for (key, start, end) in self.readers.ahead(slot, window, self.geometry.chunk(), self.geometry.size())
        {
            extents.clear();
            self.geometry.extents(start, end - start, extents);
            self.readers.issued(key, extents.len() as u32);
            self.command(at, extents, false, Token::Piece(key));
        }
    }

    /// Returns true if stripes on their way to the disks hold every block of the range.
    fn in_write_cache(&self, offset: u64, length: u64) -> bool {
        if !self.cached() || self.stripes.is_empty() {
            return false;
        }
        let size = self.geometry.stripe_bytes();
        (offset / size..(offset + length).div_ceil(size)).all(|id| {
            let start = (offset.max(id * size) - id * size) / BLOCK;
            let end = ((offset + length).min((id + 1) * size) - id * size) / BLOCK;
            let (start, end) = (start as u32, end as u32);
            self.stripes.get(&id).is_some_and(|s| {
                s.dirty.covers(start, end) || s.round.as_ref().is_some_and(|r| r.blocks.covers(start, end))
            })
        })
    }
}
