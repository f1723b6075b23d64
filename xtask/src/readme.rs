//! Checks the README's transcript: its commands are run, and their output must be that of the transcript.
//!
//! The transcript is the code block after [`MARKER`]. Lines that start with `$ ` are commands; the first one starts
//! the server. The server runs as an ordinary user in an empty directory, on another port than the one shown. Numbers
//! may differ.

use std::{
    fs::{self, File, Permissions},
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::{
    process::{Guarded, bounded, output, quoted, root, target_dir},
    server::free_port,
    suites::Counts,
};

const MARKER: &str = "<!-- transcript: checked by cargo x readme -->\n```\n";
const END: &str = "```\n";
/// Start of the first command in the README. The remaining words are arguments for the release build.
const SERVE: &str = "cargo run --release -- ";
const PORT: &str = "2049";
/// Name of the run's directory in the transcript.
const HOME: &str = "/home/user";
const LIMIT: Duration = Duration::from_secs(20);

/// Compares the transcript with a new run. With `update`, replaces the transcript by the new one.
pub(crate) fn check(update: bool) -> Result<Counts> {
    let path = root().join("README.md");
    let text = fs::read_to_string(&path).context("cannot read README.md")?;
    let (head, rest) = text.split_once(MARKER).context("README.md has no transcript")?;
    let (shown, tail) = rest.split_once(END).context("the transcript in README.md has no end")?;
    let new = play(shown)?;
    if update {
        fs::write(&path, [head, MARKER, &new, END, tail].concat())?;
    } else if comparable(shown) != comparable(&new) {
        bail!("the transcript in README.md is out of date (`cargo x readme --update`); it would be:\n{new}");
    }
    Ok(Counts { passed: 1, ..Counts::default() })
}

/// Runs the commands of a transcript and returns the new transcript.
fn play(shown: &str) -> Result<String> {
    let commands: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let [serve, others @ ..] = commands.as_slice() else {
        bail!("the transcript in README.md has no commands")
    };
    let arguments =
        serve.strip_prefix(SERVE).with_context(|| format!("the transcript does not start with {SERVE}"))?;
    let stage = Stage::new()?;
    let mut server = stage.serve(arguments)?;
    let results: Result<Vec<_>> = others.iter().map(|command| stage.run(command)).collect();
    let results = results?;
    let pid = Pid::from_raw(server.0.id().cast_signed()).context("the server has no process id")?;
    kill_process(pid, Signal::TERM)?;
    let status = server.wait(LIMIT)?.context("the server did not end after SIGTERM")?;
    ensure!(status.success(), "the server ended after SIGTERM with {status}");

    // Log lines contain the time, so only messages for the person are kept.
    let log = fs::read_to_string(stage.log())?;
    let said: String =
        log.lines().filter(|line| !line.contains(" INFO ")).map(|line| format!("{line}\n")).collect();
    let mut new = format!("$ {serve}\n{said}");
    for (command, result) in others.iter().zip(results) {
        new += &format!("$ {command}\n{result}");
    }
    // On its usual port the server prints a mount command without the option.
    let new = new.replace(&format!(" -o port={}", stage.port), "");
    Ok(new.replace(&stage.port.to_string(), PORT).replace(&*stage.home().to_string_lossy(), HOME))
}

/// A directory and a port for one run.
struct Stage {
    work: tempfile::TempDir,
    port: u16,
}

impl Stage {
    /// Makes an empty directory with a copy of the release binary, where another user may run it. Chooses a free
    /// port.
    fn new() -> Result<Self> {
        let stage = Self { work: tempfile::tempdir()?, port: free_port()? };
        fs::set_permissions(stage.work.path(), Permissions::from_mode(0o755))?;
        fs::create_dir(stage.home())?;
        fs::set_permissions(stage.home(), Permissions::from_mode(0o777))?;
        // Other users may be unable to read the build directory.
        fs::copy(target_dir().join("release/forebay"), stage.binary())
            .context("cannot copy the release build (cargo build --release)")?;
        Ok(stage)
    }

    fn home(&self) -> PathBuf {
        self.work.path().join("home")
    }

    fn binary(&self) -> PathBuf {
        self.work.path().join("forebay")
    }

    fn log(&self) -> PathBuf {
        self.work.path().join("log")
    }

    /// Starts the server with the arguments of the transcript, and waits until it accepts connections. Fails with its
    /// log if it ends before.
    fn serve(&self, arguments: &str) -> Result<Guarded> {
        let line = format!("exec {} {arguments} --listen 127.0.0.1:{}", word(&self.binary()), self.port);
        let log = File::create(self.log())?;
        let mut command = self.shell(None, &line);
        let mut server = Guarded(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if let Some(status) = server.wait(Duration::from_millis(20))? {
                bail!("the server ended at its start with {status}: {}", fs::read_to_string(self.log())?);
            }
        }
        Ok(server)
    }

    /// Returns the output of a command, which must succeed.
    fn run(&self, command: &str) -> Result<String> {
        output(&mut self.shell(Some(LIMIT), &command.replace(PORT, &self.port.to_string())))
    }

    /// Returns a shell command that an ordinary user runs in the home directory.
    fn shell(&self, limit: Option<Duration>, line: &str) -> Command {
        let user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--"];
        let user = if geteuid().is_root() { user.as_slice() } else { &[] };
        let script = ["sh", "-c", line];
        let mut words = user.iter().chain(&script);
        let program = words.next().copied().unwrap_or("sh");
        let mut command = bounded(limit, program, words);
        let path = format!("{}:{}", self.work.path().display(), std::env::var("PATH").unwrap_or_default());
        command
            .current_dir(self.home())
            .env("HOME", self.home())
            .env_remove("XDG_STATE_HOME")
            .env("PATH", path);
        command
    }
}

fn word(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Returns the text with every number and hash replaced, so that two runs can be compared.
fn comparable(text: &str) -> String {
    let numeric = |c: char| c.is_ascii_hexdigit() || ".:,".contains(c);
    let mut result = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| numeric(c) != numeric(first)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        result += if run.contains(|c: char| c.is_ascii_digit()) { "0" } else { run };
        rest = after;
    }
    // The width of columns depends on the numbers in them, so white space is reduced.
    result.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::comparable;

    #[test]
    fn only_numbers_may_differ() {
        let one = "Listening on 127.0.0.1:2049\nkept in data-60abfeb5\n-rw  1   6 a\n";
        let other = "Listening on 127.0.0.1:31999\nkept in data-7ccf0ee1\n-rw 1 1600 a\n";
        assert_eq!(comparable(one), comparable(other));
        assert_ne!(comparable(one), comparable(&one.replace("Listening", "Waiting")));
    }
}
