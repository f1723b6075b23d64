//! READ of existing small files, to check their content.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use super::meta::check_small;
use super::{Call, Next, Progress, Workload};
use crate::names::Promise;
use crate::protocol::{Answer, Handle, Request};

/// A client that reads every `step`-th file of a list, starting with file `next`.
pub(crate) struct Contents {
    files: Arc<[(Handle, Promise)]>,
    next: usize,
    step: usize,
    asked: Vec<usize>,
}

impl Contents {
    pub(crate) fn new(files: Arc<[(Handle, Promise)]>, first: usize, step: usize, depth: u16) -> Self {
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

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let (file, promise) = &self.files[self.asked[slot]];
        let count = promise.size.unwrap_or_default();
        call.start(&Request::Read { file: *file, open: None, offset: 0, count });
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        let Promise { dir, name, content, size, .. } = &self.files[self.asked[slot]].1;
        let data = answer.named(answer.data(), || name.clone())?;
        if data.len() != size.unwrap_or_default() as usize {
            bail!("the file {dir}/{name} has lost its content: READ returned {} bytes", data.len());
        }
        check_small(data, *content).with_context(|| format!("the file {dir}/{name} is wrong"))?;
        Ok(Progress::COMPLETE.with_bytes(data.len() as u64))
    }
}
