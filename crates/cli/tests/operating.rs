//! Tests of the operation of a server: its log, its events, its reloads, and the refusals of its verbs.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "written for several tests")]
#[path = "../../tls/tests/common/authority.rs"]
mod authority;
mod common;
#[path = "operating/config.rs"]
mod config;
#[path = "operating/events.rs"]
mod events;
#[path = "operating/full_state.rs"]
mod full_state;
#[path = "operating/handed_over.rs"]
mod handed_over;
#[path = "operating/http.rs"]
mod http;
#[path = "operating/log.rs"]
mod log;
#[path = "operating/notify.rs"]
mod notify;
#[path = "../../notify/tests/receiver/mod.rs"]
mod receiver;
#[path = "operating/reload.rs"]
mod reload;
#[path = "operating/restart_pause.rs"]
mod restart_pause;
#[path = "operating/support.rs"]
mod support;
#[path = "operating/top.rs"]
mod top;
#[path = "operating/unattended.rs"]
mod unattended;
#[path = "operating/verbs.rs"]
mod verbs;
