//! The controller: gives every agent its part, starts each phase on all agents together, and merges their results.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;

use super::channel::{self, Receiver, Sender};
use super::secret::{Side, Token};
use super::{FromAgent, ToAgent};
use crate::job::Job;
use crate::part::Part;
use crate::phases::Phases;
use crate::progress;
use crate::result::{AgentReport, Report};
use crate::runner;
use crate::settings::Settings;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connected agent.
struct Agent {
    address: String,
    sender: Sender,
}

/// A message and the index of the agent that sent it.
type Heard = (usize, Result<FromAgent>);

/// Runs a job on all agents.
///
/// # Errors
/// An agent cannot be reached, has another token, or fails. All agents stop in that case.
pub(crate) fn run(settings: &Settings, job: &Job, addresses: &[String], token_file: &Path) -> Result<Report> {
    check(settings, job)?;
    let token = Token::load(token_file)?;
    let count = u32::try_from(addresses.len()).context("the number of agents exceeds 4294967295")?;
    let mut agents = Vec::new();
    let mut reports = Vec::new();
    let (say, heard) = mpsc::channel();
    for (index, address) in addresses.iter().enumerate() {
        let mut connect = || {
            let (sender, mut receiver) = connect(address, &token)?;
            let FromAgent::Here { version, machine } = receiver.receive()? else {
                bail!(
                    "the agent's first message is not its introduction; run the same version on both hosts"
                );
            };
            reports.push(AgentReport { address: address.clone(), version, machine });
            agents.push(Agent { address: address.clone(), sender });
            let say = say.clone();
            thread::spawn(move || listen(index, receiver, &say));
            Ok(())
        };
        connect().with_context(|| format!("the agent {address} cannot be used"))?;
    }
    drop(say);
    let started = runner::now();
    // A process id is valid on its own host only, so agents do not get the server's.
    let order = Settings { server_pid: None, ..settings.clone() };
    for (index, agent) in agents.iter_mut().enumerate() {
        let part = Part { index: index as u32, count };
        let begin = ToAgent::Begin { settings: Box::new(order.clone()), job: job.clone(), part };
        agent.sender.send(&begin).with_context(|| format!("the agent {} is gone", agent.address))?;
    }
    let bar = progress::bar("agents", None);
    let result = conduct(&mut agents, &heard, job, &bar);
    bar.finish_and_clear();
    agents.iter().for_each(|agent| agent.sender.hang_up());
    let mut report = result?.report(settings, started);
    report.agents = reports;
    Ok(report)
}

/// Refuses settings that several hosts cannot carry out together, because one host would have to know the writes of
/// another host.
fn check(settings: &Settings, job: &Job) -> Result<()> {
    if settings.state.is_some() {
        bail!("--state works on one host only; leave out --agents or --state");
    }
    let shared = job.steps.iter().flat_map(|step| &step.groups).any(|group| group.options.shared.is_some());
    if settings.verify && shared {
        bail!(
            "--verify does not work with --shared on several hosts, because no host knows the writes of the other hosts; leave one out"
        );
    }
    Ok(())
}

/// Connects to an agent, at the first address of its name that answers, and proves that both sides have the token.
fn connect(address: &str, token: &Token) -> Result<(Sender, Receiver)> {
    let resolved = address.to_socket_addrs().context("the address is not known; write HOST:PORT")?;
    let mut last = None;
    for address in resolved {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return channel::open(stream, token, Side::Controller),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => {
            Err(error).context("no connection is possible; check that forebay bench agent runs there")
        }
        None => bail!("the name has no address; write HOST:PORT"),
    }
}

/// Forwards the messages of an agent, up to and including its last.
fn listen(index: usize, mut receiver: Receiver, say: &mpsc::Sender<Heard>) {
    loop {
        let message = receiver.receive();
        let last = !matches!(message, Ok(FromAgent::At { .. } | FromAgent::Measured { .. }));
        if say.send((index, message)).is_err() || last {
            return;
        }
    }
}

/// Lets all agents continue each time that every agent waits at one place, until all agents are done.
fn conduct(
    agents: &mut [Agent],
    heard: &mpsc::Receiver<Heard>,
    job: &Job,
    bar: &ProgressBar,
) -> Result<Phases> {
    let mut phases = Phases::default();
    loop {
        let mut messages: Vec<Option<FromAgent>> = agents.iter().map(|_| None).collect();
        while messages.iter().any(Option::is_none) {
            let (index, message) = heard.recv().context("no agent is left")?;
            let address = &agents[index].address;
            match message.with_context(|| format!("the agent {address} is lost"))? {
                FromAgent::Failed { reason } => bail!("the agent {address} failed: {reason}"),
                message => messages[index] = Some(message),
            }
        }
        let messages: Vec<FromAgent> = messages.into_iter().flatten().collect();
        if messages.iter().all(|message| matches!(message, FromAgent::Done)) {
            return Ok(phases);
        }
        merge(messages, job, &mut phases, bar)?;
        for agent in agents.iter_mut() {
            agent
                .sender
                .send(&ToAgent::Go)
                .with_context(|| format!("the agent {} is lost", agent.address))?;
        }
    }
}

/// Merges the messages that the agents sent at one place.
fn merge(messages: Vec<FromAgent>, job: &Job, phases: &mut Phases, bar: &ProgressBar) -> Result<()> {
    let mut whole = None;
    let mut waiting = None;
    for message in messages {
        match (message, &mut whole) {
            (FromAgent::At { place }, None) if *waiting.get_or_insert_with(|| place.clone()) == place => {
                bar.set_message(place);
                bar.tick();
            }
            (FromAgent::Measured { step, phase, measured }, None) if waiting.is_none() => {
                whole = Some((step, phase, measured));
            }
            (FromAgent::Measured { step, phase, measured }, Some(whole))
                if (step, phase.as_str()) == (whole.0, whole.1.as_str()) =>
            {
                whole.2.merge(&measured);
            }
            _ => bail!("the agents are in different phases of the job; run the same version on all of them"),
        }
    }
    if let Some((step, phase, measured)) = whole {
        let step = job.steps.get(step).context(
            "an agent measured a step that the job does not have; run the same version on all hosts",
        )?;
        phases.add(step, phase, &measured);
    }
    Ok(())
}
