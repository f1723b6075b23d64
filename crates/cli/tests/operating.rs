//! A server that is left alone: its log, its events, its reloads, and what its verbs refuse.

// In tests a panic is the assertion, in their helpers too.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "operating/events.rs"]
mod events;
#[path = "operating/log.rs"]
mod log;
#[path = "operating/reload.rs"]
mod reload;
#[path = "operating/unattended.rs"]
mod unattended;
#[path = "operating/verbs.rs"]
mod verbs;
