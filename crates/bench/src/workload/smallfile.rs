//! CREATE, WRITE, COMMIT of one small file after the other: the requests of open, write and close. In NFSv4 they are
//! OPEN, WRITE, COMMIT and CLOSE.

use std::sync::Arc;

use anyhow::{Result, bail};
use forebay_wire::nfs3::StableHow;

use super::meta::append_small;
use super::tree::Name;
use super::{Call, Next, Progress, Workload};
use crate::names::{Fate, Names, content_id};
use crate::protocol::{Answer, Handle, Open, Request};

/// A file that was made, and its open.
#[derive(Debug, Clone, Copy)]
struct File {
    handle: Handle,
    open: Open,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Create,
    Write(File),
    /// The verifier is that of the WRITE.
    Commit(File, [u8; 8]),
    Close(File),
}

/// A client that makes small files.
pub(crate) struct Smallfile {
    client: u32,
    dir: Handle,
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
        dir: Handle,
        size: u32,
        stable: StableHow,
        limit: Option<u64>,
        depth: u16,
        names: Option<Arc<Names>>,
    ) -> Self {
        let slots = vec![(0, Step::Create); depth.into()];
        Self { client, dir, size, stable, issued: 0, limit, slots, names }
    }

    /// Records the state of a file that must survive a crash, if the run checks its files.
    fn note(&self, number: u64, fate: Fate) {
        if let Some(names) = &self.names {
            names.set(number, fate);
        }
    }

    /// Notes that a file has its content. Returns the next step.
    fn filled(&self, number: u64, file: File) -> Step {
        self.note(number, Fate::Filled);
        if file.open.is_some() { Step::Close(file) } else { Step::Create }
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

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let (number, step) = self.slots[slot];
        let name = self.name(number);
        match step {
            Step::Create => {
                let (dir, name) = (self.dir, name.as_bytes());
                call.start(&Request::Create { dir, name, mode: 0o644, exclusive: true });
            }
            Step::Write(File { handle: file, open }) => {
                let (count, stable) = (self.size, self.stable);
                let out = call.start(&Request::Write { file, open, offset: 0, count, stable });
                append_small(out, content_id(self.client, number), self.size);
            }
            Step::Commit(File { handle: file, .. }, _) => _ = call.start(&Request::Commit { file }),
            Step::Close(File { handle: file, open: Some(open) }) => {
                call.start(&Request::Close { file, open });
            }
            Step::Close(_) => _ = call.start(&Request::Null),
        }
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        let (number, step) = self.slots[slot];
        let name = self.name(number);
        let what = || name.to_string();
        let (step, bytes) = match step {
            Step::Create => {
                let made = answer.named(answer.made(), what)?;
                let Some(handle) = made.handle else {
                    bail!("CREATE of {name} returned no handle; this pattern cannot measure such a server");
                };
                self.note(number, Fate::There);
                (Step::Write(File { handle, open: made.open }), 0)
            }
            Step::Write(file) => {
                let written = answer.named(answer.written(), what)?;
                if written.count != self.size {
                    bail!("WRITE of {name} wrote {} of {} bytes", written.count, self.size);
                }
                let step = if written.committed == StableHow::Unstable {
                    Step::Commit(file, written.verifier)
                } else {
                    self.filled(number, file)
                };
                (step, self.size.into())
            }
            Step::Commit(file, verifier) => {
                if answer.named(answer.committed(), what)? != verifier {
                    bail!(
                        "the server's write verifier has changed: the server was restarted, or lost unstable data"
                    );
                }
                (self.filled(number, file), 0)
            }
            Step::Close(_) => {
                answer.named(answer.done(), what)?;
                (Step::Create, 0)
            }
        };
        self.slots[slot].1 = step;
        let progress = if matches!(step, Step::Create) { Progress::COMPLETE } else { Progress::CONTINUE };
        Ok(progress.with_bytes(bytes))
    }
}
