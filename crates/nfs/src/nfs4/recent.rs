//! Lookups that a thread remembers, so that event loops do not pass the cache lines of shared locks to and fro with
//! each request.
//!
//! | remembered | holds while |
//! |---|---|
//! | a session that no request of the thread uses | the session exists |
//! | a state id allows an access to a file | no thread has taken the lock of clients' state for a change |

use std::cell::RefCell;
use std::sync::Arc;

use forebay_clientstate::{ClientId, Session, SessionId, StateId};
use forebay_wire::nfs3::FileHandle;

/// Sessions, and grants, that a thread remembers. One takes the place of an earlier one with an equal last byte.
const SLOTS: usize = 256;

/// An access to a file by a state id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant<'a> {
    pub(super) client: ClientId,
    pub(super) stateid: StateId,
    pub(super) file: &'a FileHandle,
    pub(super) access: u8,
}

/// A grant that a thread remembers.
#[derive(Clone)]
struct Known {
    client: ClientId,
    stateid: StateId,
    file: FileHandle,
    access: u8,
    /// The generation of the state that has granted the access.
    generation: u64,
}

thread_local! {
    static SESSIONS: RefCell<Vec<Option<Arc<Session>>>> = RefCell::new(vec![None; SLOTS]);
    static GRANTS: RefCell<Vec<Option<Known>>> = RefCell::new(vec![None; SLOTS]);
}

/// Takes the session with an id out of this thread's memory, if it is there and has not ended. The caller returns the
/// session by [`give_session`]. So a request changes no count of references, which other threads would change as well.
pub(super) fn take_session(id: SessionId) -> Option<Arc<Session>> {
    SESSIONS.with_borrow_mut(|known| {
        known[place_of(id)].take_if(|session| session.id() == id).filter(|session| !session.is_destroyed())
    })
}

/// Remembers a session until the next request of this thread takes it.
pub(super) fn give_session(session: Arc<Session>) {
    if !session.is_destroyed() {
        let place = place_of(session.id());
        SESSIONS.with_borrow_mut(|known| known[place] = Some(session));
    }
}

/// Returns the slot in which a thread remembers a session. Sessions share slots.
fn place_of(id: SessionId) -> usize {
    // A random byte.
    usize::from(id.0[15]) % SLOTS
}

impl Grant<'_> {
    /// Returns true if the state of this generation has granted the access to this thread.
    pub(super) fn is_known(&self, generation: u64) -> bool {
        GRANTS.with_borrow(|known| {
            known[self.place()].as_ref().is_some_and(|known| {
                known.generation == generation
                    && known.client == self.client
                    && known.stateid == self.stateid
                    && known.access == self.access
                    && known.file == *self.file
            })
        })
    }

    /// Remembers that the state of this generation has granted the access.
    pub(super) fn remember(self, generation: u64) {
        let Grant { client, stateid, file, access } = self;
        let known = Known { client, stateid, file: *file, access, generation };
        GRANTS.with_borrow_mut(|grants| grants[self.place()] = Some(known));
    }

    /// Returns the slot in which a thread remembers a grant. Grants share slots.
    fn place(&self) -> usize {
        // The last byte of a counter.
        usize::from(self.stateid.other[11]) % SLOTS
    }
}

#[cfg(test)]
mod tests {
    use forebay_clientstate::{Channel, CreateSession, Effects, ExchangeId, Limits, Origin, OwnerName};
    use forebay_clientstate::{Principal, State};

    use super::*;

    #[test]
    fn a_session_is_remembered_until_it_is_taken_or_ends() {
        let (mut state, fx) =
            (State::new(Limits::default(), Origin { epoch: 1, seed: 1 }), &mut Effects::default());
        let (owner, principal) = (OwnerName::new(b"owner").unwrap(), Principal::new(b"user").unwrap());
        let request = ExchangeId { owner, verifier: [1; 8], principal: principal.clone(), flags: 0 };
        let exchanged = state.exchange_id(&request, 0, fx).unwrap();
        let channel =
            Channel { max_request: 4096, max_response: 4096, max_cached: 1024, operations: 8, slots: 4 };
        let request = CreateSession {
            client: exchanged.client,
            sequence: exchanged.sequence,
            flags: 0,
            fore: channel,
            back: channel,
            callback_program: 0,
            callback_security: Vec::new(),
            principal,
            connection: 1,
            random: [0; 8],
        };
        let id = state.create_session(&request, 0, fx).unwrap().session;
        assert!(take_session(id).is_none());
        give_session(state.session(id).unwrap());
        let mut other = id;
        other.0[0] ^= 1;
        assert!(take_session(other).is_none(), "another session of this slot");
        let session = take_session(id).unwrap();
        assert!(take_session(id).is_none(), "a request has it");
        give_session(session.clone());
        state.destroy_session(id, None, fx).unwrap();
        assert!(take_session(id).is_none(), "it has ended");
        give_session(session);
        assert!(SESSIONS.with_borrow(|known| known.iter().all(Option::is_none)), "nobody needs it");
    }

    #[test]
    fn a_grant_is_known_until_the_state_changes() {
        let file = FileHandle::new(b"a file").unwrap();
        let stateid = StateId { seqid: 1, other: [7; 12] };
        let grant = Grant { client: ClientId(1), stateid, file: &file, access: 1 };
        assert!(!grant.is_known(5));
        grant.remember(5);
        assert!(grant.is_known(5) && !grant.is_known(6) && !grant.is_known(4));
        let another = FileHandle::new(b"b file").unwrap();
        for other in [
            Grant { client: ClientId(2), ..grant },
            Grant { stateid: StateId { seqid: 2, ..stateid }, ..grant },
            Grant { file: &another, ..grant },
            Grant { access: 2, ..grant },
        ] {
            assert!(!other.is_known(5), "{other:?}");
        }
    }
}
