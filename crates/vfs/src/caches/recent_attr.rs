//! Attributes that this thread has read a moment ago, for READs of open files.
//!
//! The reply to a READ of NFSv4 has no attributes. The server reads them to learn the size of the file, and to notice
//! external changes. It need not ask the file system for each of many READs. Remembered attributes count while all of
//! these hold:
//!
//! | condition | reason |
//! |---|---|
//! | they are at most [`RECENT`] old | an external change shows no later than that |
//! | no change through this server has begun since | a READ shows each change that was answered before |
//! | no client was shown a later change time | a client that knows the later time would keep older contents |
//! | the READ ends before the end of the file | an external change may have made the file longer |

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crate::attr::Attr;
use crate::caches::change::Moment;
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
    moment: Moment,
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
        let moment = target.object.moment();
        let attr = target.attr()?;
        *place = moment.map(|moment| Recent { inode: Arc::downgrade(&target.object), arrived, moment, attr });
        Ok(attr)
    })
}

impl Recent {
    fn holds(&self, object: &Arc<Inode>, arrived: u64, end: u64) -> bool {
        std::ptr::eq(self.inode.as_ptr(), Arc::as_ptr(object))
            && arrived.saturating_sub(self.arrived) <= RECENT
            && end < self.attr.size
            && object.has_shown_none_after(self.moment, self.attr.ctime)
    }
}

fn slot(object: &Arc<Inode>) -> usize {
    // Multiplication spreads the bits of the address into the upper ones.
    let address = Arc::as_ptr(object) as usize as u64;
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SLOTS
}
