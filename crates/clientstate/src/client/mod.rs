//! Client records: EXCHANGE_ID, DESTROY_CLIENTID, RECLAIM_COMPLETE, and the end of a client.

mod sessions;

use std::sync::Arc;

use crate::lease::Lease;
use crate::nlm::Held;
use crate::record::Record;
use crate::state::{Named, Ref, State};
use crate::{Action, ClientId, Durability, Effects, Error, Now, OwnerName, Principal, SessionId, StateId};

pub use sessions::{CreateSession, Created, Direction};

/// The part of all client records that unconfirmed ones may take before one of them makes room for a new one.
const FEW: usize = 20;

/// A client record.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) owner: OwnerName,
    pub(crate) verifier: [u8; 8],
    pub(crate) principal: Principal,
    pub(crate) is_confirmed: bool,
    pub(crate) reclaim_complete: bool,
    /// The sequence number of its last CREATE_SESSION, and the answer.
    pub(crate) sequence: u32,
    pub(crate) created: Option<Created>,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) states: u32,
    /// The delegations among `states`.
    pub(crate) delegations: u32,
    pub(crate) held: Held,
    pub(crate) lease: Arc<Lease>,
}

/// Flags of EXCHANGE_ID.
pub mod exchange {
    /// The client understands moved referrals.
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    /// The client understands migration.
    pub const SUPP_MOVED_MIGR: u32 = 0x2;
    /// State ids are bound to the principal.
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    /// A server without pNFS.
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// The roles of pNFS servers.
    pub const MASK_PNFS: u32 = 0x7_0000;
    /// The request updates a confirmed record.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// The answer is about a confirmed record.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// The flags that a client may set.
    pub const OF_CLIENT: u32 =
        SUPP_MOVED_REFER | SUPP_MOVED_MIGR | BIND_PRINC_STATEID | MASK_PNFS | UPD_CONFIRMED_REC_A;
}

/// The arguments of EXCHANGE_ID.
#[derive(Clone, Debug)]
pub struct ExchangeId {
    /// The client's name for itself.
    pub owner: OwnerName,
    /// The verifier, which changes when the client restarts.
    pub verifier: [u8; 8],
    /// The caller.
    pub principal: Principal,
    /// Flags of [`exchange`].
    pub flags: u32,
}

/// The result of EXCHANGE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The client.
    pub client: ClientId,
    /// The sequence number of its next CREATE_SESSION.
    pub sequence: u32,
    /// Flags of [`exchange`].
    pub flags: u32,
}

impl State {
    /// Carries out EXCHANGE_ID. Rows are numbered as in RFC 8881 section 18.35.5; "same" compares with the confirmed
    /// record of this client owner.
    ///
    /// | # | update | confirmed record | verifier | principal | result |
    /// |---|---|---|---|---|---|
    /// | 1 | no | none | - | - | a new unconfirmed record |
    /// | 2 | no | yes | same | same | the confirmed record |
    /// | 3 | no | yes, with a live lease and state | any | other | `ClidInuse` |
    /// | 3 | no | yes, without sessions and state | any | other | a new unconfirmed record replaces it |
    /// | 3 | no | yes, expired | any | other | a new unconfirmed record; see below |
    /// | 4 | no | any; there is an unconfirmed record | - | - | as 1 or 5; the unconfirmed record is replaced |
    /// | 5 | no | yes | other | same | a new unconfirmed record; see below |
    /// | 6 | yes | yes | same | same | the confirmed record |
    /// | 7 | yes | none | - | - | `Noent` |
    /// | 8 | yes | yes | other | same | `NotSame` |
    /// | 9 | yes | yes | any | other | `Perm` |
    ///
    /// The confirmed record and its state stay until CREATE_SESSION confirms the new record. So a forged EXCHANGE_ID
    /// changes nothing for the client.
    pub fn exchange_id(&mut self, args: &ExchangeId, now: Now, fx: &mut Effects) -> Result<Exchanged, Error> {
        if args.flags & !exchange::OF_CLIENT != 0 {
            return Err(Error::Inval);
        }
        let named = self.by_owner.get(&args.owner).copied().unwrap_or_default();
        let confirmed = named.confirmed.and_then(|id| Some((id, self.clients.get(&id)?)));
        if args.flags & exchange::UPD_CONFIRMED_REC_A != 0 {
            let (id, client) = confirmed.ok_or(Error::Noent)?;
            if client.principal != args.principal {
                return Err(Error::Perm);
            }
            if client.verifier != args.verifier {
                return Err(Error::NotSame);
            }
            return Ok(self.exchanged(id));
        }
        if let Some((id, client)) = confirmed {
            if client.principal != args.principal {
                if !self.may_be_replaced(id, now) {
                    return Err(Error::ClidInuse);
                }
                if client.states == 0 && client.sessions.is_empty() {
                    self.remove_client(id, fx);
                }
            } else if client.verifier == args.verifier {
                return Ok(self.exchanged(id));
            }
        }
        if let Some(unconfirmed) = named.unconfirmed {
            self.remove_client(unconfirmed, fx);
        }
        if self.clients.len() >= self.limits.clients && !self.make_room(now, fx) {
            return Err(Error::Delay);
        }
        let id = self.next_client();
        self.by_owner.entry(args.owner.clone()).or_default().unconfirmed = Some(id);
        let client = Client {
            owner: args.owner.clone(),
            verifier: args.verifier,
            principal: args.principal.clone(),
            is_confirmed: false,
            reclaim_complete: false,
            sequence: 0,
            created: None,
            sessions: Vec::new(),
            states: 0,
            delegations: 0,
            held: Held::default(),
            lease: Arc::new(Lease::new(now)),
        };
        self.clients.insert(id, client);
        self.settle(now, fx);
        Ok(self.exchanged(id))
    }

    /// Removes a client record for a new one. Many unconfirmed records are a flood, which must not cost an expired
    /// client its state. Of a few, each is a client about to make its session. Returns false if nothing can be removed.
    fn make_room(&mut self, now: Now, fx: &mut Effects) -> bool {
        let unconfirmed = self.clients.values().filter(|client| !client.is_confirmed).count();
        if unconfirmed > self.limits.clients / FEW {
            return self.drop_unconfirmed(fx);
        }
        self.expire_one(now, fx) || self.drop_unconfirmed(fx)
    }

    /// Removes the oldest unconfirmed record, so that a flood of EXCHANGE_ID keeps no client out. Returns false if
    /// there is none.
    fn drop_unconfirmed(&mut self, fx: &mut Effects) -> bool {
        let unconfirmed = self.clients.iter().filter(|(_, client)| !client.is_confirmed);
        let oldest = unconfirmed.min_by_key(|(id, client)| (client.lease.renewed(), **id)).map(|(id, _)| *id);
        if let Some(id) = oldest {
            self.remove_client(id, fx);
        }
        oldest.is_some()
    }

    /// Returns the result of EXCHANGE_ID for a client record: its flags, and the sequence number that CREATE_SESSION
    /// must have.
    fn exchanged(&self, id: ClientId) -> Exchanged {
        let client = self.clients.get(&id);
        let confirmed = client.is_some_and(|client| client.is_confirmed);
        let flags = exchange::USE_NON_PNFS | if confirmed { exchange::CONFIRMED_R } else { 0 };
        let sequence = client.map_or(0, |client| client.sequence).wrapping_add(1);
        Exchanged { client: id, sequence, flags }
    }

    /// Returns true if another principal may take the client owner over.
    pub(crate) fn may_be_replaced(&self, id: ClientId, now: Now) -> bool {
        self.clients.get(&id).is_none_or(|client| {
            client.lease.is_expired(now, self.limits.lease)
                || client.states == 0 && client.sessions.is_empty()
        })
    }

    /// Carries out DESTROY_CLIENTID. Fails with `WrongCred` for another principal than that of EXCHANGE_ID.
    pub fn destroy_client_id(
        &mut self,
        id: ClientId,
        by: &Principal,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let client = self.clients.get(&id).ok_or(Error::StaleClientid)?;
        if client.principal != *by {
            return Err(Error::WrongCred);
        }
        if !client.sessions.is_empty() || client.states > 0 {
            return Err(Error::ClientidBusy);
        }
        self.remove_client(id, fx);
        self.settle(now, fx);
        Ok(())
    }

    /// Carries out RECLAIM_COMPLETE. For one file system (`one_fs`) it changes nothing.
    pub fn reclaim_complete(
        &mut self,
        id: ClientId,
        one_fs: bool,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let client = self.clients.get_mut(&id).ok_or(Error::StaleClientid)?;
        if one_fs {
            return Ok(());
        }
        if client.reclaim_complete {
            return Err(Error::CompleteAlready);
        }
        client.reclaim_complete = true;
        let owner = client.owner.clone();
        fx.log(Durability::BeforeReply, Record::ReclaimComplete(id));
        self.grace_completed(&owner, now);
        Ok(())
    }

    /// Returns the client of a request that needs state. A client that was expired meanwhile gets `Expired`.
    pub(crate) fn client(&self, id: ClientId) -> Result<&Client, Error> {
        self.clients.get(&id).filter(|client| client.is_confirmed).ok_or(Error::Expired)
    }

    /// Returns true if a client is expired: its state goes at the first conflict.
    pub(crate) fn is_courtesy(&self, id: ClientId, now: Now) -> bool {
        self.clients.get(&id).is_none_or(|client| client.lease.is_expired(now, self.limits.lease))
    }

    /// Ends a client: its sessions, its state, its record. Locks of other owners that become free are granted by
    /// [`State::settle`], never from here: so ending clients inside of granting does not recurse.
    pub(crate) fn remove_client(&mut self, id: ClientId, fx: &mut Effects) {
        let Some(client) = self.clients.get(&id) else { return };
        let (sessions, confirmed, owner) =
            (client.sessions.clone(), client.is_confirmed, client.owner.clone());
        client.lease.end();
        if confirmed {
            // Before its delegations are gone for readers of the counters.
            self.revoke(Record::ClientRemoved(id), fx);
        }
        for session in sessions {
            self.remove_session(session);
        }
        self.remove_states(id, fx);
        self.clients.remove(&id);
        if let Some(named) = self.by_owner.get_mut(&owner) {
            let keep = |other: &ClientId| *other != id;
            *named = Named {
                confirmed: named.confirmed.filter(keep),
                unconfirmed: named.unconfirmed.filter(keep),
            };
            if named.confirmed.is_none() && named.unconfirmed.is_none() {
                self.by_owner.remove(&owner);
            }
        }
        if confirmed {
            fx.act(Action::ClientGone(id));
        }
    }

    /// Removes everything that a client holds: opens, locks, delegations, copies, and blocked requests. Adds no
    /// record for each, since the client's own record ends them all.
    fn remove_states(&mut self, id: ClientId, fx: &mut Effects) {
        let range = (id, Ref::FIRST)..=(id, Ref::LAST);
        let states: Vec<Ref> = self.of_client.range(range).map(|(_, state)| *state).collect();
        for state in states {
            match state {
                Ref::Open(open) => self.remove_open(open, fx),
                Ref::Lock(lock) => self.remove_lock_state(lock, fx),
                Ref::Delegation(delegation) => self.remove_delegation(delegation, fx),
                Ref::Copy(copy) => self.drop_copy(copy),
            }
        }
        self.drop_ended_copies(id);
        self.remove_waiters_of(id);
    }

    /// Ends the client that has been expired for the longest time. Returns false if none is expired.
    pub(crate) fn expire_one(&mut self, now: Now, fx: &mut Effects) -> bool {
        let expired = self.clients.iter().filter(|(id, _)| self.is_courtesy(**id, now));
        let oldest = expired.min_by_key(|(id, client)| (client.lease.renewed(), **id)).map(|(id, _)| *id);
        if let Some(id) = oldest {
            self.remove_client(id, fx);
        }
        oldest.is_some()
    }

    /// Counts a state of a client.
    pub(crate) fn attach(&mut self, id: ClientId, stateid: StateId, state: Ref) {
        self.states.insert(stateid.other, state);
        self.of_client.insert((id, state));
        if let Some(client) = self.clients.get_mut(&id) {
            client.states += 1;
            client.delegations += u32::from(matches!(state, Ref::Delegation(_)));
        }
    }

    /// Counts a state out.
    pub(crate) fn detach(&mut self, id: ClientId, stateid: StateId, state: Ref) {
        self.states.remove(&stateid.other);
        if self.of_client.remove(&(id, state))
            && let Some(client) = self.clients.get_mut(&id)
        {
            client.states = client.states.saturating_sub(1);
            let is_delegation = u32::from(matches!(state, Ref::Delegation(_)));
            client.delegations = client.delegations.saturating_sub(is_delegation);
        }
    }

    /// Makes room for one more state by ending expired clients. Returns `Delay` if there is no room, or no more of it
    /// than the client already holds.
    pub(crate) fn admit_state(&mut self, id: ClientId, now: Now, fx: &mut Effects) -> Result<(), Error> {
        while self.states.len() >= self.limits.states {
            if !self.expire_one(now, fx) {
                return Err(Error::Delay);
            }
        }
        let held = self.client(id)?.states as usize;
        if held < self.limits.states - self.states.len() { Ok(()) } else { Err(Error::Delay) }
    }
}
