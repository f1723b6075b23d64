//! READ of existing small files, to check their content.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_wire::nfs3::*;
use forebay_wire::{Encode as _, Reader};

use super::meta::check_small;
use super::{Call, Next, Progress, Workload, result};
use crate::names::Promise;

/// A client that reads every `step`-th file of a list, starting with file `next`.
pub(crate) struct Contents {
    files: Arc<[(FileHandle, Promise)]>,
    next: usize,
    step: usize,
    asked: Vec<usize>,
}

impl Contents {
    pub(crate) fn new(files: Arc<[(FileHandle, Promise)]>, first: usize, step: usize, depth: u16) -> Self {
        Self { files, next: first, step, asked: vec![0; depth.into()] }
    }
}

impl Workload for Contents {
    fn next(&mut self, slot: usize, _: bool) -> Next {
        if self.next >= self.files.len() {
            return Next::Finished;
        }
        self.asked[slot] = self.next;
        self.next += self.step;
        Next::Begin
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) -> Procedure {
        let (file, promise) = &self.files[self.asked[slot]];
        let count = promise.size.unwrap_or_default();
        ReadArgs { file: *file, offset: 0, count }.encode(call.start(Procedure::Read));
        Procedure::Read
    }

    fn reply(&mut self, slot: usize, body: &mut Reader<'_>) -> Result<Progress> {
        let Promise { dir, name, content, size, .. } = &self.files[self.asked[slot]].1;
        let read: ReadOk<'_> = result::<_, PostOpAttr>(body, Procedure::Read, || name.clone())?;
        if read.data.len() != size.unwrap_or_default() as usize {
            bail!("the file {dir}/{name} has lost its content: READ returned {} bytes", read.data.len());
        }
        check_small(read.data, *content).with_context(|| format!("the file {dir}/{name} is wrong"))?;
        Ok(Progress::COMPLETE.with_bytes(read.data.len() as u64))
    }
}
