//! The operations of one client of a trace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_profile::{Kind, Moved};
use forebay_wire::nfs3::StableHow;
use forebay_wire::xdr::padding;

use super::{Call, Next, Progress, Workload};
use crate::protocol::{Answer, Fault, Handle, Request};

/// Largest listing in bytes.
const LISTING: u32 = 64 << 10;

/// The parts of a replay that all clients share.
pub(crate) struct ReplayPlan {
    /// The directory of all files.
    pub(crate) dir: Handle,
    /// The files of the trace, each with its name.
    pub(crate) files: Vec<(String, Handle)>,
    /// True if operations begin when they did in the trace; false if they begin as soon as possible.
    pub(crate) keeps_time: bool,
    /// The longest delay of an operation behind its time in the trace, in nanoseconds.
    pub(crate) late_ns: AtomicU64,
}

/// An operation of the trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplayStep {
    /// The time since the begin of the trace.
    pub(crate) at: Duration,
    pub(crate) kind: Kind,
    pub(crate) file: Option<usize>,
    pub(crate) moved: Option<Moved>,
}

/// A client that repeats operations.
pub(crate) struct Replay {
    plan: Arc<ReplayPlan>,
    client: u32,
    steps: VecDeque<ReplayStep>,
    slots: Vec<Asked>,
    /// Names that this client has made, oldest first.
    made: VecDeque<u64>,
    /// The number of the next name.
    next: u64,
    began: Option<Instant>,
}

/// The request of a slot.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Nothing,
    Read { file: usize, offset: u64, count: u32 },
    Write { file: usize, offset: u64, count: u32, stable: StableHow },
    Commit { file: usize },
    Getattr { object: Handle },
    Access { object: Handle },
    SetMode { object: Handle },
    Lookup { file: usize },
    List,
    Create { number: u64 },
    Remove { number: u64 },
    Rename { from: u64, to: u64 },
}

impl Replay {
    /// Returns a client that carries out `steps` in their order.
    pub(crate) fn new(plan: Arc<ReplayPlan>, client: u32, steps: Vec<ReplayStep>, depth: u16) -> Self {
        let slots = vec![Asked::Nothing; depth.into()];
        Self { plan, client, steps: steps.into(), slots, made: VecDeque::new(), next: 0, began: None }
    }

    /// Returns the request that stands for an operation of the trace. Names are not in the trace: each CREATE makes a
    /// new name, and REMOVE and RENAME take the oldest. Operations without a counterpart ask for attributes.
    fn asked(&mut self, step: &ReplayStep) -> Asked {
        let object =
            step.file.and_then(|file| self.plan.files.get(file)).map_or(self.plan.dir, |(_, file)| *file);
        let Moved { offset, len: count, stable } = step.moved.unwrap_or_default();
        match (step.kind, step.file) {
            (Kind::Read, Some(file)) if step.moved.is_some() => Asked::Read { file, offset, count },
            (Kind::Write, Some(file)) if step.moved.is_some() => {
                let stable = if stable { StableHow::FileSync } else { StableHow::Unstable };
                Asked::Write { file, offset, count, stable }
            }
            (Kind::Commit, Some(file)) => Asked::Commit { file },
            (Kind::Lookup, Some(file)) => Asked::Lookup { file },
            (Kind::Access, _) => Asked::Access { object },
            (Kind::Readdir, _) => Asked::List,
            (Kind::Setattr, Some(_)) => Asked::SetMode { object },
            (Kind::Create, _) => {
                self.next += 1;
                self.made.push_back(self.next);
                Asked::Create { number: self.next }
            }
            (Kind::Remove, _) => match self.made.pop_front() {
                Some(number) => Asked::Remove { number },
                None => Asked::Getattr { object },
            },
            (Kind::Rename, _) => match self.made.pop_front() {
                Some(from) => {
                    self.next += 1;
                    self.made.push_back(self.next);
                    Asked::Rename { from, to: self.next }
                }
                None => Asked::Getattr { object },
            },
            _ => Asked::Getattr { object },
        }
    }

    fn name(&self, number: u64) -> String {
        format!("n{}-{number}", self.client)
    }
}

impl Workload for Replay {
    fn next(&mut self, slot: usize, stopping: bool) -> Next {
        let Some(step) = self.steps.front().copied().filter(|_| !stopping) else { return Next::Finished };
        if self.plan.keeps_time {
            let passed = self.began.get_or_insert_with(Instant::now).elapsed();
            match passed.checked_sub(step.at) {
                Some(late) => _ = self.plan.late_ns.fetch_max(late.as_nanos() as u64, Relaxed),
                None => return Next::Wait,
            }
        }
        self.steps.pop_front();
        self.slots[slot] = self.asked(&step);
        Next::Begin
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let (dir, files) = (self.plan.dir, &self.plan.files);
        match self.slots[slot] {
            Asked::Nothing => _ = call.start(&Request::Null),
            Asked::Read { file, offset, count } => {
                call.start(&Request::Read { file: files[file].1, open: None, offset, count });
            }
            Asked::Write { file, offset, count, stable } => {
                let out =
                    call.start(&Request::Write { file: files[file].1, open: None, offset, count, stable });
                let end = out.len() + count as usize;
                out.resize(end, offset as u8 | 1);
                out.resize(end + padding(count as usize), 0);
            }
            Asked::Commit { file } => _ = call.start(&Request::Commit { file: files[file].1 }),
            Asked::Getattr { object } => _ = call.start(&Request::Getattr { object }),
            Asked::Access { object } => _ = call.start(&Request::Access { object }),
            Asked::SetMode { object } => _ = call.start(&Request::SetMode { object, mode: 0o666 }),
            Asked::Lookup { file } => {
                call.start(&Request::Lookup { dir, name: files[file].0.as_bytes() });
            }
            Asked::List => {
                call.start(&Request::List { dir, cookie: 0, verifier: [0; 8], count: LISTING });
            }
            Asked::Create { number } => {
                let name = self.name(number);
                call.start(&Request::Create { dir, name: name.as_bytes(), mode: 0o644, exclusive: false });
            }
            Asked::Remove { number } => {
                call.start(&Request::Remove { dir, name: self.name(number).as_bytes() });
            }
            Asked::Rename { from, to } => {
                let (from, to) = (self.name(from), self.name(to));
                call.start(&Request::Rename { dir, from: from.as_bytes(), to: to.as_bytes() });
            }
        }
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        match std::mem::replace(&mut self.slots[slot], Asked::Nothing) {
            Asked::Nothing => Ok(Progress::ASIDE),
            Asked::Read { file, .. } => {
                let data = answer.named(answer.data(), || self.plan.files[file].0.clone())?;
                Ok(Progress::COMPLETE.with_bytes(data.len() as u64))
            }
            Asked::Write { file, count, .. } => {
                let what = || self.plan.files[file].0.clone();
                let written = answer.named(answer.written(), what)?;
                if written.count != count {
                    bail!("WRITE of {} took {} of {count} bytes", what(), written.count);
                }
                Ok(Progress::COMPLETE.with_bytes(count.into()))
            }
            Asked::List => {
                answer.named(answer.listing(|_, _, _| ()), || "the directory".to_owned())?;
                Ok(Progress::COMPLETE)
            }
            // The CREATE of the name may still be in flight.
            Asked::Remove { .. } | Asked::Rename { .. } => match answer.done() {
                Err(Fault::Status(status)) if status.is_missing() => Ok(Progress::COMPLETE),
                done => answer.named(done, || "a new name".to_owned()).map(|()| Progress::COMPLETE),
            },
            Asked::Commit { .. } => {
                answer.named(answer.committed(), || "a file".to_owned())?;
                Ok(Progress::COMPLETE)
            }
            Asked::Create { .. } => {
                answer.named(answer.made(), || "a new name".to_owned())?;
                Ok(Progress::COMPLETE)
            }
            Asked::Lookup { file } => {
                answer.named(answer.found(), || self.plan.files[file].0.clone())?;
                Ok(Progress::COMPLETE)
            }
            Asked::Getattr { .. } => {
                answer.named(answer.attributes(), || "a file".to_owned())?;
                Ok(Progress::COMPLETE)
            }
            Asked::Access { .. } | Asked::SetMode { .. } => {
                answer.named(answer.done(), || "a file".to_owned())?;
                Ok(Progress::COMPLETE)
            }
        }
    }
}
