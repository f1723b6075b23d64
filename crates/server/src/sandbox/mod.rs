//! The system calls that the process gives up besides its capabilities: all those that it does not make.
//!
//! The list in `calls.rs` holds regardless of the filter of the service manager. Landlock is not used:
//! docs/decisions/030-no-landlock.md has the reason.

mod calls;
mod filter;
mod refused;
mod trap;

use std::io;

use forebay_config::Sandbox;
use forebay_control::{EventLog, SandboxStatus, Severity};
use std::sync::Arc;

pub(crate) use refused::refused;

use filter::Refusal;
use refused::Refused;

/// Filters the system calls of the process from here on, as `wanted`. Reports an event if no filter is installed.
pub(crate) fn enter(wanted: Sandbox, events: &Arc<EventLog>) -> SandboxStatus {
    let filtered = match wanted {
        Sandbox::Off => {
            let message =
                "system calls are not filtered (sandbox = off): a fault of the server could be used for more";
            events.add(Severity::Warning, "sandbox", message, &[]);
            return SandboxStatus::Off;
        }
        Sandbox::On => watch(events).and_then(|()| filter::install(Refusal::Trap)),
        Sandbox::Strict => filter::install(Refusal::Kill),
    };
    match filtered {
        Ok(()) => SandboxStatus::On,
        Err(error) => {
            let message = format!(
                "system calls cannot be filtered: {error}; service goes on without this protection. Allow seccomp in \
                 the unit or container, use a kernel with CONFIG_SECCOMP_FILTER, or say that none is wanted with --sandbox off"
            );
            events.add(Severity::Warning, "sandbox", message, &[]);
            SandboxStatus::Unavailable
        }
    }
}

/// Filters the system calls of a process that helps the server. A call that is not listed ends the process.
///
/// # Errors
/// A filter exists on this machine, and cannot be installed.
pub(crate) fn confine() -> io::Result<()> {
    match filter::install(Refusal::Kill) {
        // On a machine without filters, the server itself reports that.
        Err(error)
            if matches!(error.raw_os_error(), None | Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)) =>
        {
            Ok(())
        }
        installed => installed,
    }
}

/// Starts to report refused calls as events.
fn watch(events: &Arc<EventLog>) -> io::Result<()> {
    let told = trap::Told::new(trap::catch()?);
    let events = events.clone();
    let tell = move || {
        for number in told {
            let message = format!(
                "the server made system call {number} ({}), which its own filter does not know; the call failed with ENOSYS. \
                 This is a defect of Forebay: report it, and serve with --sandbox off if something does not work",
                std::env::consts::ARCH
            );
            events.add(Severity::Error, "sandbox", message, &[("number", &number)]);
        }
    };
    std::thread::Builder::new().name("forebay-sandbox".into()).spawn(tell).map(drop)
}

/// Reports which calls a filter around the server forbids.
pub(crate) fn tell_refused(refused: &[Refused], events: &EventLog) {
    for Refused { call, consequence } in refused {
        let message = format!(
            "system call {call} is forbidden (EPERM), by a filter of the service manager or container, or for io_uring by the \
             sysctl kernel.io_uring_disabled; {consequence}. Allow it: SystemCallFilter={call} in the unit"
        );
        events.add(Severity::Error, "call-refused", message, &[("call", call)]);
    }
}
