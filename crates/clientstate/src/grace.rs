//! The grace period of a server whose log is lost, and the passage of time.

use std::collections::BTreeSet;

use crate::state::{Origin, State};
use crate::{Effects, Limits, Now, OwnerName, planted_bugs};

/// A grace period.
#[derive(Debug)]
pub(crate) struct Grace {
    until: Now,
    /// The clients that may still reclaim; `None` if nobody knows them.
    expected: Option<BTreeSet<OwnerName>>,
}

impl State {
    /// Returns the state of a server that has never had clients. There is no grace period.
    pub fn new(limits: Limits, origin: Origin) -> State {
        State::empty(limits, origin)
    }

    /// Returns the state of a server that has lost its log. The grace period lasts a lease time. It ends early when all
    /// known clients have said RECLAIM_COMPLETE; with `None` the server does not know its clients.
    pub fn without_log(limits: Limits, origin: Origin, known: Option<Vec<OwnerName>>, now: Now) -> State {
        let until = now + limits.lease;
        let mut state = State::empty(limits, origin);
        let expected = known.map(|known| known.into_iter().collect::<BTreeSet<_>>());
        if expected.as_ref().is_none_or(|expected| !expected.is_empty()) {
            state.grace = Some(Grace { until, expected });
        }
        state
    }

    /// Begins a grace period of a lease time: some clients have lost state that this server does not know.
    pub fn begin_grace(&mut self, now: Now) {
        self.grace = Some(Grace { until: now + self.limits.lease, expected: None });
    }

    /// Begins the rest of a grace period that a kill has interrupted: a lease time for the `known` clients that have
    /// not said RECLAIM_COMPLETE. The state comes from the log.
    pub fn resume_grace(&mut self, known: Vec<OwnerName>, now: Now) {
        let complete = self.clients.values().filter(|client| client.reclaim_complete);
        let complete: BTreeSet<_> = complete.map(|client| &client.owner).collect();
        let expected: BTreeSet<_> = known.into_iter().filter(|owner| !complete.contains(owner)).collect();
        if !expected.is_empty() {
            self.grace = Some(Grace { until: now + self.limits.lease, expected: Some(expected) });
        }
    }

    /// Returns the time until the grace period ends, or `None` if there is none. It may end earlier.
    pub fn grace_left(&self, now: Now) -> Option<Now> {
        self.grace.as_ref().and_then(|grace| grace.until.checked_sub(now)).filter(|left| *left > 0)
    }

    /// Returns true in a grace period. The executor refuses REMOVE and RENAME as well then.
    pub fn in_grace(&self, now: Now) -> bool {
        self.grace_left(now).is_some()
    }

    /// Notes that a client has reclaimed its state. The grace period ends when all expected clients have; without a
    /// list it lasts its full time.
    pub(crate) fn grace_completed(&mut self, owner: &OwnerName, _now: Now) {
        let Some(Grace { expected: Some(expected), .. }) = &mut self.grace else { return };
        expected.remove(owner);
        if expected.is_empty() {
            self.grace = None;
        }
    }

    /// Lets time pass: the server calls it about once a second. The records wait for the next request's.
    ///
    /// | state | since | then |
    /// |---|---|---|
    /// | a client record that was never confirmed | a lease time | removed |
    /// | an expired client without sessions and state | a lease time | removed |
    /// | an expired client | the courtesy time | removed with its state |
    /// | a recalled delegation | a lease time | revoked |
    /// | a request for a lock that its client has not repeated | a lease time | forgotten |
    /// | a copy that a crash of the server has ended | the start | announced with `Action::TellCopy` |
    /// | an ended copy whose client is told | - | forgotten |
    /// | a kept file that only expired clients hold | its removal | given up with `Action::FileUnused` |
    /// | the grace period | a lease time | ended |
    pub fn tick(&mut self, now: Now, fx: &mut Effects) {
        if self.grace.is_some() && !self.in_grace(now) {
            self.grace = None;
        }
        let (lease, courtesy) = (self.limits.lease, self.limits.courtesy);
        let ended = self.clients.iter().filter(|(_, client)| {
            let quiet = now.saturating_sub(client.lease.renewed());
            let holds_nothing = client.states == 0 && client.sessions.is_empty();
            quiet > lease && (!client.is_confirmed || holds_nothing) || quiet > courtesy
        });
        let ended: Vec<_> = ended.map(|(id, _)| *id).collect();
        if !planted_bugs::active("an expired client keeps its locks") {
            ended.into_iter().for_each(|id| self.remove_client(id, fx));
        }
        self.revoke_late_delegations(now, fx);
        self.forget_late_waiters(now);
        self.settle(now, fx);
        self.release_unheld(now, fx);
        self.announce_ended_copies(fx);
        self.forget_told_copies(fx);
        self.defer(fx);
    }
}
