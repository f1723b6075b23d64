//! Runs other programs: errors name the command, time is limited, and no child is left behind.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// Returns the root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// Returns Cargo's target directory: `CARGO_TARGET_DIR`, or `target` of the workspace.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Returns the directory for downloads and work files of the rigs. It is made if missing.
pub(crate) fn rigs_dir() -> Result<PathBuf> {
    let dir = target_dir().join("rigs");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Returns a command with its arguments, to run in the workspace's root.
pub(crate) fn command<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Returns a command that is ended when this process dies. With a limit, it is ended after that time as well.
pub(crate) fn bounded<S: AsRef<OsStr>>(
    limit: Option<Duration>,
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = command("setpriv", ["--pdeathsig", "TERM", "--"]);
    if let Some(limit) = limit {
        command.args(["timeout", "--kill-after=5", &limit.as_secs().to_string()]);
    }
    command.arg(program).args(args);
    command
}

/// Returns a copy of a command that is ended, with its children, when the limit has passed.
pub(crate) fn within(limit: Duration, command: &Command) -> Command {
    let mut limited = bounded(Some(limit), command.get_program(), command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// Exit status of coreutils' `timeout` if the limit was reached.
pub(crate) const TIMED_OUT: i32 = 124;

/// Runs a command to its end with this process's streams. A failure is an error that names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    ensure!(status.success(), "{} ended with {status}", line(command));
    Ok(())
}

/// Runs a command to its end and returns stdout. A failure is an error with the command's stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("cannot start {}", line(command)))?;
    if !done.status.success() {
        bail!(
            "{} ended with {}: {}",
            line(command),
            done.status,
            String::from_utf8_lossy(&done.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs a command to its end and passes each line of stdout to `each`, including its newline if it has one.
pub(crate) fn lines(command: &mut Command, each: impl FnMut(&[u8])) -> Result<ExitStatus> {
    let mut child = spawn_piped(command)?;
    read_lines(&mut child, each)?;
    Ok(child.wait()?)
}

/// Runs a command as [`lines`] does, but ends it with SIGTERM and returns `None` if `begun` is not true within the
/// limit.
pub(crate) fn lines_once_begun(
    command: &mut Command,
    limit: Duration,
    begun: impl Fn() -> bool + Send,
    each: impl FnMut(&[u8]),
) -> Result<Option<ExitStatus>> {
    let mut child = spawn_piped(command)?;
    let pid = child.id().to_string();
    let (ended, watcher) = std::sync::mpsc::channel::<()>();
    let in_time = std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let end = Instant::now() + limit;
            // A disconnected channel means that the program has ended.
            while watcher.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout)
                && !begun()
            {
                if Instant::now() >= end {
                    return Command::new("kill").arg(&pid).status().map(|_| false);
                }
            }
            Ok(true)
        });
        let read = read_lines(&mut child, each);
        drop(ended);
        read.and_then(|()| Ok(watch.join().unwrap_or(Ok(true))?))
    })?;
    let status = child.wait()?;
    Ok(in_time.then_some(status))
}

/// Starts a command without input, whose standard output this program reads.
fn spawn_piped(command: &mut Command) -> Result<Child> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    child.with_context(|| format!("cannot start {}", line(command)))
}

/// Passes each line of the child's standard output to `each`, with the line's end. A line longer than 1 MiB arrives
/// in pieces.
fn read_lines(child: &mut Child, mut each: impl FnMut(&[u8])) -> Result<()> {
    let mut stdout = BufReader::new(child.stdout.take().context("stdout was not piped")?);
    let mut buffer = Vec::new();
    // The limit keeps a line without end from exhausting the memory.
    while stdout.by_ref().take(1 << 20).read_until(b'\n', &mut buffer)? > 0 {
        each(&buffer);
        buffer.clear();
    }
    Ok(())
}

/// Returns the command as a person would type it.
pub(crate) fn line(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let _ = write!(text, " {}", argument.to_string_lossy());
    }
    text
}

/// Returns `text` as one word of a POSIX shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A child that is killed when this value is dropped.
pub(crate) struct Guarded(pub(crate) Child);

impl Guarded {
    /// Waits until the child has ended or the limit has passed. `None` means that the child still runs.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

    use super::*;

    fn shell(script: &str) -> Command {
        command("sh", ["-c", script])
    }

    #[test]
    fn what_does_not_begin_is_ended() {
        let limit = Duration::from_millis(200);
        let ended = lines_once_begun(&mut shell("exec sleep 1000"), limit, || false, |_| {}).unwrap();
        assert_eq!(ended, None);
    }

    #[test]
    fn what_has_begun_ends_by_itself() {
        for script in ["exit 3", "echo line; sleep 0.3; exit 3"] {
            let ended = lines_once_begun(&mut shell(script), Duration::ZERO, || true, |_| {}).unwrap();
            assert_eq!(ended.unwrap().code(), Some(3), "{script}");
        }
    }

    #[test]
    fn a_command_within_a_limit_keeps_its_environment_and_is_ended() {
        let mut ends = shell("test \"$SEEN\" = yes");
        run(&mut within(Duration::from_secs(60), ends.env("SEEN", "yes"))).unwrap();
        let status = within(Duration::from_secs(1), &shell("sleep 1000 & wait")).status().unwrap();
        assert_eq!(status.code(), Some(TIMED_OUT));
    }
}
