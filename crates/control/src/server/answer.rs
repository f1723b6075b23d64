//! One client's request: it is read, carried out and answered.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::clients::{Clients, Long, MOST_LONG};
use super::handler::Handler;
use crate::activity::MOST_ACTIVE;
use crate::client::Past;
use crate::event::{EventLog, Severity};
use crate::protocol::{Call, PROTOCOL_VERSION, PoolRequest, Request, Response};
use crate::volume::VolumeRequest;

/// Longest request line in bytes.
const LONGEST_CALL: u64 = 64 * 1024;
/// Interval at which the thread of a following client checks whether the client or the server is gone.
const FOLLOW_CHECK: Duration = Duration::from_millis(250);

/// Reads the request line. The inner error is a sentence for the client.
pub(super) fn read_call(stream: &UnixStream) -> io::Result<Result<Request, String>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_CALL)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Ok(Err(format!("the request is not one line of at most {LONGEST_CALL} bytes")));
    }
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let version = serde_json::from_slice::<Versioned>(&line).map(|call| call.version);
    match version {
        Ok(version) if version != PROTOCOL_VERSION => Ok(Err(format!(
            "the server speaks version {PROTOCOL_VERSION} of the control protocol, not {version}; use the forebay of its version"
        ))),
        Ok(_) | Err(_) => {
            let call = serde_json::from_slice::<Call>(&line).map(|call| call.request);
            Ok(call.map_err(|error| format!("the request is not understood: {error}")))
        }
    }
}

/// Carries out a request and sends the responses.
pub(super) fn answer(
    stream: &UnixStream,
    request: Request,
    handler: &dyn Handler,
    clients: &Clients,
) -> io::Result<()> {
    let only_looks = matches!(
        request,
        Request::Status
            | Request::Sample
            | Request::Advise
            | Request::Activity { .. }
            | Request::Config
            | Request::Metrics
            | Request::Invite { .. }
            | Request::Mode
            | Request::Events { .. }
            | Request::TestNotify { .. }
            | Request::Pool(PoolRequest::Status)
            | Request::Volume(VolumeRequest::List { .. })
    );
    if let (false, Err(message)) = (only_looks, handler.serving()) {
        return send(stream, &Response::Error { message });
    }
    let long = takes_long(&request).then(|| Long::enter(clients));
    if let Some(None) = &long {
        let message = format!(
            "{MOST_LONG} requests that may take long are under way already, such as flushes and followers of events; end one of \
             them, and see with `forebay status` whether a file system does not answer"
        );
        return send(stream, &Response::Error { message });
    }
    let response = match request {
        Request::Status => Response::Status(Box::new(handler.status())),
        Request::Sample => Response::Sample(Box::new(handler.sample())),
        Request::Advise => match handler.advise() {
            Ok(advice) => Response::Advice(Box::new(advice)),
            Err(message) => Response::Error { message },
        },
        Request::Activity { top } => Response::Activity(Box::new(handler.activity(top.min(MOST_ACTIVE)))),
        Request::Trace => {
            let mut batch = |batch| {
                let ended = clients.stopping.load(Ordering::SeqCst) || hung_up(stream).unwrap_or(true);
                !ended && send(stream, &Response::Trace(batch)).is_ok()
            };
            handler.trace(&mut batch).map_or_else(|message| Response::Error { message }, |()| Response::Done)
        }
        Request::ResetActivity => {
            handler.reset_activity();
            Response::Done
        }
        Request::Config => Response::Config { entries: handler.config() },
        Request::Metrics => text(handler.metrics()),
        Request::Invite { who } => text(handler.invite(&who)),
        Request::Mode => mode_of(handler),
        Request::SetMode { mode } => match handler.set_mode(mode) {
            Ok(()) => mode_of(handler),
            Err(message) => Response::Error { message },
        },
        Request::Flush { wait: false } => {
            send(stream, &Response::Done)?;
            stream.shutdown(std::net::Shutdown::Both)?;
            flush_and_tell(handler);
            return Ok(());
        }
        Request::Flush { wait: true } => {
            // A flush continues after its client has disconnected, so errors of the progress lines are ignored.
            let mut progress = |progress| drop(send(stream, &Response::Progress(progress)));
            handler.flush(&mut progress).map_or_else(|message| Response::Error { message }, Response::Flushed)
        }
        Request::Pool(request) => {
            let pool = handler.pool(request).map(Box::new);
            pool.map_or_else(|message| Response::Error { message }, Response::Pool)
        }
        Request::Volume(request) => match handler.volume(request) {
            Ok(volumes) => Response::Volumes { volumes },
            Err(message) => Response::Error { message },
        },
        Request::Policy(request) => {
            handler.policy(request).map_or_else(|message| Response::Error { message }, Response::Policies)
        }
        Request::Warm { path } => {
            let mut progress = |report| {
                let ended = clients.stopping.load(Ordering::SeqCst) || hung_up(stream).unwrap_or(true);
                !ended && send(stream, &Response::Warming(report)).is_ok()
            };
            let warmed = handler.warm(path.as_deref(), &mut progress);
            warmed.map_or_else(|message| Response::Error { message }, Response::Warmed)
        }
        Request::TestNotify { target } => match handler.test_notify(target.as_deref()) {
            Ok(deliveries) => Response::Delivered { deliveries },
            Err(message) => Response::Error { message },
        },
        Request::Reload => {
            handler.reload().map_or_else(|message| Response::Error { message }, Response::Reloaded)
        }
        Request::Cached { path, drop } => {
            let cached = handler.cached(&path, drop);
            cached.map_or_else(|message| Response::Error { message }, Response::Cached)
        }
        Request::Events { last, since_ns, follow } => {
            send_events(stream, handler.events(), Past { last, since_ns }, follow, clients)?;
            Response::Done
        }
    };
    send(stream, &response)
}

/// Makes all changes durable on the backing store. An event reports the end.
pub fn flush_and_tell(handler: &dyn Handler) {
    let (severity, kind, message) = match handler.flush(&mut |_| {}) {
        Ok(_) => (Severity::Info, "flush-done", "flush: everything written before it is durable".to_owned()),
        Err(message) => (Severity::Error, "flush-failed", format!("flush: {message}")),
    };
    handler.events().add(severity, kind, message, &[]);
}

fn text(result: Result<String, String>) -> Response {
    result.map_or_else(|message| Response::Error { message }, |text| Response::Text { text })
}

/// Returns true if an answer takes as long as a disk, a file system or the client's patience.
fn takes_long(request: &Request) -> bool {
    match request {
        Request::Status
        | Request::Sample
        | Request::Advise
        | Request::Activity { .. }
        | Request::ResetActivity
        | Request::Config
        | Request::Metrics
        | Request::Invite { .. }
        | Request::Mode
        | Request::Pool(PoolRequest::Status)
        | Request::Volume(VolumeRequest::List { .. })
        | Request::Events { follow: false, .. } => false,
        Request::Events { follow: true, .. }
        | Request::Trace
        | Request::SetMode { .. }
        | Request::Flush { .. }
        | Request::Pool(_)
        | Request::Volume(_)
        | Request::Policy(_)
        | Request::Warm { .. }
        | Request::TestNotify { .. }
        | Request::Reload
        | Request::Cached { .. } => true,
    }
}

/// Returns the configured mode, and the effective mode if it differs, such as write-through after the loss of a
/// device.
fn mode_of(handler: &dyn Handler) -> Response {
    let (mode, effective) = (handler.mode(), handler.effective_mode());
    Response::Mode { mode, effective_mode: (effective != mode).then_some(effective) }
}

/// Sends past events, and then new ones if the client wants to follow. Ends when the client hangs up or the server
/// stops.
fn send_events(
    stream: &UnixStream,
    events: &EventLog,
    past: Past,
    follow: bool,
    clients: &Clients,
) -> io::Result<()> {
    let past = events.past(past);
    // With `last` 0 no past event is sent, and following starts after the newest event.
    let mut sequence = past.last().map_or_else(|| events.newest(), |event| event.sequence);
    for event in past {
        send(stream, &Response::Event(event))?;
    }
    while follow && !clients.stopping.load(Ordering::SeqCst) && !hung_up(stream)? {
        for event in events.after(sequence, FOLLOW_CHECK) {
            sequence = event.sequence;
            send(stream, &Response::Event(event))?;
        }
    }
    Ok(())
}

/// Returns true if the client has closed its end.
fn hung_up(stream: &UnixStream) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR))
}

/// Sends one response as one line.
pub(super) fn send(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}
