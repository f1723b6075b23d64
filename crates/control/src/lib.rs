//! The control protocol, by which verbs of `forebay` such as `status` talk to a running server.
//!
//! A server listens on `control.sock` in its state directory (mode 0600). A client sends one line of JSON, a
//! [`Call`]. It then reads lines of JSON, [`Response`]s, until one is [final](Response::is_final). The call has the
//! version of the protocol, and a server answers a call of another version with an error. Both sides ignore unknown
//! fields, so that fields can be added without a new version.

mod activity;
mod advice;
mod client;
mod event;
mod history;
mod notify;
mod policy;
mod protocol;
mod rate;
mod sample;
mod server;
mod socket;
mod status;
mod trace;
mod volume;

pub use activity::{
    Activity, ActivityEntry, ActivityGroup, DeviceActivity, MOST_ACTIVE, NewFilesActivity, WorkingSetActivity,
};
pub use advice::{Advice, ExportLoad, Link, Measured};
pub use client::{Client, ClientError, Past};
pub use event::{Event, EventLog, Severity};
pub use forebay_common::metrics::{LatencySummary, Recorder, Snapshot};
pub use forebay_mrc::{Curve, GroupCurve, MemoryPoint, Point as CurvePoint};
pub use forebay_profile::{Counters, Kind, SIZES, TraceEncoder, Traced, size_bounds};
pub use history::{COLUMNS, EventWriter, Figures, FiguresWriter, Point, Series};
pub use notify::Delivery;
pub use policy::{
    Chosen, PolicyInForce, PolicyReport, PolicyRequest, PolicyRule, PolicySource, ShareInForce,
};
pub use protocol::{
    CachedFiles, Call, DeviceWear, FlushProgress, FlushReport, PROTOCOL_VERSION, PoolDevice, PoolRequest,
    PoolStatus, PoolWork, PoolWorkKind, ReloadReport, Request, Response, ScrubStatus, WarmReport,
};
pub use rate::RateLimitStatus;
pub use sample::{CacheCounters, OperationSample, StatSample};
pub use server::{Handler, Server, ServerError, flush_and_tell};
pub use socket::{SOCKET_NAME, socket_path};
pub use status::{
    Awaited, ClientStateStatus, ClientStatus, DurabilityStatus, ExportStatus, HandleMode, Health,
    MemoryStatus, MetadataStatus, ProcedureStatus, RefusedStatus, ReplyCacheStatus, SandboxStatus, Starting,
    Status, WorkerStatus,
};
pub use trace::{TraceBatch, TracedOperation};
pub use volume::{VolumeRequest, VolumeStatus};
