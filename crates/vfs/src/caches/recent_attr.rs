//! Attributes that this thread has read a moment ago, for READs of open files.
//!
//! The reply to a READ of NFSv4 has no attributes. The server reads them to learn the size of the file, and to notice
//! external changes. It need not ask the file system for each of many READs. Remembered attributes count while all of
//! these hold:
//!
//! | condition | reason |
//! |---|---|
//! | they are at most [`RECENT`] old | an external change shows no later than that |
//! | no client was shown a later change time | a client that knows the later time would keep older contents |
//! | the READ ends before the end of the file | an external change may have made the file longer |
//!
//! Each change through this server moves the change time that is shown, before its reply. So a READ shows every change
//! that was answered before it.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::error::Result;
use crate::export::Target;

/// The longest time in nanoseconds for which attributes are remembered.
pub(crate) const RECENT: u64 = 1_000_000;

/// Files whose attributes a thread remembers. One takes the place of an earlier one.
const SLOTS: usize = 256;

/// Remembered attributes.
struct Recent {
    /// Keeps the address of the inode from being used again, and nothing else.
    inode: Weak<Inode>,
    /// The arrival of the request that has read the attributes.
    arrived: u64,
    attr: Attr,
}

thread_local! {
    static RECENTS: RefCell<Vec<Option<Recent>>> = RefCell::new((0..SLOTS).map(|_| None).collect());
}

/// Returns attributes of a file for a READ up to the offset `end`. `arrived` is the arrival of the request, in
/// nanoseconds since any moment that all requests count from.
pub(crate) fn attr(target: &Target, arrived: u64, end: u64) -> Result<Attr> {
    RECENTS.with_borrow_mut(|recents| {
        let place = &mut recents[slot(&target.object)];
        if let Some(recent) = place.as_ref().filter(|recent| recent.holds(&target.object, arrived, end)) {
            return Ok(recent.attr);
        }
        let attr = target.attr()?;
        *place = Some(Recent { inode: Arc::downgrade(&target.object), arrived, attr });
        Ok(attr)
    })
}

impl Recent {
    fn holds(&self, object: &Arc<Inode>, arrived: u64, end: u64) -> bool {
        std::ptr::eq(self.inode.as_ptr(), Arc::as_ptr(object))
            && arrived.saturating_sub(self.arrived) <= RECENT
            && end < self.attr.size
            && !object.has_shown_later(self.attr.ctime)
    }
}

fn slot(object: &Arc<Inode>) -> usize {
    // Multiplication spreads the bits of the address into the upper ones.
    let address = Arc::as_ptr(object) as usize as u64;
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caches::budget::Budget;
    use crate::caches::versions::Versions;
    use crate::sys;

    fn inode(dir: &tempfile::TempDir, name: &str) -> Arc<Inode> {
        std::fs::write(dir.path().join(name), [0; 10]).unwrap();
        let fd = rustix::fs::open(dir.path().join(name), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
            .unwrap();
        let (kernel, budget) = (sys::name_to_handle(&fd, c"").unwrap(), Budget::new(10, 1 << 20));
        let attr = Attr::from(&rustix::fs::fstat(&fd).unwrap());
        let versions = Versions::new(budget.known().clone(), 0);
        Arc::new(Inode::new(fd, kernel, &attr, &budget, &versions, &Arc::default()))
    }

    #[test]
    fn attributes_count_for_their_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| inode(&dir, name));
        let recent = Recent { inode: Arc::downgrade(&one), arrived: 0, attr: one.attr().unwrap() };
        assert!(recent.holds(&one, 0, 9));
        assert!(!recent.holds(&other, 0, 9), "another file in this slot");
    }
}
