//! Messages between controller and agents: JSON, four bytes of length before it, its seal behind it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::secret::{self, Key, LEN, Nonces, Side, Token};

/// Version of everything that is sent; both sides have to have the same.
const PROTOCOL: u32 = 1;
const MAGIC: [u8; 8] = *b"FBAGENT\0";
/// How long the other side may take to show that it has the token.
const GREETING: Duration = Duration::from_secs(5);
/// A longer message is not one of ours; histograms of a long phase take a few hundred KiB.
const LONGEST: u32 = 64 << 20;
/// A host that has gone silent is given up after this: 5 s, then three times 5 s.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(5), 3);

/// Where messages of one direction go.
pub(crate) struct Sender {
    stream: TcpStream,
    key: Key,
    number: u64,
}

/// Where messages of the other direction come from.
pub(crate) struct Receiver {
    stream: TcpStream,
    key: Key,
    number: u64,
}

/// Proves that this side has the token, and lets the other side prove it.
///
/// # Errors
/// Where the other side is not one of ours, is of another version, or has another token.
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

fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE.1)
}

/// The controller's part. The agent proves itself first: it is the one that was called.
fn greet(stream: &TcpStream, token: &Token) -> Result<Nonces> {
    let nonce = secret::random();
    send_greeting(stream, &nonce, None)?;
    let (theirs, proof) = receive_greeting(stream)?;
    let nonces = (nonce, theirs);
    if !proof.is_some_and(|proof| token.proves(Side::Agent, &nonces, &proof)) {
        bail!("it does not have the same token; compare the token files");
    }
    send_greeting(stream, &nonce, Some(token.proof(Side::Controller, &nonces)))?;
    Ok(nonces)
}

fn answer(stream: &TcpStream, token: &Token) -> Result<Nonces> {
    let (theirs, _) = receive_greeting(stream)?;
    let nonces = (theirs, secret::random());
    send_greeting(stream, &nonces.1, Some(token.proof(Side::Agent, &nonces)))?;
    let (again, proof) = receive_greeting(stream)?;
    if again != theirs || !proof.is_some_and(|proof| token.proves(Side::Controller, &nonces, &proof)) {
        bail!("it does not have the same token; compare the token files");
    }
    Ok(nonces)
}

/// Bytes of a greeting: magic, version, whether there is a proof, number, proof.
const GREETING_LEN: usize = 8 + 4 + 4 + 2 * LEN;

fn send_greeting(mut stream: &TcpStream, nonce: &[u8; LEN], proof: Option<[u8; LEN]>) -> Result<()> {
    let mut bytes = Vec::with_capacity(GREETING_LEN);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&PROTOCOL.to_be_bytes());
    bytes.extend_from_slice(&u32::from(proof.is_some()).to_be_bytes());
    bytes.extend_from_slice(nonce);
    bytes.extend_from_slice(&proof.unwrap_or_default());
    stream.write_all(&bytes).context("it has hung up")
}

fn receive_greeting(mut stream: &TcpStream) -> Result<([u8; LEN], Option<[u8; LEN]>)> {
    let mut bytes = [0; GREETING_LEN];
    stream.read_exact(&mut bytes).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => {
            anyhow!("it said nothing for {} seconds; it may be busy with another run", GREETING.as_secs())
        }
        ErrorKind::UnexpectedEof => anyhow!("it hung up: it is busy, or has another token"),
        _ => error.into(),
    })?;
    let (head, tail) = bytes.split_at(16);
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if head[..8] != MAGIC {
        bail!("it is not forebay bench");
    }
    if word(8) != PROTOCOL {
        bail!("it speaks version {} of the protocol, this one speaks {PROTOCOL}; install the same", word(8));
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
        let length = length.context("a message is too long")?;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        let seal = self.key.seal(self.number, &bytes[4..]);
        bytes.extend_from_slice(&seal);
        self.number += 1;
        self.stream.write_all(&bytes).context("it has hung up")
    }

    /// Ends the conversation for both directions.
    pub(crate) fn hang_up(&self) {
        // One that has ended already needs nothing.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Receiver {
    /// Waits for the next message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).context("it has hung up")?;
        let length = u32::from_be_bytes(length);
        if length > LONGEST {
            bail!("it sent a message of {length} bytes; allowed are {LONGEST}");
        }
        let mut bytes = vec![0; length as usize + LEN];
        self.stream.read_exact(&mut bytes).context("it has hung up")?;
        let (message, seal) = bytes.split_at(length as usize);
        if !self.key.is_sealed(self.number, message, seal) {
            bail!("a message was changed on its way");
        }
        self.number += 1;
        serde_json::from_slice(message).context("its message is not understood")
    }
}
