//! READDIRPLUS, in NFSv4 READDIR, of a big directory from its first entry to its last, repeatedly, as `ls -l` does.

use anyhow::{Result, bail};

use super::{Call, Next, Outcome, Progress, Workload};
use crate::protocol::{Answer, Handle, Request};

#[derive(Debug, Clone, Copy, Default)]
struct Position {
    cookie: u64,
    cookieverf: [u8; 8],
    seen: u64,
}

/// A client that lists a directory.
pub(crate) struct Listing {
    dir: Handle,
    /// Number of entries in a whole listing, without `.` and `..`.
    expected: u64,
    count: u32,
    issued: u64,
    limit: Option<u64>,
    slots: Vec<Position>,
}

impl Listing {
    /// Returns a client that lists `dir`. `count` is the largest size of a reply in bytes.
    pub(crate) fn new(dir: Handle, expected: u64, count: u32, limit: Option<u64>, depth: u16) -> Self {
        Self { dir, expected, count, issued: 0, limit, slots: vec![Position::default(); depth.into()] }
    }
}

impl Workload for Listing {
    fn next(&mut self, slot: usize, stopping: bool) -> Next {
        let first = self.slots[slot].cookie == 0;
        if stopping || first && self.limit.is_some_and(|limit| self.issued >= limit) {
            return Next::Finished;
        }
        self.issued += u64::from(first);
        if first { Next::Begin } else { Next::GoOn }
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let Position { cookie, cookieverf: verifier, .. } = self.slots[slot];
        call.start(&Request::List { dir: self.dir, cookie, verifier, count: self.count });
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        let position = &mut self.slots[slot];
        let mut entries = 0;
        let listed = answer.listing(|cookie, name, _| {
            position.cookie = cookie;
            entries += u64::from(name != b"." && name != b"..");
        });
        let (verifier, eof) = answer.named(listed, || "the big directory".to_owned())?;
        position.cookieverf = verifier;
        position.seen += entries;
        let mut outcome = Outcome::Continue;
        if eof {
            if position.seen != self.expected {
                bail!("a listing had {} entries, the directory has {}", position.seen, self.expected);
            }
            *position = Position::default();
            outcome = Outcome::Complete;
        } else if entries == 0 {
            bail!("a listing has neither an entry nor the end of the directory");
        }
        Ok(Progress { outcome, bytes: 0, entries })
    }
}
