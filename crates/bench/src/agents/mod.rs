//! Load from several hosts: an agent on each host, and a controller that starts them together and merges their
//! results.
//!
//! The clients of a job are numbered over all hosts, so that files, offsets and identities are those of one large
//! host. Agents wait for each other before and after every phase: the controller answers when all agents have
//! reported.

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

/// A message of the controller.
#[derive(Debug, Serialize, Deserialize)]
enum ToAgent {
    /// Gives the agent its part of the job.
    Begin { settings: Box<Settings>, job: Job, part: Part },
    /// Lets the agent continue, because all agents have reached its place.
    Go,
}

/// A message of an agent.
#[derive(Debug, Serialize, Deserialize)]
enum FromAgent {
    /// Introduces the agent; its first message.
    Here { version: String, machine: Machine },
    /// Reports that the agent waits for the other agents at a place.
    At { place: String },
    /// Reports the result of a phase. The agent then waits for the other agents.
    Measured { step: usize, phase: String, measured: Box<Measured> },
    /// Reports that the agent's part is done.
    Done,
    /// Reports that the agent cannot continue.
    Failed { reason: String },
}
