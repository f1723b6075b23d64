//! The change time that clients see of an inode that is not in the inode cache, or enters it.

use std::sync::Arc;

use crate::attr::{Attr, Time};
use crate::caches::attr_cache::record::CachedAttr;
use crate::caches::change::Look;
use crate::caches::inode::Inode;
use crate::caches::overlay::file_time;
use crate::caches::shown_time;
use crate::export::filesystem::Filesystem;
use crate::sys::KernelHandle;

/// The facts about an inode from before its attributes are read without opening it.
pub(crate) enum Glance {
    /// It is in the inode cache.
    Open(Look, Arc<Inode>),
    /// It is not in the inode cache. The time is that of the host's clock if the file system's times are coarse.
    Elsewhere(Option<Time>, Option<CachedAttr>),
}

impl Filesystem {
    /// Prepares to show attributes of an inode that the caller reads afterwards.
    pub(crate) fn glance(&self, kernel: &KernelHandle) -> Glance {
        // Before the inode cache is asked: if the inode enters it after that, each change shows a later time.
        let now = (!self.fine_times).then(file_time);
        match self.inodes.get(kernel) {
            Some(object) => Glance::Open(object.look(), object),
            None => Glance::Elsewhere(now, now.and_then(|_| self.versions.known(kernel))),
        }
    }

    /// Gives an inode that enters the inode cache the change time that clients saw, or a later one. `attr` was read
    /// before. The inode cannot change meanwhile.
    pub(super) fn resume_shown(&self, object: &Inode, attr: &Attr) {
        // The inode may have been in the cache since `attr` was read, with a change in the tick of that change time.
        let again = !self.fine_times && self.attributes_in_memory();
        let attr = again.then(|| object.raw_attr().ok()).flatten().unwrap_or(*attr);
        let now = (!self.fine_times).then(file_time);
        let known = self.versions.known(&object.kernel);
        if let Some(shown) = first(now, known, &attr) {
            object.resume_shown(shown);
        }
    }
}

impl Glance {
    /// Returns attributes that were read after this glance, with the change time that clients are to see.
    pub(crate) fn show(self, attr: Attr) -> Attr {
        match self {
            Glance::Open(look, object) => object.show(look, attr),
            Glance::Elsewhere(now, known) => {
                let first = first(now, known, &attr);
                Attr { ctime: first.map_or(attr.ctime, |first| first.max(attr.ctime)), ..attr }
            }
        }
    }
}

/// Returns the change time to begin with for an inode with these attributes: the one that is `known`, or one that is
/// later than those that were shown before the last change. Returns `None` if the file system's time is later than all
/// of them, as it is where times are fine. `now` is there if they are coarse.
fn first(now: Option<Time>, known: Option<CachedAttr>, attr: &Attr) -> Option<Time> {
    let known = known.filter(|known| known.attr.backing_ctime == attr.backing_ctime);
    known.map(|known| known.attr.ctime).or_else(|| Some(shown_time::first(attr.backing_ctime, now?)))
}
