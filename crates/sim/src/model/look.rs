//! Reads, crashes and other looks at the whole, held against the model.

use std::collections::BTreeMap;

use super::{Model, blocks};
use crate::content::Content;

/// A read under way: what it must see.
pub struct Reading {
    pub(super) object: u8,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) size: u64,
    pub(super) blocks: BTreeMap<u64, u64>,
}

impl Model {
    /// A read begins.
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

    /// A read ends with `bytes`, or without any where it failed; `Err` says what it must not have seen.
    pub fn end_read(&mut self, reading: &Reading, bytes: Option<&[u8]>) -> Result<(), String> {
        let lenient = self.lenient;
        let newest = self.next;
        let Some(object) = self.objects.get_mut(&reading.object) else { return Ok(()) };
        object.readers -= 1;
        let result = match bytes {
            Some(bytes) if lenient => {
                object.plausible(reading, bytes, newest).and_then(|()| object.check(reading, bytes))
            }
            Some(bytes) => object.check(reading, bytes),
            None => Ok(()),
        };
        object.settle(self.logged, self.lossy);
        result
    }

    /// The object turned out to have `size` bytes, with nothing under way.
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

    /// The machine crashed: nothing runs any more, and what was not durable may be lost. Where the power did not go,
    /// the page cache is still there, and is made durable before anybody looks, but for what failed syncs have lost.
    pub fn crash(&mut self, power: bool) {
        let settles = self.logged || power || !self.lossy;
        for object in self.objects.values_mut() {
            object.readers = 0;
            object.size.crash(settles, power);
            object.mtime.crash(settles, power);
            object.blocks.values_mut().for_each(|block| block.crash(settles, power));
            if !self.logged {
                object.cut_short();
            }
        }
        for operation in self.operations.values_mut() {
            operation.open = false;
        }
    }

    /// After a crash and a look at everything: what survived must be a prefix of what was accepted, by number (P3).
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

    /// Everything was destaged: the backing file must be what the model says.
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
        if self.untimed {
            return Ok(());
        }
        let possible = state.mtime.possible(state.mtime.visible());
        // One that was cut short may leave the time at which the backing store was changed.
        if times && !self.lenient && possible.len() == 1 && !possible.contains(&content.mtime) {
            let found = content.mtime;
            return Err(format!(
                "object {object} has mtime {found:?} in the backing store, not {possible:?}"
            ));
        }
        Ok(())
    }
}
