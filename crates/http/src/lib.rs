//! Metrics and the page of a server over HTTP.
//!
//! [`Web`] is what requests read and change: a [`Handler`](forebay_control::Handler), the history, and the sessions of
//! administrators. [`Listener`] serves it from threads of its own, with bounded connections, sizes and times. The
//! data path knows nothing of this crate.

mod access;
mod actions;
mod channel;
mod encode;
mod gathered;
mod live;
mod metrics;
mod request;
mod response;
mod routes;
mod server;
mod sessions;
mod web;

pub use gathered::Gathering;
pub use metrics::{Format, render};
pub use server::Listener;
pub use web::{Web, token};
