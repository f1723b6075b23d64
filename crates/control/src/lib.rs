//! The control protocol: how the other verbs of `forebay` talk to a running server.
//!
//! A server listens on `control.sock` in its state directory (mode 0600). A client sends one line of JSON, a
//! [`Call`], and reads lines of JSON, [`Response`]s, until one is [final](Response::is_final). The version is in the
//! call; a server refuses one it does not speak with a sentence. Unknown fields are ignored by both sides, so that
//! fields can be added without a new version.

mod client;
mod event;
mod history;
mod protocol;
mod sample;
mod server;
mod socket;
mod status;

pub use client::{Client, ClientError, Past};
pub use event::{Event, EventLog, Severity};
pub use forebay_common::metrics::{LatencySummary, Recorder, Snapshot};
pub use history::EventWriter;
pub use protocol::{
    CachedFiles, Call, DeviceWear, FlushProgress, FlushReport, PROTOCOL_VERSION, PoolDevice, PoolRequest,
    PoolStatus, ReloadReport, Request, Response, ScrubStatus,
};
pub use sample::{CacheCounters, OperationSample, StatSample};
pub use server::{Handler, Server, ServerError};
pub use socket::{SOCKET_NAME, socket_path};
pub use status::{
    Awaited, ClientStatus, DurabilityStatus, ExportStatus, HandleMode, Health, MemoryStatus, MetadataStatus,
    ProcedureStatus, RefusedStatus, ReplyCacheStatus, SandboxStatus, Starting, Status, WorkerStatus,
};
