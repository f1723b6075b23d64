//! Accounts: the dirty blocks of many objects together, for example of one owner.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::buffer::BLOCK;
use crate::index::object::CachedObject;

/// A count of the dirty blocks of all objects that are charged to the account, or to an account within it.
#[derive(Debug, Default)]
pub struct Account {
    blocks: AtomicU64,
    outer: Vec<Arc<Account>>,
}

impl Account {
    /// Returns an account whose blocks count in each of `outer` as well.
    pub fn within(outer: Vec<Arc<Account>>) -> Self {
        Account { outer, ..Account::default() }
    }

    /// Returns the number of bytes that only the cache has.
    pub fn dirty_bytes(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed) * BLOCK as u64
    }

    /// Counts blocks that became dirty, here and in the outer accounts.
    pub(crate) fn dirtied(&self, blocks: u64) {
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.outer.iter().for_each(|outer| outer.dirtied(blocks));
    }

    /// Counts blocks that are not dirty any more, here and in the outer accounts.
    pub(crate) fn cleaned(&self, blocks: u64) {
        self.blocks.fetch_sub(blocks, Ordering::Relaxed);
        self.outer.iter().for_each(|outer| outer.cleaned(blocks));
    }
}

impl CachedObject {
    /// Charges the object's dirty blocks to `account` from now on, and to no other account.
    pub fn charge(&self, account: &Arc<Account>) {
        let mut state = self.lock();
        if state.account.as_ref().is_some_and(|now| Arc::ptr_eq(now, account)) {
            return;
        }
        account.dirtied(state.dirty);
        if let Some(before) = state.account.replace(account.clone()) {
            before.cleaned(state.dirty);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentKind;
    use crate::index::leaf::{Entry, Hit};
    use crate::io::Key;
    use crate::segments::Segments;

    #[test]
    fn what_is_dirty_counts_for_whom_its_object_is_charged_to() {
        let segments = Segments::new(1, vec![vec![0], vec![0]], vec![1, 1]);
        let segment = segments.open(SegmentKind::Log, 2, 0).unwrap().id;
        let object = CachedObject::new(0, Key::new(b"object").unwrap(), Default::default());
        let set = |block, dirty| {
            let entry = Entry { segment, checksum: 0, slot: block as u16, dirty, hit: Hit::No };
            object.lock().set_entry(block, entry, &segments);
        };
        let all = Arc::new(Account::default());
        let [first, second] = [(); 2].map(|()| Arc::new(Account::within(vec![all.clone()])));
        let counts = || [&all, &first, &second].map(|account| account.dirty_bytes() / 4096);
        set(1, true);
        assert_eq!(counts(), [0, 0, 0], "it is charged to nobody yet");
        object.charge(&first);
        object.charge(&first);
        set(2, true);
        set(3, false);
        assert_eq!(counts(), [2, 2, 0]);
        object.charge(&second);
        assert_eq!(counts(), [2, 0, 2]);
        set(1, false);
        object.lock().remove_entry(2, &segments);
        assert_eq!(counts(), [0, 0, 0]);
    }
}
