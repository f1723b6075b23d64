//! Runs a command of the host with a limit on time and output.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longest time of a command. A file system that does not answer holds some of them up.
const LONGEST: Duration = Duration::from_secs(20);
/// Most bytes of output that are kept, the last ones.
const MOST: usize = 8 << 20;

/// Returns what a command prints on stdout, and on stderr behind it. A command that fails has printed why.
///
/// # Errors
/// One sentence: the host lacks the command, or it did not end in time.
pub(super) fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program} cannot be run: {error}"))?;
    let pid = Pid::from_child(&child);
    let (done, ended) = channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::spawn(move || {
        let errors = std::thread::spawn(move || all(stderr));
        let mut text = all(stdout);
        text.extend(errors.join().unwrap_or_default());
        let _ = child.wait();
        // Nobody waits any more if the command took too long.
        let _ = done.send(text);
    });
    match ended.recv_timeout(LONGEST) {
        Ok(text) => {
            let start = text.len().saturating_sub(MOST);
            Ok(String::from_utf8_lossy(&text[start..]).into_owned())
        }
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            Err(format!("{program} did not end within {} s", LONGEST.as_secs()))
        }
    }
}

/// Returns everything that a pipe gives until its end.
fn all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // Bytes that were read before an error count.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}
