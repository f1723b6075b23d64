//! CREATE, WRITE, COMMIT of one small file after the other: the requests of open, write and close.

use std::sync::Arc;

use anyhow::{Result, bail};
use forebay_wire::nfs3::*;
use forebay_wire::{Encode as _, Reader};

use super::meta::append_small;
use super::tree::Name;
use super::{Call, Next, Progress, Workload, result};
use crate::names::{Fate, Names, content_id};

#[derive(Debug, Clone, Copy)]
enum Step {
    Create,
    Write(FileHandle),
    /// Handle of the file, and the verifier of the WRITE.
    Commit(FileHandle, [u8; 8]),
}

/// A client that makes small files.
pub(crate) struct Smallfile {
    client: u32,
    dir: FileHandle,
    size: u32,
    stable: StableHow,
    issued: u64,
    limit: Option<u64>,
    slots: Vec<(u64, Step)>,
    /// Promised states of the files, if they are checked.
    names: Option<Arc<Names>>,
}

impl Smallfile {
    /// Returns a client that makes files of `size` bytes in `dir`. Its names must not be used by other clients.
    pub(crate) fn new(
        client: u32,
        dir: FileHandle,
        size: u32,
        stable: StableHow,
        limit: Option<u64>,
        depth: u16,
        names: Option<Arc<Names>>,
    ) -> Self {
        let slots = vec![(0, Step::Create); depth.into()];
        Self { client, dir, size, stable, issued: 0, limit, slots, names }
    }

    fn note(&self, number: u64, fate: Fate) {
        if let Some(names) = &self.names {
            names.set(number, fate);
        }
    }

    fn name(&self, number: u64) -> Name {
        Name::new('s', self.client, number)
    }
}

impl Workload for Smallfile {
    fn next(&mut self, slot: usize, stopping: bool) -> Next {
        if !matches!(self.slots[slot].1, Step::Create) {
            return Next::GoOn;
        }
        if stopping || self.limit.is_some_and(|limit| self.issued >= limit) {
            return Next::Finished;
        }
        self.note(self.issued, Fate::Making);
        self.slots[slot].0 = self.issued;
        self.issued += 1;
        Next::Begin
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) -> Procedure {
        let (number, step) = self.slots[slot];
        match step {
            Step::Create => {
                let name = self.name(number);
                let how = CreateHow::Guarded(Sattr3 { mode: Some(0o644), ..Sattr3::default() });
                let target = DirOpArgs { dir: self.dir, name: name.as_bytes() };
                CreateArgs { target, how }.encode(call.start(Procedure::Create));
                Procedure::Create
            }
            Step::Write(file) => {
                let out = call.start(Procedure::Write);
                WriteArgs::encode_header(out, &file, 0, self.size, self.stable);
                append_small(out, content_id(self.client, number), self.size);
                Procedure::Write
            }
            Step::Commit(file, _) => {
                CommitArgs { file, offset: 0, count: 0 }.encode(call.start(Procedure::Commit));
                Procedure::Commit
            }
        }
    }

    fn reply(&mut self, slot: usize, body: &mut Reader<'_>) -> Result<Progress> {
        let (number, step) = self.slots[slot];
        let name = self.name(number);
        let what = || name.to_string();
        let (step, progress) = match step {
            Step::Create => {
                let made: CreateOk = result::<_, WccData>(body, Procedure::Create, what)?;
                let Some(file) = made.object else {
                    bail!("CREATE of {name} returned no handle; this pattern cannot measure such a server");
                };
                self.note(number, Fate::There);
                (Step::Write(file), Progress::CONTINUE)
            }
            Step::Write(file) => {
                let written: WriteOk = result::<_, WccData>(body, Procedure::Write, what)?;
                if written.count != self.size {
                    bail!("WRITE of {name} wrote {} of {} bytes", written.count, self.size);
                }
                if written.committed == StableHow::Unstable {
                    (Step::Commit(file, written.verf), Progress::CONTINUE.with_bytes(self.size.into()))
                } else {
                    self.note(number, Fate::Filled);
                    (Step::Create, Progress::COMPLETE.with_bytes(self.size.into()))
                }
            }
            Step::Commit(_, verifier) => {
                let committed: CommitOk = result::<_, WccData>(body, Procedure::Commit, what)?;
                if committed.verf != verifier {
                    bail!(
                        "the server's write verifier has changed: the server was restarted, or lost unstable data"
                    );
                }
                self.note(number, Fate::Filled);
                (Step::Create, Progress::COMPLETE)
            }
        };
        self.slots[slot].1 = step;
        Ok(progress)
    }
}
