//! ONC RPC over TCP: complete records in, complete records out (RFC 5531 section 11).
//!
//! The transport knows nothing of RPC headers. A [`Service`] gets one [`Message`] per record on an event-loop thread.
//! It fills the [`Reply`] at once, or takes the message off the loop with [`Message::defer`]. A deferred message is
//! answered through its [`Ticket`] from any thread, typically one of [`Workers`].
//!
//! One thread per core runs an epoll loop; a connection belongs to one loop for its life. Per wake-up a connection
//! costs one receive and one vectored send, however many requests that covers. Idle connections hold no buffer. All
//! memory is bounded by [`Config`]: at a limit the server stops reading a connection, and TCP passes that on to the
//! client.

mod accept;
mod addresses;
mod admission;
mod assemble;
mod batch;
mod bounds;
mod callback;
mod chunk;
mod closings;
mod config;
mod conn;
mod contenders;
mod drive;
mod event_loop;
mod fair_queue;
mod handshake;
mod home;
mod kernel_tls;
mod link;
mod outlet;
mod pool;
mod rate;
mod reply;
mod reported;
mod secured;
mod server;
mod service;
mod session;
mod shared_bound;
mod shares;
mod slab;
mod spinner;
mod splice;
mod stall;
mod stats;
mod workers;

pub use bounds::Bounds;
pub use callback::{Answered, Line, Matched};
pub use config::Config;
pub use contenders::Contenders;
pub use rate::{FindLimit, LastRate, RateLimit, SharedRate};
pub use reply::{OwnedReply, PayloadBuf, Reply};
pub use reported::Reported;
pub use server::{Counters, Running, Server, StartError};
pub use service::{Handled, Held, Message, Peer, Record, Replies, Seal, Security, Service, Ticket, batch};
pub use session::Session;
pub use spinner::Spinner;
pub use stats::{CloseReason, Stats};
pub use workers::Workers;
