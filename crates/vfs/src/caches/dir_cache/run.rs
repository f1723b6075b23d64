//! Entries of a listing, with their names and handles in one text.

use crate::attr::Attr;
use crate::caches::versions::Version;
use crate::handle::Handle;

/// The inode of an entry, as it was when it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) attr: Attr,
    pub(crate) handle: Handle,
    /// Under which that holds.
    pub(crate) version: Version,
    /// Up to when it is believed, in milliseconds of the monotonic clock, or [`CHANGE`].
    pub(crate) until: u64,
}

/// An entry; its name and handle are in the listing's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) cookie: u64,
    ino: u64,
    pub(super) text: u32,
    pub(super) name: u8,
    pub(super) handle: u8,
    /// The attributes of the entry's inode; `None` if they have to be read each time.
    pub(super) seen: Option<(Attr, Version, u64)>,
}

/// Entries in a row.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(super) entries: Vec<Entry>,
    pub(super) text: Vec<u8>,
}

/// An entry as a listing has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedEntry<'a> {
    pub(crate) cookie: u64,
    pub(crate) ino: u64,
    pub(crate) name: &'a [u8],
    pub(crate) seen: Option<Seen>,
}

impl Run {
    /// Adds an entry behind the last one. An entry that finds no room ends the row; the cookies show that.
    pub(crate) fn push(&mut self, cookie: u64, ino: u64, name: &[u8], seen: Option<Seen>) {
        let (Ok(text), Ok(len)) = (u32::try_from(self.text.len()), u8::try_from(name.len())) else { return };
        self.text.extend_from_slice(name);
        let handle = seen.as_ref().map_or(&[][..], |seen| seen.handle.as_slice());
        self.text.extend_from_slice(handle);
        let seen = seen.map(|seen| (seen.attr, seen.version, seen.until));
        self.entries.push(Entry { cookie, ino, text, name: len, handle: handle.len() as u8, seen });
    }

    /// Returns the entry at a position.
    pub(super) fn get(&self, at: usize) -> Option<ListedEntry<'_>> {
        let entry = self.entries.get(at)?;
        let (name, rest) = self.text[entry.text as usize..].split_at(entry.name.into());
        let handle = &rest[..entry.handle.into()];
        let seen = entry.seen.map(|(attr, version, until)| Seen {
            attr,
            handle: Handle::of(handle),
            version,
            until,
        });
        Some(ListedEntry { cookie: entry.cookie, ino: entry.ino, name, seen })
    }

    /// Returns true if the cookies grow from entry to entry, and all exceed `cookie`.
    pub(super) fn grows_from(&self, cookie: u64) -> bool {
        let cookies = self.entries.iter().map(|entry| entry.cookie);
        std::iter::once(cookie).chain(cookies.clone()).zip(cookies).all(|(one, next)| one < next)
    }

    /// Appends `more` as far as offsets into the text go; false: nothing was appended.
    pub(super) fn append(&mut self, more: &Run) -> bool {
        let Ok(base) = u32::try_from(self.text.len() + more.text.len()) else { return false };
        let base = base - more.text.len() as u32;
        self.entries.extend(more.entries.iter().map(|entry| Entry { text: base + entry.text, ..*entry }));
        self.text.extend_from_slice(&more.text);
        true
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.text.capacity()
    }
}
