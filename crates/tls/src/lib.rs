//! TLS 1.3 for RPC connections (RFC 9289), on top of rustls: no socket, no thread, no clock.
//!
//! [`Credentials`] are read from files. A [`Keyring`] holds the credentials in force and makes a [`Session`] for each
//! connection. A session turns received bytes into plain text, and plain text into bytes to send. After the handshake,
//! the [`Identity`] of the client is known if the client has shown a certificate. From then on the kernel may do the
//! work of the session, with its [`KernelKeys`].

mod credentials;
mod identity;
mod kernel;
mod session;
mod side;

pub use credentials::{Credentials, Keyring, LoadError};
pub use identity::Identity;
pub use kernel::{Cipher, CryptoInfo, KernelKeys};
pub use session::{ClientSession, Opened, Session, SessionError};
