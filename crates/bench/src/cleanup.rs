//! Removes the files that runs have left. A survey finds everything first. Then many files are removed at a time,
//! because a server that makes each REMOVE durable is slow for one at a time.

use std::sync::Arc;

use anyhow::Result;

use crate::protocol::{Answer, Fault, Handle, Request};
use crate::session::Session;
use crate::setup::Phase;
use crate::workload::{Call, Next, Progress, Workload};

const CLIENTS: usize = 16;
const DEPTH: u16 = 16;

/// A directory and a name in it.
type Place = (Handle, Vec<u8>);

/// The files and directories to remove.
#[derive(Default)]
pub(crate) struct Survey {
    files: Vec<Place>,
    /// Directories, each before its children.
    dirs: Vec<Place>,
}

impl Survey {
    /// Finds everything at and below a name. Finds nothing if the name does not exist.
    pub(crate) fn of(session: &mut Session, dir: Handle, name: &[u8]) -> Result<Self> {
        let mut survey = Self::default();
        let mut open = vec![(dir, name.to_vec())];
        while let Some((parent, name)) = open.pop() {
            let Some(found) = session.lookup(&parent, &name)? else { continue };
            survey.dirs.push((parent, name));
            for entry in session.entries(&found)? {
                if session.is_directory(&found, &entry)? {
                    open.push((found, entry.name));
                } else {
                    survey.files.push((found, entry.name));
                }
            }
        }
        Ok(survey)
    }

    /// Returns the phase that removes the files; `None` if there are no files.
    pub(crate) fn files_phase(&mut self) -> Option<Phase> {
        let files: Arc<[Place]> = std::mem::take(&mut self.files).into();
        let clients = CLIENTS.min(files.len());
        let part = |first: usize| -> (Box<dyn Workload>, u16) {
            let asked = vec![0; DEPTH.into()];
            (Box::new(Remover { files: files.clone(), next: first, step: clients, asked }), DEPTH)
        };
        (clients > 0).then(|| Phase { name: "clean up".to_owned(), parts: (0..clients).map(part).collect() })
    }

    /// Removes the directories. They are empty once the files are removed.
    pub(crate) fn remove_dirs(self, session: &mut Session) -> Result<()> {
        self.dirs.iter().rev().try_for_each(|(dir, name)| session.rmdir(dir, name))
    }
}

/// A client that removes every `step`-th file.
struct Remover {
    files: Arc<[Place]>,
    next: usize,
    step: usize,
    asked: Vec<usize>,
}

impl Workload for Remover {
    fn next(&mut self, slot: usize, stopping: bool) -> Next {
        if stopping || self.next >= self.files.len() {
            return Next::Finished;
        }
        self.asked[slot] = self.next;
        self.next += self.step;
        Next::Begin
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let (dir, name) = &self.files[self.asked[slot]];
        call.start(&Request::Remove { dir: *dir, name });
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        match answer.done() {
            Err(Fault::Status(status)) if status.is_missing() => Ok(Progress::COMPLETE),
            done => {
                let name = || String::from_utf8_lossy(&self.files[self.asked[slot]].1).into_owned();
                answer.named(done, name).map(|()| Progress::COMPLETE)
            }
        }
    }
}
