//! The agent: waits for a controller, does its part of the job, and waits for the next controller.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, bail};

use super::channel::{self, Receiver, Sender};
use super::secret::{Side, Token};
use super::{FromAgent, ToAgent};
use crate::part::Gate;
use crate::result::Machine;
use crate::runner;
use crate::stats::Measured;

/// Serves controllers one after the other. With `once`, serves only the first controller that has the token.
///
/// # Errors
/// The agent cannot listen on the address. With `once`, also if the job failed.
pub(crate) fn serve(listen: SocketAddr, token_file: &Path, once: bool) -> Result<()> {
    let token = Token::load(token_file)?;
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    // The agent keeps serving even if no process reads its standard output, so an error is ignored.
    let _ = writeln!(io::stdout(), "{address}");
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let from =
            stream.peer_addr().map_or_else(|_| "an unknown address".to_owned(), |from| from.to_string());
        let (sender, receiver) = match channel::open(stream, &token, Side::Agent) {
            Ok(channel) => channel,
            Err(error) => {
                eprintln!("{from} was refused: {error:#}");
                continue;
            }
        };
        eprintln!("working for {from}");
        let result = work(sender, receiver);
        if once {
            return result;
        }
        match result {
            Ok(()) => eprintln!("done"),
            Err(error) => eprintln!("the job failed: {error:#}"),
        }
    }
    Ok(())
}

/// Carries out this agent's part of a controller's job, and tells the controller the outcome. Fails if the job fails
/// or the controller is gone.
fn work(mut sender: Sender, mut receiver: Receiver) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    sender.send(&FromAgent::Here { version, machine: Machine::this() })?;
    let ToAgent::Begin { settings, job, part } = receiver.receive()? else {
        bail!("the controller sent a message other than the job; run the same version on both hosts");
    };
    job.check()?;
    let mut gate = ControllerGate::new(sender, receiver);
    let result = runner::run_part(*settings, &job, part, &mut gate).map(drop);
    let last = match &result {
        Ok(()) => FromAgent::Done,
        Err(error) => FromAgent::Failed { reason: format!("{error:#}") },
    };
    // The controller may be gone, so an error is ignored.
    let _ = gate.sender.send(&last);
    gate.sender.hang_up();
    result
}

/// A gate that waits for the other agents through the controller.
struct ControllerGate {
    sender: Sender,
    heard: mpsc::Receiver<ToAgent>,
    gone: Arc<AtomicBool>,
}

impl ControllerGate {
    /// Makes the gate of a job, which waits for the controller's word before each phase, and notices during a phase
    /// that the controller is gone.
    fn new(sender: Sender, mut receiver: Receiver) -> Self {
        let (say, heard) = mpsc::channel();
        let gone = Arc::new(AtomicBool::new(false));
        let seen = gone.clone();
        // A thread of its own receives, so that it notices during a phase that the controller is gone. The thread
        // ends with the connection.
        thread::spawn(move || {
            while let Ok(message) = receiver.receive() {
                if say.send(message).is_err() {
                    break;
                }
            }
            seen.store(true, Ordering::Relaxed);
        });
        Self { sender, heard, gone }
    }

    /// Waits until the controller starts the next phase. Fails if the controller is gone.
    fn wait_for_go(&self) -> Result<()> {
        match self.heard.recv() {
            Ok(ToAgent::Go) => Ok(()),
            Ok(ToAgent::Begin { .. }) => {
                bail!("the controller sent a second job during the first; run the same version on both hosts")
            }
            Err(_) => bail!("the controller is gone, or another agent has failed"),
        }
    }
}

impl Gate for ControllerGate {
    fn wait(&mut self, place: &str) -> Result<()> {
        self.sender.send(&FromAgent::At { place: place.to_owned() })?;
        self.wait_for_go()
    }

    fn hand_in(&mut self, step: usize, phase: &str, measured: &Measured) -> Result<()> {
        if self.is_over() {
            bail!("the controller is gone, or another agent has failed");
        }
        let measured = Box::new(measured.clone());
        self.sender.send(&FromAgent::Measured { step, phase: phase.to_owned(), measured })?;
        self.wait_for_go()
    }

    fn is_over(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
