//! A load generator that speaks NFSv3 and NFSv4.1 from user space: clients, patterns, verification, results.
//!
//! `cli` has the verbs, `runner` runs a job, `engine` is the event loop, `workload` determines the requests of one
//! client, `protocol` encodes them, `agents` spreads a job over hosts, `report` draws, `paper` repeats published tests,
//! `recommend` advises.

pub mod cli;
pub mod compare;
pub mod ganesha;
pub mod job;
pub mod null_server;
pub mod options;
pub mod paper;
pub mod protocol;
pub mod result;
pub mod runner;
pub mod settings;
pub mod table;
pub mod url;
pub mod verify;

mod agents;
mod cleanup;
mod connection;
mod content;
mod cpu;
mod engine;
mod ledger;
mod names;
mod part;
mod phases;
mod progress;
mod recommend;
mod replay;
mod report;
mod session;
mod setup;
mod state;
mod stats;
mod tls;
mod workload;
