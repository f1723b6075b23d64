//! A client of NBD: cache devices and backing devices in another process or on another host.
//!
//! | file | contents |
//! |---|---|
//! | `stream` | a connected socket, and its time limits |
//! | `handshake` | the negotiation of an export |
//! | `connection` | a connection and its end |
//! | `pending` | a request in flight |
//! | `sending`, `receive` | requests on their way out, and replies on their way in |
//! | `device` | a cache device: its connection is never renewed |
//! | `link`, `renewal` | a backing device: its connection is renewed |
//!
//! A request is sent by the thread that makes it, without waiting. A thread of the connection sends the rest if the
//! socket takes no more. Another thread receives all replies. So any number of requests are in flight on a connection,
//! and none has a thread.
//!
//! # A lost connection
//!
//! The server may have lost every write that no FLUSH on the same connection has covered. The protocol has no way to
//! ask. So a connection that ends, for whatever reason, ends for ever: its requests fail, and a later connection knows
//! nothing of them (docs/decisions/071-nbd-client.md).

mod connection;
mod device;
mod handshake;
mod link;
mod pending;
mod receive;
mod renewal;
mod sending;
mod stream;

pub use device::NbdDevice;
pub use link::{KnownExport, LinkError, NbdLink};
