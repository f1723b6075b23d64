//! A session of NFSv4.1 (RFC 8881, section 2.10): its beginning, its slots, its end.

use anyhow::{Context as _, Result, anyhow, bail};
use forebay_wire::nfs4::*;
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::{Array, Decode as _, Opaque, Reader};

use super::Fault;
use super::v4::{MINOR, results};
use crate::connection::Connection;
use crate::session::TIMEOUT;

/// Fewest slots that a client asks for.
pub(crate) const MIN_SLOTS: u16 = 64;
/// Longest request and reply in bytes: 1 MiB of data with room for everything else.
const MESSAGE: u32 = (1 << 20) + (4 << 10);
/// Longest reply in bytes that the server shall keep.
const KEPT: u32 = 4 << 10;
/// Operations that Linux asks for.
const OPERATIONS: u32 = 8;
/// The name of the only owner of opens in its client.
const OWNER: &[u8] = b"forebay-bench";

/// A session. Each client has one of its own, on one connection.
pub(crate) struct Session4 {
    client: u64,
    id: SessionId,
    /// The sequence number of the last request that the server accepted, for each slot.
    slots: Vec<u32>,
}

/// Sends one COMPOUND without a session and takes its only result.
fn call<T>(
    connection: &mut Connection,
    operation: &Op<'_>,
    take: impl Fn(OpResult<'_>) -> Option<T>,
) -> Result<T> {
    let name = operation.number().name();
    let xid = rand::random();
    let out = connection.begin_call(xid, PROC_COMPOUND);
    CompoundWriter::begin(out, b"", MINOR).push(out, operation);
    connection.end_call();
    let mut body = Reader::new(connection.exchange(TIMEOUT)?);
    let header = ReplyHeader::decode(&mut body).context("the reply is not an RPC reply")?;
    if header.xid != xid || header.status != ReplyStatus::Success {
        bail!("{name} failed: the server says {:?}", header.status);
    }
    let result = results(body).and_then(|mut results| Ok(results.next().transpose()?));
    match result {
        Ok(Some(result)) => take(result).ok_or_else(|| anyhow!("{name} has no result")),
        Ok(None) => bail!("{name} has no result"),
        Err(Fault::Status(status)) => bail!("{name} failed: {status}"),
        Err(Fault::Malformed(error)) => bail!("the reply to {name} cannot be decoded: {error}"),
        Err(Fault::Missing) => bail!("{name} has no result"),
    }
}

impl Session4 {
    /// Makes a client of a new name and a session with up to `slots` slots.
    pub(super) fn begin(connection: &mut Connection, slots: u16) -> Result<Self> {
        let name = format!("forebay-bench {:032x}", rand::random::<u128>());
        let owner = ClientOwner { verifier: rand::random(), id: Opaque(name.as_bytes()) };
        let args = ExchangeIdArgs {
            client_owner: owner,
            flags: 0,
            state_protect: StateProtectArgs::None,
            impl_id: None,
        };
        let (client, sequence) = call(connection, &Op::ExchangeId(args), |result| match result {
            OpResult::ExchangeId(Ok(made)) => Some((made.clientid, made.sequence)),
            _ => None,
        })?;
        let channel = ChannelAttrs {
            max_request: MESSAGE,
            max_response: MESSAGE,
            max_response_cached: KEPT,
            max_operations: OPERATIONS,
            max_requests: slots.max(MIN_SLOTS).into(),
            ..ChannelAttrs::default()
        };
        let args = CreateSessionArgs {
            clientid: client,
            sequence,
            flags: 0,
            fore_channel: channel,
            back_channel: ChannelAttrs { max_requests: 1, max_operations: 2, ..channel },
            cb_program: 0x4000_0000,
            sec_parms: Array::EMPTY,
        };
        let (id, granted) = call(connection, &Op::CreateSession(args), |result| match result {
            OpResult::CreateSession(Ok(made)) => Some((made.sessionid, made.fore_channel.max_requests)),
            _ => None,
        })?;
        if granted < slots.into() {
            bail!("the server grants {granted} slots to a session, too few for {slots} requests in flight");
        }
        Ok(Self { client, id, slots: vec![0; slots.into()] })
    }

    /// Returns a session whose slots have all accepted request number `last`.
    #[cfg(test)]
    pub(super) fn of_test(last: u32, slots: usize) -> Self {
        Self { client: 1, id: [1; 16], slots: vec![last; slots] }
    }

    /// Returns the SEQUENCE of the next request in a slot. A slot beyond those of the session counts as unused.
    pub(super) fn sequence(&self, slot: u32, keep: bool) -> SequenceArgs {
        let last = self.slots.get(slot as usize).copied().unwrap_or_default();
        let highest_slot = (self.slots.len() as u32).saturating_sub(1);
        let sequence = last.wrapping_add(1);
        SequenceArgs { sessionid: self.id, sequence, slot, highest_slot, cache_this: keep }
    }

    /// Notes that the server has accepted the request in a slot.
    #[inline]
    pub(super) fn accepted(&mut self, slot: u32) {
        if let Some(last) = self.slots.get_mut(slot as usize) {
            *last = last.wrapping_add(1);
        }
    }

    pub(super) fn owner(&self) -> StateOwner<'static> {
        StateOwner { clientid: self.client, owner: Opaque(OWNER) }
    }

    /// Ends the session and the client, so that the server need not wait for the end of the lease.
    pub(super) fn end(self, connection: &mut Connection) -> Result<()> {
        let args = DestroySessionArgs { sessionid: self.id };
        call(connection, &Op::DestroySession(args), |result| {
            matches!(result, OpResult::DestroySession(Ok(()))).then_some(())
        })?;
        let args = DestroyClientidArgs { clientid: self.client };
        call(connection, &Op::DestroyClientid(args), |result| {
            matches!(result, OpResult::DestroyClientid(Ok(()))).then_some(())
        })
    }
}
