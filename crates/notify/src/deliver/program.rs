//! A program that is run for each notification. It gets the event as JSON on standard input, and the parts that a shell
//! script needs in its environment.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use forebay_config::{Notify, format_duration};
use forebay_control::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::Trouble;
use crate::payload;

/// The number of bytes of the program's last words that an error repeats.
const LAST_WORDS: usize = 200;
/// The directories in which programs are looked for by the program.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Finds out whether the program can be run.
pub(super) fn check(target: &Notify) -> Result<(), Trouble> {
    let program = target.command.first().map(String::as_str).unwrap_or_default();
    let access = rustix::fs::access(Path::new(program), rustix::fs::Access::EXEC_OK);
    access.map_err(|error| unusable(program, &error.into()))?;
    match std::fs::metadata(program) {
        Ok(found) if !found.is_file() => Err(unusable(program, &io::Error::other("it is not a file"))),
        Ok(_) => Ok(()),
        Err(error) => Err(unusable(program, &error)),
    }
}

/// Describes a program that cannot be run. The error lasts if the administrator has to mend it.
fn unusable(program: &str, error: &io::Error) -> Trouble {
    let message = format!("{program} cannot be run: {error}; correct `command` or the rights of the program");
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Trouble::lasting(message),
        _ => Trouble::passing(message),
    }
}

/// Runs the program for an event and waits for its end.
pub(super) fn run(target: &Notify, event: &Event, host: &str) -> Result<(), Trouble> {
    let Some((program, arguments)) = target.command.split_first() else {
        return Err(Trouble::lasting("the target has no command; add `command` to its [[notify]]"));
    };
    let input = contents(&payload::plain(event, host).to_string())
        .map_err(|error| Trouble::passing(format!("no memory for the event: {error}")))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("FOREBAY_HOST", host)
        .env("FOREBAY_TARGET", &target.name)
        .env("FOREBAY_SEVERITY", event.severity.as_str())
        .env("FOREBAY_KIND", &event.kind)
        // An environment takes no NUL.
        .env("FOREBAY_MESSAGE", event.message.replace('\0', " "))
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A group of its own can be ended as a whole.
        .process_group(0);
    let mut child = command.spawn().map_err(|error| unusable(program, &error))?;
    let mut told = Vec::new();
    let ended = wait(&mut child, target.timeout, &mut told);
    match ended {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(Trouble::passing(format!("{program} ended with {status}{}", quoted(&told)))),
        Ok(None) => {
            end(&mut child);
            let limit = format_duration(target.timeout);
            Err(Trouble::passing(format!(
                "{program} did not end within {limit}, and was killed{}",
                quoted(&told)
            )))
        }
        Err(error) => {
            end(&mut child);
            Err(Trouble::passing(format!("cannot wait for {program}: {error}")))
        }
    }
}

/// Returns an open file in memory with this text, read from its start. A pipe would make a program that does not read
/// delay the sender.
fn contents(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("event", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Waits for the end of the program, and collects the start of what it writes to stderr. Returns `None` at the timeout.
fn wait(child: &mut Child, timeout: Duration, told: &mut Vec<u8>) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + timeout;
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut stderr = child.stderr.take();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let (has_ended, has_told) = ready(process.as_fd(), stderr.as_ref().map(AsFd::as_fd), left)?;
        if has_told && !listen(&mut stderr, told)? {
            stderr = None;
        } else if has_ended {
            return child.wait().map(Some);
        }
    }
}

/// Waits until the process has ended or has written. Returns both.
fn ready(
    process: BorrowedFd<'_>,
    stderr: Option<BorrowedFd<'_>>,
    left: Duration,
) -> io::Result<(bool, bool)> {
    let mut polled = vec![PollFd::from_borrowed_fd(process, PollFlags::IN)];
    polled.extend(stderr.map(|stderr| PollFd::from_borrowed_fd(stderr, PollFlags::IN)));
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    match poll(&mut polled, Some(&left)) {
        Err(rustix::io::Errno::INTR) | Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let is_ready = |at: usize| polled.get(at).is_some_and(|one| !one.revents().is_empty());
    Ok((is_ready(0), is_ready(1)))
}

/// Reads what the program has written. Returns false at the end.
fn listen(stderr: &mut Option<ChildStderr>, told: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let Some(stderr) = stderr else { return Ok(false) };
    let count = stderr.read(&mut buffer)?;
    let room = LAST_WORDS.saturating_sub(told.len());
    told.extend_from_slice(&buffer[..count.min(room)]);
    Ok(count > 0)
}

/// Kills the program and the programs that it has started.
fn end(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.kill();
    let _ = child.wait();
}

/// Returns what a program has written as the end of a sentence.
fn quoted(told: &[u8]) -> String {
    let text = String::from_utf8_lossy(told);
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.is_empty() { String::new() } else { format!(": {text}") }
}
