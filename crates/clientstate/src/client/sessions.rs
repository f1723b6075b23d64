//! CREATE_SESSION, DESTROY_SESSION, BIND_CONN_TO_SESSION and BACKCHANNEL_CTL.

use std::sync::Arc;

use crate::record::Record;
use crate::session::{CONN_BACK_CHAN, Channel, Directions, PERSIST, Parts, Session};
use crate::state::State;
use crate::{ClientId, Connection, Durability, Effects, Error, Now, Principal, SessionId, planted_bugs};

/// The arguments of CREATE_SESSION.
#[derive(Clone, Debug)]
pub struct CreateSession {
    /// The client.
    pub client: ClientId,
    /// The sequence number of this CREATE_SESSION.
    pub sequence: u32,
    /// [`PERSIST`] and [`CONN_BACK_CHAN`].
    pub flags: u32,
    /// The fore channel that the client asks for.
    pub fore: Channel,
    /// The back channel.
    pub back: Channel,
    /// The program number of call-backs.
    pub callback_program: u32,
    /// The security of call-backs, opaque to this crate.
    pub callback_security: Vec<u8>,
    /// The caller.
    pub principal: Principal,
    /// The connection of the request.
    pub connection: Connection,
    /// Random bytes.
    pub random: [u8; 8],
}

/// The result of CREATE_SESSION.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The session.
    pub session: SessionId,
    /// The sequence number of the request.
    pub sequence: u32,
    /// The granted flags.
    pub flags: u32,
    /// The fore channel.
    pub fore: Channel,
    /// The back channel.
    pub back: Channel,
}

/// The direction that BIND_CONN_TO_SESSION asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    Fore,
    /// Call-backs.
    Back,
    /// Requests, and call-backs if the server likes.
    ForeOrBoth,
    /// Call-backs, and requests if the server likes.
    BackOrBoth,
}

impl State {
    /// Carries out CREATE_SESSION.
    ///
    /// | the client | sequence number | and | result |
    /// |---|---|---|---|
    /// | unknown | | | `StaleClientid` |
    /// | known | the last one | a session was made with it | the answer of that time |
    /// | known | not the next one | | `SeqMisordered` |
    /// | unconfirmed | the next one | another principal | `ClidInuse` |
    /// | unconfirmed | the next one | the owner's confirmed record has another principal, and is in use | `ClidInuse` |
    /// | unconfirmed | the next one | else | the record is confirmed; the older record of this owner is removed |
    /// | any | the next one | too many sessions | `Nospc` |
    ///
    /// Only a success moves the sequence number. Any principal may make a session of a confirmed client (RFC 8881,
    /// section 18.36.3): the caller keeps clients' ids secret from each other.
    pub fn create_session(
        &mut self,
        args: &CreateSession,
        now: Now,
        fx: &mut Effects,
    ) -> Result<Created, Error> {
        let client = self.clients.get(&args.client).ok_or(Error::StaleClientid)?;
        if let Some(created) = client.created.as_ref().filter(|_| args.sequence == client.sequence) {
            return Ok(created.clone());
        }
        if args.sequence != client.sequence.wrapping_add(1) {
            return Err(Error::SeqMisordered);
        }
        if args.flags & !(PERSIST | CONN_BACK_CHAN | 4) != 0 {
            return Err(Error::Inval);
        }
        let (fore, back) = (args.fore.fore(&self.limits)?, args.back.back()?);
        if client.sessions.len() >= self.limits.sessions_per_client {
            return Err(Error::Nospc);
        }
        client.lease.renew(now);
        let is_confirmed = client.is_confirmed;
        let fore = Channel { slots: self.admit_slots(fore.slots, now, fx)?, ..fore };
        if !is_confirmed {
            self.confirm(args, now, fx)?;
        }
        let flags = args.flags & (PERSIST | CONN_BACK_CHAN);
        let id = self.next_session(args.random);
        let parts = Parts { id, client: args.client, sequence: args.sequence, flags, fore, back };
        fx.log(
            Durability::BeforeReply,
            Record::Session { id, client: args.client, sequence: args.sequence, flags, fore, back },
        );
        let session = self.add_session(parts, false);
        if let Some(session) = session {
            session.set_callback(args.callback_program, args.callback_security.clone());
            let directions = Directions { fore: true, back: flags & CONN_BACK_CHAN != 0 };
            session.bind(args.connection, directions);
        }
        self.settle(now, fx);
        Ok(Created { session: id, sequence: args.sequence, flags, fore, back })
    }

    /// Returns the slots that a new session may have.
    fn admit_slots(&mut self, wanted: u32, now: Now, fx: &mut Effects) -> Result<u32, Error> {
        let few = self.limits.slots_under_pressure.clamp(1, wanted);
        while self.granted_slots + few > self.limits.total_slots {
            if !self.expire_one(now, fx) {
                return Err(Error::Nospc);
            }
        }
        let is_short = self.granted_slots + wanted > self.limits.total_slots;
        Ok(if is_short { few } else { wanted })
    }

    /// Confirms a client record at its first CREATE_SESSION. The confirmed record of an earlier instance of the client,
    /// and all of its state, is removed.
    fn confirm(&mut self, args: &CreateSession, now: Now, fx: &mut Effects) -> Result<(), Error> {
        let client = self.clients.get(&args.client).ok_or(Error::StaleClientid)?;
        if client.principal != args.principal {
            return Err(Error::ClidInuse);
        }
        let old = self.by_owner.get(&client.owner).and_then(|named| named.confirmed);
        if let Some(old) = old {
            let of_other = self.clients.get(&old).is_some_and(|old| old.principal != args.principal);
            if of_other && !self.may_be_replaced(old, now) {
                return Err(Error::ClidInuse);
            }
            if !planted_bugs::active("a restarted client keeps its old state") {
                self.remove_client(old, fx);
            }
        }
        let client = self.clients.get_mut(&args.client).ok_or(Error::StaleClientid)?;
        client.is_confirmed = true;
        let named = self.by_owner.entry(client.owner.clone()).or_default();
        (named.confirmed, named.unconfirmed) = (Some(args.client), None);
        let record = Record::Client {
            id: args.client,
            owner: client.owner.clone(),
            verifier: client.verifier,
            principal: client.principal.clone(),
            sequence: client.sequence,
        };
        fx.log(Durability::BeforeReply, record);
        Ok(())
    }

    /// Adds a session to its client, and moves the client's sequence number.
    pub(crate) fn add_session(&mut self, parts: Parts, recovered: bool) -> Option<Arc<Session>> {
        let client = self.clients.get_mut(&parts.client)?;
        let Parts { id, sequence, flags, fore, back, .. } = parts.clone();
        // Records of a snapshot come in any order.
        if sequence.wrapping_sub(client.sequence) as i32 >= 0 {
            client.sequence = sequence;
            client.created = Some(Created { session: id, sequence, flags, fore, back });
        }
        if let Some(known) = self.sessions.get(&id) {
            return Some(known.clone());
        }
        let session =
            Session::new(parts, client.lease.clone(), &self.limits, self.kept_memory.clone(), recovered);
        let session = Arc::new(session);
        self.granted_slots += fore.slots;
        self.sessions.insert(id, session.clone());
        client.sessions.push(id);
        Some(session)
    }

    /// Carries out DESTROY_SESSION. `own_slot` is the slot of the request itself, if it came through this session.
    /// Requests that run in other slots get `Delay` for the caller.
    pub fn destroy_session(
        &mut self,
        id: SessionId,
        own_slot: Option<u32>,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let session = self.sessions.get(&id).ok_or(Error::BadSession)?;
        if session.is_busy(own_slot) {
            return Err(Error::Delay);
        }
        self.remove_session(id);
        fx.log(Durability::BeforeReply, Record::SessionDestroyed(id));
        Ok(())
    }

    /// Ends a session, and gives its slots back. Requests that still run in the session end with `BadSession`.
    pub(crate) fn remove_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.granted_slots = self.granted_slots.saturating_sub(session.fore.slots);
        session.destroy();
        if let Some(client) = self.clients.get_mut(&session.client()) {
            client.sessions.retain(|other| *other != id);
        }
    }

    /// Carries out BIND_CONN_TO_SESSION, and returns the granted directions. The server grants both where the client
    /// leaves the choice. Call-backs need a session that was made with them, or this request.
    pub fn bind_conn_to_session(
        &mut self,
        id: SessionId,
        direction: Direction,
        connection: Connection,
        now: Now,
    ) -> Result<Directions, Error> {
        let session = self.sessions.get(&id).ok_or(Error::BadSession)?;
        let directions = match direction {
            Direction::Fore => Directions { fore: true, back: false },
            Direction::Back => Directions { fore: false, back: true },
            Direction::ForeOrBoth | Direction::BackOrBoth => Directions { fore: true, back: true },
        };
        session.bind(connection, directions);
        session.lease().renew(now);
        Ok(directions)
    }

    /// Carries out BACKCHANNEL_CTL.
    pub fn backchannel_ctl(&mut self, id: SessionId, program: u32, security: Vec<u8>) -> Result<(), Error> {
        self.sessions.get(&id).ok_or(Error::BadSession)?.set_callback(program, security);
        Ok(())
    }
}
