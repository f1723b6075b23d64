//! READDIRPLUS of a big directory from its first entry to its last, repeatedly, as `ls -l` does.

use anyhow::{Result, bail};
use forebay_wire::nfs3::*;
use forebay_wire::{Encode as _, Reader};

use super::{Call, Next, Outcome, Progress, Workload, result};

#[derive(Debug, Clone, Copy, Default)]
struct Position {
    cookie: u64,
    cookieverf: [u8; 8],
    seen: u64,
}

/// A client that lists a directory.
pub(crate) struct Listing {
    dir: FileHandle,
    /// Number of entries in a whole listing, without `.` and `..`.
    expected: u64,
    count: u32,
    issued: u64,
    limit: Option<u64>,
    slots: Vec<Position>,
}

impl Listing {
    /// Returns a client that lists `dir`. `count` is the largest size of a reply in bytes.
    pub(crate) fn new(dir: FileHandle, expected: u64, count: u32, limit: Option<u64>, depth: u16) -> Self {
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

    fn send(&self, slot: usize, call: &mut Call<'_>) -> Procedure {
        let Position { cookie, cookieverf, .. } = self.slots[slot];
        let (dircount, maxcount) = (self.count, self.count);
        let args = ReaddirplusArgs { dir: self.dir, cookie, cookieverf, dircount, maxcount };
        args.encode(call.start(Procedure::Readdirplus));
        Procedure::Readdirplus
    }

    fn reply(&mut self, slot: usize, body: &mut Reader<'_>) -> Result<Progress> {
        let what = || "the big directory".to_owned();
        let listing: ReaddirplusOk<'_> = result::<_, PostOpAttr>(body, Procedure::Readdirplus, what)?;
        let position = &mut self.slots[slot];
        let mut entries = 0;
        for entry in listing.entries {
            position.cookie = entry.cookie;
            entries += u64::from(entry.name != b"." && entry.name != b"..");
        }
        position.cookieverf = listing.cookieverf;
        position.seen += entries;
        let mut outcome = Outcome::Continue;
        if listing.eof {
            if position.seen != self.expected {
                bail!("a listing had {} entries, the directory has {}", position.seen, self.expected);
            }
            *position = Position::default();
            outcome = Outcome::Complete;
        } else if entries == 0 {
            bail!("READDIRPLUS returned no entry and no end of the directory");
        }
        Ok(Progress { outcome, bytes: 0, entries })
    }
}
