//! Messages between controller and agents: four bytes of length, JSON, and a seal.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::secret::{self, Key, LEN, Nonces, Side, Token};

/// Version of all messages. Both sides must have this version.
const PROTOCOL: u32 = 1;
const MAGIC: [u8; 8] = *b"FBAGENT\0";
/// Longest time that the other side may take to prove that it has the token.
const GREETING: Duration = Duration::from_secs(5);
/// Longest message in bytes; a longer one ends the connection. Histograms of a long phase take a few hundred KiB.
const LONGEST: u32 = 64 << 20;
/// A silent host is given up after 5 s without traffic and three unanswered probes, 5 s apart.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(5), 3);

/// The sending half of a channel.
pub(crate) struct Sender {
    stream: TcpStream,
    key: Key,
    number: u64,
}

/// The receiving half of a channel.
pub(crate) struct Receiver {
    stream: TcpStream,
    key: Key,
    number: u64,
}

/// Proves to the other side that this side has the token, and checks the other side's proof.
///
/// # Errors
/// The other side is not forebay bench, has another protocol version, or has another token.
pub(crate) fn open(stream: TcpStream, token: &Token, side: Side) -> Result<(Sender, Receiver)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_write_timeout(Some(GREETING))?;
    keep_alive(&stream).context("keepalive cannot be set")?;
    let nonces = match side {
        Side::Controller => greet(&stream, token)?,
        Side::Agent => answer(&stream, token)?,
    };
    stream.set_read_timeout(None)?;
    let other = if side == Side::Agent { Side::Controller } else { Side::Agent };
    let sender = Sender { stream: stream.try_clone()?, key: token.key(side, &nonces), number: 0 };
    Ok((sender, Receiver { stream, key: token.key(other, &nonces), number: 0 }))
}

/// Lets the kernel probe an idle connection, so that the death of the other host ends it. A phase may pass without
/// any message.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE.1)
}

/// Greets an agent as controller. The agent proves itself first, so that an impostor at its address gets no proof
/// from the controller.
fn greet(stream: &TcpStream, token: &Token) -> Result<Nonces> {
    let nonce = secret::random();
    send_greeting(stream, &nonce, None)?;
    let (theirs, proof) = receive_greeting(stream)?;
    let nonces = (nonce, theirs);
    if !proof.is_some_and(|proof| token.proves(Side::Agent, &nonces, &proof)) {
        bail!("the other side does not have the same token; compare the token files");
    }
    send_greeting(stream, &nonce, Some(token.proof(Side::Controller, &nonces)))?;
    Ok(nonces)
}

/// Carries out the agent's side of the greeting. Returns the random numbers of both sides, from which the keys
/// follow. Fails unless the controller has the token.
fn answer(stream: &TcpStream, token: &Token) -> Result<Nonces> {
    let (theirs, _) = receive_greeting(stream)?;
    let nonces = (theirs, secret::random());
    send_greeting(stream, &nonces.1, Some(token.proof(Side::Agent, &nonces)))?;
    let (again, proof) = receive_greeting(stream)?;
    if again != theirs || !proof.is_some_and(|proof| token.proves(Side::Controller, &nonces, &proof)) {
        bail!("the other side does not have the same token; compare the token files");
    }
    Ok(nonces)
}

/// Bytes of a greeting: magic, version, a flag for the proof, random number, proof.
const GREETING_LEN: usize = 8 + 4 + 4 + 2 * LEN;

/// Sends the protocol's version, a random number, and a proof of the token if this side sends one already.
fn send_greeting(mut stream: &TcpStream, nonce: &[u8; LEN], proof: Option<[u8; LEN]>) -> Result<()> {
    let mut bytes = Vec::with_capacity(GREETING_LEN);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&PROTOCOL.to_be_bytes());
    bytes.extend_from_slice(&u32::from(proof.is_some()).to_be_bytes());
    bytes.extend_from_slice(nonce);
    bytes.extend_from_slice(&proof.unwrap_or_default());
    stream.write_all(&bytes).context("the other side has closed the connection")
}

/// Receives the random number and the proof of the other side. Fails with a remedy if that side is busy, is another
/// program, or has another version.
fn receive_greeting(mut stream: &TcpStream) -> Result<([u8; LEN], Option<[u8; LEN]>)> {
    let mut bytes = [0; GREETING_LEN];
    stream.read_exact(&mut bytes).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => {
            anyhow!(
                "the other side sent no greeting for {} seconds; it may be busy with another run",
                GREETING.as_secs()
            )
        }
        ErrorKind::UnexpectedEof => {
            anyhow!("the other side closed the connection: it is busy, or has another token")
        }
        _ => error.into(),
    })?;
    let (head, tail) = bytes.split_at(16);
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..8] != MAGIC {
        bail!("the other side is not forebay bench; check the address");
    }
    if word(8) != PROTOCOL {
        bail!(
            "the other side has protocol version {}, this side has {PROTOCOL}; install the same version on both hosts",
            word(8)
        );
    }
    let (mut nonce, mut proof) = ([0; LEN], [0; LEN]);
    nonce.copy_from_slice(&tail[..LEN]);
    proof.copy_from_slice(&tail[LEN..]);
    Ok((nonce, (word(12) == 1).then_some(proof)))
}

impl Sender {
    /// Sends one message.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut bytes = vec![0; 4];
        serde_json::to_writer(&mut bytes, message)?;
        let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= LONGEST);
        let length = length.context("a message is longer than 64 MiB; use fewer or shorter phases")?;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        let seal = self.key.seal(self.number, &bytes[4..]);
        bytes.extend_from_slice(&seal);
        self.number += 1;
        self.stream.write_all(&bytes).context("the other side has closed the connection")
    }

    /// Closes the connection for both directions.
    pub(crate) fn hang_up(&self) {
        // The connection may be closed already, so an error is ignored.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Receiver {
    /// Waits for the next message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).context("the other side has closed the connection")?;
        let length = u32::from_be_bytes(length);
        if length > LONGEST {
            bail!("the other side announced a message of {length} bytes, but at most {LONGEST} is allowed");
        }
        let mut bytes = vec![0; length as usize + LEN];
        self.stream.read_exact(&mut bytes).context("the other side has closed the connection")?;
        let (message, seal) = bytes.split_at(length as usize);
        if !self.key.is_sealed(self.number, message, seal) {
            bail!("a message was changed in transit; the connection is not safe to use");
        }
        self.number += 1;
        serde_json::from_slice(message)
            .context("a message of the other side cannot be parsed; run the same version on both hosts")
    }
}
