//! GETATTR, LOOKUP or ACCESS of one small file after the other.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::tree::Tree;
use super::{Call, Next, Progress, Workload};
use crate::options::Pattern;
use crate::protocol::{Answer, Request};

/// A client that asks for attributes.
pub(crate) struct Attributes {
    tree: Arc<Tree>,
    pattern: Pattern,
    issued: u64,
    limit: Option<u64>,
    asked: Vec<u32>,
}

impl Attributes {
    /// Returns a client that does what `pattern` says: GETATTR, LOOKUP or ACCESS.
    pub(crate) fn new(tree: Arc<Tree>, pattern: Pattern, limit: Option<u64>, depth: u16) -> Self {
        Self { tree, pattern, issued: 0, limit, asked: vec![0; depth.into()] }
    }
}

impl Workload for Attributes {
    fn next(&mut self, slot: usize, stopping: bool) -> Next {
        if stopping || self.limit.is_some_and(|limit| self.issued >= limit) {
            return Next::Finished;
        }
        self.asked[slot] = (self.issued % u64::from(self.tree.items)) as u32;
        self.issued += 1;
        Next::Begin
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let item = self.asked[slot];
        let (object, name) = (self.tree.handle(item), self.tree.name(item));
        call.start(&match self.pattern {
            Pattern::Lookup => Request::Lookup { dir: self.tree.dir_of(item), name: name.as_bytes() },
            Pattern::Access => Request::Access { object },
            _ => Request::Getattr { object },
        });
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        let item = self.asked[slot];
        let what = || self.tree.name(item).to_string();
        match self.pattern {
            Pattern::Lookup => {
                let found = answer.named(answer.found(), what)?;
                if found.handle != Some(self.tree.handle(item)) {
                    bail!("LOOKUP of {} returned another handle than CREATE", what());
                }
            }
            Pattern::Access => answer.named(answer.done(), what)?,
            _ => drop(answer.named(answer.attributes(), what)?),
        }
        Ok(Progress::COMPLETE)
    }
}
