//! The ublk door: block devices of this host (`/dev/ublkbN`) for volumes, through the ublk driver of Linux.
//!
//! | file | contents |
//! |---|---|
//! | `interface` | the numbers and structures of the driver |
//! | `control` | the commands that make, start and end a device; they need CAP_SYS_ADMIN |
//! | `request` | the translation of a request of the driver; no I/O |
//! | `queue` | the thread that carries out the requests of one device |
//! | `device` | a device in service: its start, its end, and its return after a crash of the server |
//!
//! A device outlives its server. While no server is there, its requests wait in the kernel. The next server takes the
//! device over, and the kernel sends those requests again that had no answer. So an answered write must survive a crash
//! of the server: [`Stability::Logged`](forebay_volume::disk::Stability::Logged).

mod control;
mod device;
mod interface;
mod queue;
mod request;

pub use control::{Control, Description, Order, Parameters, State};
pub use device::{Device, Driver, block_device};
