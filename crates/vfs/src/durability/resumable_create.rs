//! Creations of several system calls that a killed server had begun: the name is there, some of the attributes may not
//! be. The client that asks again continues its creation. Until then the creation stays in the request journal, so that
//! another kill does not forget it.

use std::collections::HashMap;

use forebay_common::lock::Mutex;
use forebay_metalog::CutShort;

use crate::durability::request_journal::{LoggedReply, Request};
use crate::sys::KernelHandle;

/// Resumable creates by the key of the request.
#[derive(Debug, Default)]
pub(crate) struct ResumableCreates(Mutex<HashMap<Box<[u8]>, Made>>);

#[derive(Debug)]
struct Made {
    filesystem: u32,
    dir: KernelHandle,
    name: Box<[u8]>,
    object: KernelHandle,
    /// Its place in the journal.
    _request: Option<Request>,
}

impl ResumableCreates {
    /// Keeps the inode `object` that the interrupted creation `cut_short` has created, and its place in the journal.
    pub(crate) fn keep(
        &self,
        CutShort { operation, key }: &CutShort,
        object: KernelHandle,
        request: Option<Request>,
    ) {
        let Some(entry) = operation.entries.first() else { return };
        let (filesystem, dir, name) = (operation.filesystem, entry.dir, (*entry.name).into());
        let made = Made { filesystem, dir, name, object, _request: request };
        self.0.lock().insert(operation.reply[..*key].into(), made);
    }

    /// Returns, once, the inode that this request created as `name` in `dir`, if a kill interrupted the creation.
    pub(crate) fn take(
        &self,
        asked: &LoggedReply,
        filesystem: u32,
        dir: &KernelHandle,
        name: &[u8],
    ) -> Option<KernelHandle> {
        let mut begun = self.0.lock();
        if begun.is_empty() {
            return None;
        }
        let made = begun.remove(&asked.answer[..asked.key])?;
        ((made.filesystem, &made.dir, &*made.name) == (filesystem, dir, name)).then_some(made.object)
    }
}

#[cfg(test)]
mod tests {
    use forebay_oplog::{Binding, Operation};

    use super::*;
    use crate::sys::KERNEL_HANDLE_MAX;

    fn handle(n: u8) -> KernelHandle {
        KernelHandle { kind: 1, len: 1, bytes: [n; KERNEL_HANDLE_MAX] }
    }

    #[test]
    fn the_same_request_goes_on_with_it_once() {
        let begun = ResumableCreates::default();
        let entry = Binding { dir: handle(1), name: b"name"[..].into(), was: None, now: None };
        let (entries, reply) = ([entry].into_iter().collect(), b"key"[..].into());
        let operation = Operation { number: 1, filesystem: 3, entries, objects: Vec::new(), reply };
        let cut_short = CutShort { operation, key: 3 };
        let asked = |key: &[u8]| LoggedReply { answer: [key, b"a reply"].concat(), key: key.len() };
        let take = |key: &[u8]| begun.take(&asked(key), 3, &handle(1), b"name");
        begun.keep(&cut_short, handle(7), None);
        assert_eq!(take(b"yek"), None, "another request");
        assert_eq!(take(b"key"), Some(handle(7)));
        assert_eq!(take(b"key"), None, "it has gone on");
        for (filesystem, dir, name) in
            [(4, &handle(1), &b"name"[..]), (3, &handle(2), b"name"), (3, &handle(1), b"other")]
        {
            begun.keep(&cut_short, handle(7), None);
            assert_eq!(begun.take(&asked(b"key"), filesystem, dir, name), None);
        }
    }
}
