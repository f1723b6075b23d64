//! A connection to a server in one version of NFS, with the client's session in NFSv4.1.

use anyhow::{Context as _, Result, bail};
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::{Decode as _, Reader, nfs3, nfs4};

use super::request::Request;
use super::session4::Session4;
use super::{Answer, Version, v3, v4};
use crate::connection::Connection;
use crate::session::{Identity, TIMEOUT};
use crate::tls::Peer;

/// A connection of one client.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// The session, in NFSv4.1 only.
    session: Option<Session4>,
}

impl Link {
    /// Connects. In NFSv4.1, makes a session with at least `slots` slots: most requests in flight.
    pub(crate) fn open(version: Version, peer: &Peer, identity: &Identity, slots: u16) -> Result<Self> {
        let number = match version {
            Version::V3 => nfs3::VERSION,
            Version::V41 => nfs4::VERSION,
        };
        let mut connection = Connection::open(peer, nfs3::PROGRAM, number, identity.auth())?;
        let session = match version {
            Version::V3 => None,
            Version::V41 => Some(Session4::begin(&mut connection, slots)?),
        };
        let mut link = Self { connection, session };
        if version == Version::V41 {
            let answer = link.exchange(rand::random(), &Request::ReclaimComplete)?;
            answer.named(answer.done(), || "a new client".to_owned())?;
        }
        Ok(link)
    }

    pub(crate) fn version(&self) -> Version {
        if self.session.is_some() { Version::V41 } else { Version::V3 }
    }

    /// Starts a call in a slot. The caller appends the data of a WRITE to the returned buffer, and then calls
    /// [`Connection::end_call`].
    #[inline]
    pub(crate) fn begin(&mut self, xid: u32, slot: u32, request: &Request<'_>) -> &mut Vec<u8> {
        match &self.session {
            None => v3::encode(&mut self.connection, xid, request),
            Some(session) => v4::encode(&mut self.connection, session, xid, slot, request),
        }
    }

    /// Returns the next complete reply, without its mark, and the owner of its slot.
    #[inline]
    pub(crate) fn next_record(&mut self) -> Option<(&[u8], Slots<'_>)> {
        let record = self.connection.next_record()?;
        Some((record, Slots(self.session.as_mut())))
    }

    /// Sends one request in the first slot and waits for its answer. WRITE cannot be sent in this way.
    pub(crate) fn exchange(&mut self, xid: u32, request: &Request<'_>) -> Result<Answer<'_>> {
        let (version, operation) = (self.version(), request.operation(self.version()));
        self.begin(xid, 0, request);
        self.connection.end_call();
        let mut body = Reader::new(self.connection.exchange(TIMEOUT)?);
        let header = ReplyHeader::decode(&mut body).context("the reply is not an RPC reply")?;
        if header.xid != xid {
            bail!("the server answered call {:#x} instead of call {xid:#x}", header.xid);
        }
        if header.status != ReplyStatus::Success {
            bail!("the server refused {}: {:?}", operation.name(), header.status);
        }
        Slots(self.session.as_mut()).answered(0, body);
        Ok(Answer::new(version, operation, body))
    }

    /// Opens a file for reading and writing in NFSv4.
    pub(crate) fn open_file(&mut self, file: super::Handle, name: &str) -> Result<super::Open> {
        if self.version() == Version::V3 {
            return Ok(None);
        }
        let answer = self.exchange(rand::random(), &Request::OpenHandle { file })?;
        answer.named(answer.found(), || name.to_owned()).map(|made| made.open)
    }

    /// Closes a file that is open.
    pub(crate) fn close_file(&mut self, file: super::Handle, open: super::Open, name: &str) -> Result<()> {
        let Some(open) = open else { return Ok(()) };
        let answer = self.exchange(rand::random(), &Request::Close { file, open })?;
        answer.named(answer.done(), || name.to_owned())
    }

    /// Ends the session. A server that refuses forgets it after the lease.
    pub(crate) fn close(mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.end(&mut self.connection);
        }
    }
}

/// The slots of a link, while a reply is looked at.
pub(crate) struct Slots<'l>(Option<&'l mut Session4>);

impl Slots<'_> {
    /// Notes the reply to the request in a slot. `body` begins behind the RPC header.
    #[inline]
    pub(crate) fn answered(self, slot: u32, body: Reader<'_>) {
        if let Some(session) = self.0
            && v4::moves_slot(body)
        {
            session.accepted(slot);
        }
    }

    pub(crate) fn version(&self) -> Version {
        if self.0.is_some() { Version::V41 } else { Version::V3 }
    }
}
