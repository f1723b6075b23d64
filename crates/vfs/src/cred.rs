//! Credentials of callers, the small numbers that stand for them, and acting on a caller's behalf.
//!
//! The kernel is the only judge of permissions. A worker takes the caller's user, group and supplementary groups for
//! the length of an operation. So ACLs, sticky bits, quotas and set-gid directories mean what they mean locally.

use std::cell::Cell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use forebay_common::lock::RwLock;
use smallvec::SmallVec;

use crate::error::Result;
use crate::sys;

/// A caller's identity after the export's squashing rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups, at most 16 (AUTH_SYS, RFC 5531 appendix A).
    pub groups: SmallVec<[u32; 16]>,
}

/// An interned identity: equal identities share one number while they are remembered.
#[derive(Clone, Debug)]
pub struct Cred {
    pub(crate) id: u64,
    identity: Arc<Identity>,
}

impl Cred {
    /// Returns the user as whom this credential acts.
    pub fn uid(&self) -> u32 {
        self.identity.uid
    }

    /// Returns true if `gid` is the caller's primary group or one of its supplementary groups.
    pub(crate) fn is_in(&self, gid: u32) -> bool {
        self.identity.gid == gid || self.identity.groups.contains(&gid)
    }
}

/// The identities in use, each with a number, so that access verdicts can be cached per number.
#[derive(Default)]
pub struct Creds {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    ids: HashMap<Arc<Identity>, u64, foldhash::fast::RandomState>,
    last: u64,
}

/// The number of identities at which all are forgotten. Their numbers are never used again.
const MAX_KNOWN: usize = 16_384;

impl Creds {
    /// Returns the interned form of an identity.
    pub fn intern(&self, identity: &Identity) -> Cred {
        if let Some((identity, id)) = self.known.read().ids.get_key_value(identity) {
            return Cred { id: *id, identity: identity.clone() };
        }
        let mut known = self.known.write();
        if known.ids.len() >= MAX_KNOWN {
            known.ids.clear();
        }
        known.last += 1;
        let (id, identity) = (known.last, Arc::new(identity.clone()));
        let id = *known.ids.entry(identity.clone()).or_insert(id);
        Cred { id, identity }
    }
}

thread_local! {
    /// The identity whose supplementary groups this thread carries; 0 = the server's own.
    static GROUPS: Cell<u64> = const { Cell::new(0) };
}

/// Returns true if this process may act as its callers and open inodes by handle.
pub(crate) fn privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// A period in which the thread acts as the caller; it ends with the value. Supplementary groups stay behind
/// afterwards. They add nothing to the server's own rights, and the next caller often has equal groups.
pub(crate) struct Acting {
    server: (u32, u32),
    /// An identity belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Acting {
    /// Gives the thread the user and the groups of `cred`. The drop of the result gives the server's user and group
    /// back. Returns `None` if the thread stays as it is: the caller is root without groups, or the server is
    /// unprivileged. An unprivileged server acts as itself for everyone and says so at start.
    pub(crate) fn begin(cred: &Cred, privileged: bool) -> Result<Option<Acting>> {
        if !privileged || cred.identity.uid == 0 && cred.identity.gid == 0 && cred.identity.groups.is_empty()
        {
            return Ok(None);
        }
        if GROUPS.get() != cred.id {
            GROUPS.set(0);
            sys::set_thread_groups(&cred.identity.groups)?;
            GROUPS.set(cred.id);
        }
        Acting::with_ids(Some(cred.identity.uid), Some(cred.identity.gid)).map(Some)
    }

    /// Becomes a user, a group or both; an id that is `None` stays as it is.
    pub(crate) fn with_ids(uid: Option<u32>, gid: Option<u32>) -> Result<Acting> {
        let server = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // On failure the drop of `acting` undoes the half that may have happened.
        let acting = Acting { server, not_send: PhantomData };
        sys::set_thread_ids(uid.unwrap_or(server.0), gid.unwrap_or(server.1), false)?;
        Ok(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let restored = sys::set_thread_ids(self.server.0, self.server.1, true);
        assert!(restored.is_ok(), "a thread could not return to the server's own identity");
    }
}
