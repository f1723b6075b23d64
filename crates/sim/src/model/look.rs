//! Checks of reads, crashes and whole states against the model.

use std::collections::BTreeMap;

use super::{Model, blocks};
use crate::content::Content;

/// A read in progress, with the state that it must see.
pub struct Reading {
    pub(super) object: u8,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) size: u64,
    pub(super) blocks: BTreeMap<u64, u64>,
}

impl Model {
    /// Begins a read.
    pub fn begin_read(&mut self, object: u8, offset: u64, len: usize) -> Reading {
        let mut reading = Reading { object, offset, len, size: 0, blocks: BTreeMap::new() };
        if let Some(state) = self.objects.get_mut(&object) {
            state.readers += 1;
            reading.size = state.size.visible();
            let touched = state.blocks.range(blocks(&(offset..offset + len as u64)));
            reading.blocks = touched.map(|(block, register)| (*block, register.visible())).collect();
        }
        reading
    }

    /// Ends a read with `bytes`, or with `None` if it failed. An `Err` names the contents that the read must not have
    /// seen.
    pub fn end_read(&mut self, reading: &Reading, bytes: Option<&[u8]>) -> Result<(), String> {
        let (logged, lossy) = (self.logged, self.lossy);
        let Some(object) = self.objects.get_mut(&reading.object) else { return Ok(()) };
        object.readers -= 1;
        let result = bytes.map_or(Ok(()), |bytes| self.look(reading, bytes));
        if let Some(object) = self.objects.get_mut(&reading.object) {
            object.fold(logged, lossy);
        }
        result
    }

    /// Compares the bytes that were found with the model.
    pub(super) fn look(&mut self, reading: &Reading, bytes: &[u8]) -> Result<(), String> {
        let newest = self.next;
        let Some(object) = self.objects.get_mut(&reading.object) else { return Ok(()) };
        if self.lenient {
            object.plausible(reading, bytes, newest)?;
        }
        object.check(reading, bytes)
    }

    /// Notes that the object has `size` bytes, with no operation in progress.
    pub fn observe_size(&mut self, object: u8, size: u64) -> Result<(), String> {
        let Some(state) = self.objects.get_mut(&object) else { return Ok(()) };
        let visible = state.size.visible();
        if std::mem::take(&mut state.unsized_since) {
            state.size.forget(size);
        }
        if !state.observe_size(visible, |value| *value == size) {
            let possible = state.size.possible(visible);
            return Err(format!("object {object} has size {size}, possible are {possible:?}"));
        }
        state.clip();
        Ok(())
    }

    /// Crashes the machine: all operations end, and changes that were not durable may be lost. Without a power cut, the
    /// page cache still exists. It becomes durable before the next read, except pages that failed syncs have lost.
    pub fn crash(&mut self, power: bool) {
        let logged = self.logged || power || !self.lossy;
        for object in self.objects.values_mut() {
            object.readers = 0;
            object.size.crash(logged, power);
            object.mtime.crash(logged, power);
            object.blocks.values_mut().for_each(|block| block.crash(logged, power));
            if !self.logged {
                object.cut_short();
            }
        }
        for operation in self.operations.values_mut() {
            operation.open = false;
            operation.past_log = false;
        }
    }

    /// Checks, after a crash and a read of everything, that the surviving changes are a prefix of the accepted ones, by
    /// number (P3).
    pub fn check_prefix(&mut self) -> Result<(), String> {
        let mut survived = Vec::new();
        let mut lost = Vec::new();
        for object in self.objects.values_mut() {
            for block in object.blocks.values_mut() {
                let (here, gone) = block.verdict();
                survived.extend(here);
                lost.extend(gone);
            }
        }
        let whole = |id: &u32| self.operations.get(id).filter(|operation| !operation.tears);
        let seq = |id: &u32| Some((whole(id)?.seq?, *id));
        let newest = survived.iter().filter_map(seq).max();
        let oldest = lost.iter().filter_map(seq).min();
        self.operations.clear();
        match (newest, oldest) {
            (Some((newest, kept)), Some((oldest, gone))) if oldest < newest && !self.lenient => Err(format!(
                "write {gone} (accepted as {oldest}) was lost while write {kept} (accepted as {newest}) survived"
            )),
            _ => Ok(()),
        }
    }

    /// Checks, after everything was destaged, that the backing file agrees with the model.
    pub fn check_backing(
        &mut self,
        object: u8,
        content: Option<&Content>,
        times: bool,
    ) -> Result<(), String> {
        if !self.objects.contains_key(&object) {
            return Ok(());
        }
        let Some(content) = content else {
            return Err(format!("object {object} is missing in the backing store"));
        };
        let size = self.size(object).max(content.size);
        let reading = self.begin_read(object, 0, size as usize + 1);
        let mut bytes = vec![0; size as usize + 1];
        let len = content.read(0, &mut bytes);
        self.end_read(&reading, Some(&bytes[..len]))
            .map_err(|error| format!("in the backing store, {error}"))?;
        let Some(state) = self.objects.get(&object) else { return Ok(()) };
        let filled = content.blocks().find(|block| !state.filled.contains_key(block));
        if let (Some(block), true) = (filled, self.holes) {
            return Err(format!(
                "block {block} of object {object} was a hole, and has space in the backing store"
            ));
        }
        if self.untimed {
            return Ok(());
        }
        let possible = state.mtime.possible(state.mtime.visible());
        // A truncation that was cut short may leave the time at which the backing store was changed.
        if times && !self.lenient && possible.len() == 1 && !possible.contains(&content.mtime) {
            let found = content.mtime;
            return Err(format!(
                "object {object} has mtime {found:?} in the backing store, not {possible:?}"
            ));
        }
        Ok(())
    }
}
