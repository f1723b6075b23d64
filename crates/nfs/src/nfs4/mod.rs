//! NFSv4.1 and NFSv4.2 (RFC 8881, RFC 7862): COMPOUND and its operations.
//!
//! | file | contents |
//! |---|---|
//! | `compound.rs` | the execution of a COMPOUND, on an event loop and on workers |
//! | `server.rs` | the state that all requests share |
//! | `durable.rs` | this state and replies in the cache's log, and the way back |
//! | `place.rs`, `pseudo.rs` | the current and the saved handle; the directories above the exports |
//! | `session.rs` | clients, sessions and slots |
//! | `names.rs`, `entries.rs`, `dir.rs` | LOOKUP, ACCESS, READLINK; CREATE, REMOVE, RENAME, LINK; READDIR |
//! | `attrs.rs`, `set_attrs.rs` | GETATTR, VERIFY, ACCESS; SETATTR |
//! | `open.rs`, `lock.rs` | opens, delegations, byte-range locks |
//! | `callback.rs`, `delegation.rs` | call-backs to clients; the recalls that operations cause |
//! | `holder.rs` | questions to the holder of a write delegation |
//! | `removed.rs` | files that lose their name while clients have them open |
//! | `io.rs` | READ, WRITE, COMMIT |
//! | `acl.rs`, `xattr.rs` | access control lists; extended attributes |
//! | `seek.rs`, `allocate.rs`, `copy.rs` | SEEK, IO_ADVISE; ALLOCATE, DEALLOCATE; COPY, CLONE |
//! | `copier.rs` | copies that go on after the reply to COPY |
//! | `execute.rs` | the operations, each with its method |
//! | `measured.rs` | operations in the counters |
//! | `program.rs` | the way from the service to a COMPOUND and back |
//! | `convert.rs` | statuses, identifiers, times |
//!
//! Clients' state is in `forebay-clientstate`, which does no I/O; names and data are in `forebay-vfs`. This module
//! joins the two.

mod access;
mod acl;
mod allocate;
mod attrs;
mod callback;
mod client_ids;
pub(crate) mod compound;
mod convert;
mod copier;
mod copy;
mod delegation;
mod dir;
mod durable;
mod entries;
mod execute;
mod holder;
mod io;
mod known;
mod lock;
mod measured;
mod names;
mod open;
mod owner_names;
mod place;
pub(crate) mod program;
mod pseudo;
mod recent;
mod removed;
mod seek;
mod server;
mod session;
mod set_attrs;
mod xattr;

pub use server::StateNumbers;
pub(crate) use server::{Server, Start};
