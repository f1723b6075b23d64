//! Lookups that a thread remembers, so that event loops do not pass the cache lines of shared locks to and fro with
//! each request.
//!
//! | remembered | holds while |
//! |---|---|
//! | the session of an id | the session exists |
//! | a state id allows an access to a file | no thread has taken the lock of clients' state for a change |

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use forebay_clientstate::{ClientId, Session, SessionId, StateId};
use forebay_wire::nfs3::FileHandle;

/// Sessions, and grants, that a thread remembers. One takes the place of an earlier one with an equal last byte.
const SLOTS: usize = 256;

/// An access to a file by a state id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) client: ClientId,
    pub(super) stateid: StateId,
    pub(super) file: FileHandle,
    pub(super) access: u8,
}

/// The session with an id, if it still exists.
type KnownSession = Option<(SessionId, Weak<Session>)>;
/// A grant, and the generation of the state that has granted it.
type KnownGrant = Option<(Grant, u64)>;

thread_local! {
    static SESSIONS: RefCell<Vec<KnownSession>> = RefCell::new(vec![None; SLOTS]);
    static GRANTS: RefCell<Vec<KnownGrant>> = RefCell::new(vec![None; SLOTS]);
}

/// Returns the session with an id, if this thread remembers it.
pub(super) fn session(id: SessionId) -> Option<Arc<Session>> {
    SESSIONS.with_borrow(|known| match &known[place_of(id)] {
        Some((known, session)) if *known == id => session.upgrade(),
        _ => None,
    })
}

/// Remembers a session.
pub(super) fn remember_session(session: &Arc<Session>) {
    let id = session.id();
    SESSIONS.with_borrow_mut(|known| known[place_of(id)] = Some((id, Arc::downgrade(session))));
}

/// Returns the slot in which a thread remembers a session. Sessions share slots.
fn place_of(id: SessionId) -> usize {
    // A random byte.
    usize::from(id.0[15]) % SLOTS
}

impl Grant {
    /// Returns true if the state of this generation has granted the access to this thread.
    pub(super) fn is_known(&self, generation: u64) -> bool {
        GRANTS.with_borrow(
            |known| matches!(&known[self.place()], Some((grant, of)) if *of == generation && grant == self),
        )
    }

    /// Remembers that the state of this generation has granted the access.
    pub(super) fn remember(self, generation: u64) {
        GRANTS.with_borrow_mut(|known| known[self.place()] = Some((self, generation)));
    }

    /// Returns the slot in which a thread remembers a grant. Grants share slots.
    fn place(&self) -> usize {
        // The last byte of a counter.
        usize::from(self.stateid.other[11]) % SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_known_until_the_state_changes() {
        let file = FileHandle::new(b"a file").unwrap();
        let stateid = StateId { seqid: 1, other: [7; 12] };
        let grant = Grant { client: ClientId(1), stateid, file, access: 1 };
        assert!(!grant.is_known(5));
        grant.remember(5);
        assert!(grant.is_known(5) && !grant.is_known(6) && !grant.is_known(4));
        for other in [
            Grant { client: ClientId(2), ..grant },
            Grant { stateid: StateId { seqid: 2, ..stateid }, ..grant },
            Grant { file: FileHandle::new(b"b file").unwrap(), ..grant },
            Grant { access: 2, ..grant },
        ] {
            assert!(!other.is_known(5), "{other:?}");
        }
    }
}
