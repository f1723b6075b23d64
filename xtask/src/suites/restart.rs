//! Kills the server under load and starts it again, once without one of its cache files. The client must continue and
//! lose no acknowledged change. After a flush the plain directory must have everything.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Result, bail, ensure};

use super::{Case, Serving, Target, asset, reported, whole};
use crate::process;

const LIMIT: Duration = Duration::from_secs(300);
const CRASHES: usize = 3;
/// Number of the restart before which one of the two cache files is deleted.
const LOSING: usize = 1;

/// Runs the load in a guest, and kills and restarts the server each time the load works again. Needs a server of its
/// own.
pub(super) fn run(target: &mut Target) -> Result<Vec<Case>> {
    let script = asset("restart.py");
    let script = script.to_string_lossy();
    let share = tempfile::tempdir()?;
    let mut guest = target.guest(LIMIT, ["/usr/bin/python3", &script, "guest", "/mnt", "/share"]);
    guest.shares.push((share.path().to_owned(), "/share".into()));
    let Serving::Own(server) = &mut target.server else {
        bail!("the suite restart needs a server of its own: leave out --port")
    };

    let mut cases = Vec::new();
    let mut report = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        eprint!("{line}");
        cases.extend(reported(&line));
    };
    let status = thread::scope(|scope| {
        let client = scope.spawn(|| guest.run(&mut report));
        for crash in 0..CRASHES {
            // The load creates this file when it is working again.
            while !share.path().join(format!("under-way-{crash}")).exists() && !client.is_finished() {
                thread::sleep(Duration::from_millis(50));
            }
            if client.is_finished() {
                break;
            }
            server.crash_and_restart(crash == LOSING)?;
            fs::write(share.path().join(format!("restarted-{crash}")), "")?;
        }
        client.join().unwrap_or_else(|_| bail!("the client's thread died"))
    })?;
    server.flush()?;
    let directory = server.directory();
    let verify = verify(&script, &directory, share.path());
    process::lines(&mut { verify }, &mut report)?;
    ensure!(!cases.is_empty(), "the client reported nothing");
    cases.push(whole("the run", (status != 0).then(|| format!("the guest ended with {status}"))));
    Ok(cases)
}

/// Returns the command that compares the served directory with the list of acknowledged changes in `share`.
fn verify(script: &str, directory: &Path, share: &Path) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args([script, "host"]).arg(directory).arg(share);
    command
}
