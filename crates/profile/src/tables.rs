//! The common tables: counters by client, export, user and file.

use std::net::IpAddr;

use crate::busiest::Busiest;
use crate::counters::Counters;
use crate::kind::Kind;
use crate::operation::{FileId, Moved, NO_EXPORT, Operation, Subject};

/// Keys that keep counters of their own in any case. A table has up to twice as many.
const CLIENTS: usize = 512;
const USERS: usize = 512;
const EXPORTS: usize = 128;
const FILES: usize = 1024;

/// The busiest keys of one kind, and the sum of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted<K> {
    /// Keys and their counters, busiest first.
    pub most: Vec<(K, Counters)>,
    /// The sum over all other keys.
    pub others: Counters,
}

/// A file with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCounted {
    /// The key, as [`file_key`](crate::file_key) returns it.
    pub key: u64,
    /// The handle, if it is known.
    pub id: Option<FileId>,
    /// The number of the export.
    pub export: u32,
    /// True if more than one client has written to it.
    pub is_shared: bool,
    /// The counters. A count of a busy server is an estimate.
    pub counters: Counters,
}

/// Counters by client, export, user and file.
pub(crate) struct Tables {
    clients: Busiest<IpAddr, ()>,
    exports: Busiest<u32, ()>,
    users: Busiest<u32, ()>,
    files: Busiest<u64, File>,
}

/// An operation on a file that counts `weight` times.
pub(crate) struct Sampled {
    pub(crate) operation: Operation,
    pub(crate) sequential: bool,
    pub(crate) id: FileId,
    pub(crate) weight: u64,
}

/// Facts about a file.
#[derive(Clone)]
struct File {
    id: Option<FileId>,
    export: u32,
    writer: Writer,
}

impl Default for File {
    fn default() -> Self {
        File { id: None, export: NO_EXPORT, writer: Writer::None }
    }
}

/// The clients that have written to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    None,
    One(IpAddr),
    Several,
}

impl Tables {
    /// Returns empty tables.
    pub(crate) fn new() -> Self {
        Tables {
            clients: Busiest::new(CLIENTS),
            exports: Busiest::new(EXPORTS),
            users: Busiest::new(USERS),
            files: Busiest::new(FILES),
        }
    }

    /// Adds the counters of a flow.
    pub(crate) fn add(&mut self, subject: &Subject, counters: &Counters) {
        self.clients.count(subject.client(), |own| own.add(counters));
        self.exports.count(subject.export(), |own| own.add(counters));
        self.users.count(subject.user(), |own| own.add(counters));
    }

    /// Counts an operation for its file.
    pub(crate) fn add_file(&mut self, sampled: &Sampled) {
        let Sampled { operation, sequential, id, weight } = sampled;
        let Operation { subject, kind, failed, file, moved } = operation;
        let moved: Option<(Moved, bool)> = moved.map(|moved| (moved, *sequential));
        let known = self.files.count(*file, |own| own.count(*kind, *failed, moved, *weight));
        let about = &mut known.about;
        if about.id.is_none() && !id.as_bytes().is_empty() {
            about.id = Some(*id);
        }
        about.export = subject.export();
        if *kind == Kind::Write && !failed {
            about.writer = match about.writer {
                Writer::None => Writer::One(subject.client()),
                Writer::One(client) if client == subject.client() => Writer::One(client),
                Writer::One(_) | Writer::Several => Writer::Several,
            };
        }
    }

    /// Returns the busiest clients, exports, users and files, up to `top` of each.
    pub(crate) fn most(&self, top: usize) -> Most {
        let (files, other_files) = self.files.most(top);
        let files = files.into_iter().map(|(key, counters, about)| {
            let File { id, export, writer } = about;
            FileCounted { key, id, export, is_shared: writer == Writer::Several, counters }
        });
        Most {
            clients: counted(&self.clients, top),
            exports: counted(&self.exports, top),
            users: counted(&self.users, top),
            files: files.collect(),
            other_files,
        }
    }

    #[cfg(test)]
    pub(crate) fn sizes(&self) -> [usize; 4] {
        [self.clients.len(), self.exports.len(), self.users.len(), self.files.len()]
    }
}

/// The busiest of all tables.
pub(crate) struct Most {
    pub(crate) clients: Counted<IpAddr>,
    pub(crate) exports: Counted<u32>,
    pub(crate) users: Counted<u32>,
    pub(crate) files: Vec<FileCounted>,
    pub(crate) other_files: Counters,
}

fn counted<K: Copy + Eq + std::hash::Hash>(table: &Busiest<K, ()>, top: usize) -> Counted<K> {
    let (most, others) = table.most(top);
    Counted { most: most.into_iter().map(|(key, counters, ())| (key, counters)).collect(), others }
}
