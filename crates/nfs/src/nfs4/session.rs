//! Clients and sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and their like.

use forebay_clientstate::{
    CONN_BACK_CHAN, Channel, ClientId, CreateSession, Direction, ExchangeId, OwnerName, PERSIST, Principal,
    Request, Sequenced, SessionId,
};
use forebay_rpc::Reply;
use forebay_vfs::Wait;
use forebay_wire::nfs4::{
    BindConnArgs, BindConnOk, ChannelAttrs, ChannelDirFromClient, ChannelDirFromServer, CreateSessionArgs,
    CreateSessionOk, ExchangeIdArgs, ExchangeIdOk, Nfsstat4, Opcode, SequenceArgs, SequenceOk, ServerOwner,
    StateProtectArgs, StateProtectRes, exchange_id,
};
use forebay_wire::{Opaque, xdr::Encode};

use super::callback::security;
use super::compound::{Arguments, Compound, Context, InSlot, Stop, put};
use super::place::may_wait;
use super::recent;
use crate::caller::admit_anywhere;

/// Turns a request for a client's record away, with `status`, if no export is open to its port and connection. An
/// ordinary user of a client's host can claim to be its root, but has no port below 1024.
fn admit(cx: &Context<'_>, status: Nfsstat4) -> Result<(), Stop> {
    let peer = cx.call.peer;
    admit_anywhere(&cx.shared.rules.now(), peer).map_err(|why| {
        cx.shared.refusals.add(peer.addr.ip(), why);
        Stop::Fail(status)
    })
}

/// Returns the authenticated caller in a form that can be compared.
fn principal(cx: &Context<'_>) -> Result<Principal, Stop> {
    let mut bytes = Vec::new();
    match (&cx.call.head.gss, &cx.call.head.user) {
        (Some(gss), _) => {
            6u32.encode(&mut bytes);
            bytes.extend_from_slice(&gss.principal);
        }
        (None, Some(user)) => {
            1u32.encode(&mut bytes);
            user.uid.encode(&mut bytes);
        }
        (None, None) => 0u32.encode(&mut bytes),
    }
    Principal::new(&bytes).ok_or(Stop::Fail(Nfsstat4::Serverfault))
}

impl Compound {
    /// Executes EXCHANGE_ID, which makes the record of a client or finds it.
    pub(super) fn exchange_id(
        &mut self,
        cx: &Context<'_>,
        args: &ExchangeIdArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        admit(cx, Nfsstat4::Perm)?;
        if args.flags & !exchange_id::MASK_A != 0 {
            return Err(Stop::Fail(Nfsstat4::Inval));
        }
        let state_protect = match args.state_protect {
            StateProtectArgs::None => StateProtectRes::None,
            // The machine credential is one of RPCSEC_GSS (RFC 8881 section 2.10.8.3).
            StateProtectArgs::MachCred(_) => return Err(Stop::Fail(Nfsstat4::Inval)),
            StateProtectArgs::Ssv(_) => return Err(Stop::Fail(Nfsstat4::EncrAlgUnsupp)),
        };
        let owner = OwnerName::new(args.client_owner.id.0).ok_or(Stop::Fail(Nfsstat4::Badxdr))?;
        let request = ExchangeId {
            owner,
            verifier: args.client_owner.verifier,
            principal: principal(cx)?,
            flags: args.flags,
        };
        let exchanged = cx.server.state().exchange_id(&request, cx.now, &mut self.effects)?;
        let server_owner = ServerOwner { minor_id: 0, major_id: Opaque(&cx.server.owner) };
        let body = ExchangeIdOk {
            clientid: cx.server.client_ids.seal(exchanged.client),
            sequence: exchanged.sequence,
            flags: exchanged.flags,
            state_protect,
            server_owner,
            server_scope: Opaque(&cx.server.owner),
            impl_id: None,
        };
        put(&mut self.reply, reply.head(), Opcode::ExchangeId, &body);
        Ok(())
    }

    /// Executes CREATE_SESSION, which confirms a client record and binds the connection to the session.
    pub(super) fn create_session(
        &mut self,
        cx: &Context<'_>,
        args: &CreateSessionArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        admit(cx, Nfsstat4::WrongCred)?;
        // A new client is written down.
        may_wait(cx)?;
        // No request may have come for long, and the record of the client may have expired.
        cx.server.tick(&cx.shared.vfs, cx.now);
        let security = security(self.minor(), args.sec_parms.iter());
        let request = CreateSession {
            client: cx.server.client_ids.open(args.clientid),
            sequence: args.sequence,
            flags: flags(cx, args.flags, security.is_some())?,
            fore: channel(&args.fore_channel),
            back: channel(&args.back_channel),
            callback_program: args.cb_program,
            callback_security: security.unwrap_or_default(),
            principal: principal(cx)?,
            connection: cx.call.peer.id,
            random: cx.server.random(),
        };
        let created = cx.server.state().create_session(&request, cx.now, &mut self.effects)?;
        // Also for a repetition, and for a further session: the first attempt to write the name may have failed.
        cx.server.know(request.client).map_err(|_| Stop::Fail(Nfsstat4::Serverfault))?;
        self.opened = self.back_path(cx, created.session);
        let body = CreateSessionOk {
            sessionid: created.session.0,
            sequence: created.sequence,
            flags: created.flags,
            fore_channel: wire_channel(&created.fore),
            back_channel: wire_channel(&created.back),
        };
        put(&mut self.reply, reply.head(), Opcode::CreateSession, &body);
        Ok(())
    }

    /// Executes DESTROY_CLIENTID, which removes the record of a client without sessions and state.
    pub(super) fn destroy_client_id(
        &mut self,
        cx: &Context<'_>,
        id: u64,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        admit(cx, Nfsstat4::WrongCred)?;
        let id = cx.server.client_ids.open(id);
        cx.server.state().destroy_client_id(id, &principal(cx)?, cx.now, &mut self.effects)?;
        self.reply.start(reply.head(), Opcode::DestroyClientid);
        Ok(())
    }

    /// Carries out DESTROY_SESSION. Fails with NFS4ERR_DELAY while requests run in slots of the session, apart from
    /// this COMPOUND's own slot.
    pub(super) fn destroy_session(
        &mut self,
        cx: &Context<'_>,
        id: [u8; 16],
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let id = SessionId(id);
        let own = self.slot.as_ref().filter(|slot| slot.session.id() == id).map(|slot| slot.slot);
        cx.server.state().destroy_session(id, own, &mut self.effects)?;
        cx.server.forget_ended_sessions();
        put(&mut self.reply, reply.head(), Opcode::DestroySession, &());
        Ok(())
    }

    /// Executes BIND_CONN_TO_SESSION: the connection may carry requests, call-backs or both.
    pub(super) fn bind_connection(
        &mut self,
        cx: &Context<'_>,
        args: &BindConnArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let direction = match args.direction {
            ChannelDirFromClient::Fore => Direction::Fore,
            ChannelDirFromClient::Back => Direction::Back,
            ChannelDirFromClient::ForeOrBoth => Direction::ForeOrBoth,
            ChannelDirFromClient::BackOrBoth => Direction::BackOrBoth,
        };
        let bound = cx.server.state().bind_conn_to_session(
            SessionId(args.sessionid),
            direction,
            cx.call.peer.id,
            cx.now,
        )?;
        if let Some(path) = self.back_path(cx, SessionId(args.sessionid)) {
            cx.server.callbacks.open(&path);
        }
        let direction = match (bound.fore, bound.back) {
            (true, true) => ChannelDirFromServer::Both,
            (false, true) => ChannelDirFromServer::Back,
            _ => ChannelDirFromServer::Fore,
        };
        let body = BindConnOk { sessionid: args.sessionid, direction, rdma: false };
        put(&mut self.reply, reply.head(), Opcode::BindConnToSession, &body);
        Ok(())
    }

    /// Executes SEQUENCE: takes a slot for the COMPOUND, or answers a retransmission.
    pub(super) fn sequence(
        &mut self,
        cx: &Context<'_>,
        args: &SequenceArgs,
        rest: Arguments<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let id = SessionId(args.sessionid);
        let session = recent::take_session(id).or_else(|| cx.server.session(id));
        let session = session.ok_or(Stop::Fail(Nfsstat4::Badsession))?;
        let waiter = self.ticket.take().map(|ticket| cx.server.begin_waiting(ticket, self.xid()));
        let request = Request {
            slot: args.slot,
            sequence: args.sequence,
            highest: args.highest_slot,
            cache_this: args.cache_this,
            // A retransmission of Linux has another highest slot than the request, so SEQUENCE is left out.
            digest: crate::reply_cache::hash(rest.bytes(), 0),
            operations: rest.left() + 1,
            length: cx.call.record.len() as u32,
            connection: cx.call.peer.id,
            waiter,
        };
        let judged = session.sequence(&request, cx.now);
        if !matches!(judged, Ok(Sequenced::InProgress(_))) {
            self.ticket = waiter.and_then(|waiter| cx.server.stop_waiting(waiter));
        }
        let answer = match judged? {
            Sequenced::InProgress(_) if cx.wait == Wait::No => return Err(Stop::Later),
            Sequenced::InProgress(displaced) => {
                // Its connection is probably lost: the client has sent the request five times.
                if displaced.and_then(|waiter| cx.server.stop_waiting(waiter)).is_some() {
                    cx.shared.done();
                }
                return Err(Stop::Parked);
            }
            Sequenced::Replay(kept) => {
                self.replay(reply.head(), &kept);
                return Err(Stop::Appended);
            }
            Sequenced::NotKept(answer) => {
                let body = sequence_ok(args, &answer);
                put(&mut self.reply, reply.head(), Opcode::Sequence, &body);
                let next = rest.peek().unwrap_or(Opcode::Illegal);
                self.reply.push_failure(reply.head(), next, Nfsstat4::RetryUncachedRep);
                return Err(Stop::Appended);
            }
            Sequenced::New(answer, record) => {
                self.effects.records.extend(record);
                answer
            }
        };
        let fore = session.fore();
        let limit = if args.cache_this { fore.max_cached.min(fore.max_response) } else { fore.max_response };
        self.reply.limit_to(limit as usize);
        let (sequence, digest) = (args.sequence, request.digest);
        self.slot = Some(InSlot { session, slot: args.slot, sequence, digest, keeps: args.cache_this });
        put(&mut self.reply, reply.head(), Opcode::Sequence, &sequence_ok(args, &answer));
        Ok(())
    }

    /// Returns the client of the session.
    pub(super) fn client(&self) -> Result<ClientId, Stop> {
        let slot = self.slot.as_ref().ok_or(Stop::Fail(Nfsstat4::OpNotInSession))?;
        Ok(slot.session.client())
    }
}

/// Returns the result of SEQUENCE from the request and the session's answer.
fn sequence_ok(args: &SequenceArgs, answer: &forebay_clientstate::Answer) -> SequenceOk {
    SequenceOk {
        sessionid: args.sessionid,
        sequence: args.sequence,
        slot: args.slot,
        highest_slot: answer.highest,
        target_highest_slot: answer.target,
        status_flags: answer.status,
    }
}

/// Returns the flags that the server grants: sessions outlive the server if the log has them. Call-backs need a
/// credential.
fn flags(cx: &Context<'_>, wanted: u32, has_credential: bool) -> Result<u32, Stop> {
    if wanted & !7 != 0 {
        return Err(Stop::Fail(Nfsstat4::Inval));
    }
    let persist = if cx.shared.vfs.keeps_state() { PERSIST } else { 0 };
    let back = if has_credential { CONN_BACK_CHAN } else { 0 };
    Ok(wanted & (persist | back))
}

/// Returns the limits of a channel that the client asks for, in the terms of the clients' state.
fn channel(wire: &ChannelAttrs) -> Channel {
    Channel {
        max_request: wire.max_request,
        max_response: wire.max_response,
        max_cached: wire.max_response_cached,
        operations: wire.max_operations,
        slots: wire.max_requests,
    }
}

/// Returns the limits that the server grants for a channel, as CREATE_SESSION sends them.
fn wire_channel(channel: &Channel) -> ChannelAttrs {
    ChannelAttrs {
        header_pad: 0,
        max_request: channel.max_request,
        max_response: channel.max_response,
        max_response_cached: channel.max_cached,
        max_operations: channel.operations,
        max_requests: channel.slots,
        rdma_ird: None,
    }
}
