//! GETATTR, LOOKUP or ACCESS of one small file after the other.

use std::sync::Arc;

use anyhow::{Result, bail};
use forebay_wire::nfs3::*;
use forebay_wire::{Encode as _, Reader};

use super::tree::Tree;
use super::{Call, Next, Progress, Workload, result};

/// A client that asks for attributes.
pub(crate) struct Attributes {
    tree: Arc<Tree>,
    procedure: Procedure,
    issued: u64,
    limit: Option<u64>,
    asked: Vec<u32>,
}

impl Attributes {
    /// Returns a client that calls `procedure`: GETATTR, LOOKUP or ACCESS.
    pub(crate) fn new(tree: Arc<Tree>, procedure: Procedure, limit: Option<u64>, depth: u16) -> Self {
        Self { tree, procedure, issued: 0, limit, asked: vec![0; depth.into()] }
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

    fn send(&self, slot: usize, call: &mut Call<'_>) -> Procedure {
        let item = self.asked[slot];
        let out = call.start(self.procedure);
        let object = self.tree.handle(item);
        match self.procedure {
            Procedure::Lookup => {
                let name = self.tree.name(item);
                DirOpArgs { dir: self.tree.dir_of(item), name: name.as_bytes() }.encode(out);
            }
            Procedure::Access => AccessArgs { object, access: access::READ | access::MODIFY }.encode(out),
            _ => GetattrArgs { object }.encode(out),
        }
        self.procedure
    }

    fn reply(&mut self, slot: usize, body: &mut Reader<'_>) -> Result<Progress> {
        let item = self.asked[slot];
        let what = || self.tree.name(item).to_string();
        match self.procedure {
            Procedure::Lookup => {
                let found: LookupOk = result::<_, PostOpAttr>(body, Procedure::Lookup, what)?;
                if found.object != self.tree.handle(item) {
                    bail!("LOOKUP of {} returned another handle than CREATE", what());
                }
            }
            Procedure::Access => {
                let _: AccessOk = result::<_, PostOpAttr>(body, Procedure::Access, what)?;
            }
            _ => {
                let _: Fattr3 = result::<_, ()>(body, Procedure::Getattr, what)?;
            }
        }
        Ok(Progress::COMPLETE)
    }
}
