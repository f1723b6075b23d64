//! Load from several hosts: an agent on each, and a controller that starts them together and merges what they measured.
//!
//! The clients of a job are numbered over all hosts, so that files, offsets and identities are those of one large host.
//! Hosts wait for each other before and after every phase: the controller answers only when all have come.

mod agent;
mod channel;
mod controller;
mod secret;

pub(crate) use agent::serve;
pub(crate) use controller::run;

use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::part::Part;
use crate::result::Machine;
use crate::settings::Settings;
use crate::stats::Measured;

/// What the controller says.
#[derive(Debug, Serialize, Deserialize)]
enum ToAgent {
    /// Do your part of this.
    Begin { settings: Box<Settings>, job: Job, part: Part },
    /// All have come to where you wait.
    Go,
}

/// What an agent says.
#[derive(Debug, Serialize, Deserialize)]
enum FromAgent {
    /// Who it is; said first.
    Here { version: String, machine: Machine },
    /// It waits for the others.
    At { place: String },
    /// What a phase has brought; it waits for the others.
    Measured { step: usize, phase: String, measured: Box<Measured> },
    /// Its part is done.
    Done,
    /// It cannot go on.
    Failed { reason: String },
}
