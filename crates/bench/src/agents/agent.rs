//! The agent: waits for a controller, does its part, waits for the next one.

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

/// Serves controllers, one after the other; with `once`, only the first that has the token.
///
/// # Errors
/// Where the address cannot be listened on, or with `once` where the job failed.
pub(crate) fn serve(listen: SocketAddr, token_file: &Path, once: bool) -> Result<()> {
    let token = Token::load(token_file)?;
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    // A reader that is gone is no reason to stop.
    let _ = writeln!(io::stdout(), "{address}");
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let from = stream.peer_addr().map_or_else(|_| "someone".to_owned(), |from| from.to_string());
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
            Err(error) => eprintln!("it failed: {error:#}"),
        }
    }
    Ok(())
}

fn work(mut sender: Sender, mut receiver: Receiver) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    sender.send(&FromAgent::Here { version, machine: Machine::this() })?;
    let ToAgent::Begin { settings, job, part } = receiver.receive()? else {
        bail!("the controller did not say what to do");
    };
    job.check()?;
    let mut gate = ControllerGate::new(sender, receiver);
    let result = runner::run_part(*settings, &job, part, &mut gate).map(drop);
    let last = match &result {
        Ok(()) => FromAgent::Done,
        Err(error) => FromAgent::Failed { reason: format!("{error:#}") },
    };
    // Where the controller is gone, nobody wants to know.
    let _ = gate.sender.send(&last);
    gate.sender.hang_up();
    result
}

/// Waits for the others by way of the controller.
struct ControllerGate {
    sender: Sender,
    heard: mpsc::Receiver<ToAgent>,
    gone: Arc<AtomicBool>,
}

impl ControllerGate {
    fn new(sender: Sender, mut receiver: Receiver) -> Self {
        let (say, heard) = mpsc::channel();
        let gone = Arc::new(AtomicBool::new(false));
        let seen = gone.clone();
        // A thread of its own notices during a phase that the controller is gone. It ends with the connection.
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

    fn wait_for_go(&self) -> Result<()> {
        match self.heard.recv() {
            Ok(ToAgent::Go) => Ok(()),
            Ok(ToAgent::Begin { .. }) => bail!("the controller wants to begin twice"),
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
