//! Runs the checks of `posix.py`, operations of applications on files, on the server's host and on the client.

use std::{process::Command, time::Duration};

use anyhow::Result;

use super::{Case, Target, asset, reported, whole};
use crate::process;

const LIMIT: Duration = Duration::from_secs(400);

/// Runs the checks on the host before the client's, on the client, and on the host again after a flush.
pub(super) fn run(target: &mut Target) -> Result<Vec<Case>> {
    let script = asset("posix.py");
    let script = script.to_string_lossy();
    let mut cases = Vec::new();
    let mut report = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        eprint!("{line}");
        cases.extend(reported(&line));
    };
    let on_host = |place: &str| {
        let mut command = Command::new("/usr/bin/python3");
        command.args([&script, place]).arg(target.directory());
        command
    };
    process::lines(&mut on_host("before"), &mut report)?;
    let status = target.guest(LIMIT, ["/usr/bin/python3", &script, "guest", "/mnt"]).run(&mut report)?;
    target.flush()?;
    process::lines(&mut on_host("after"), &mut report)?;
    cases.push(whole("the run", (status != 0).then(|| format!("the guest ended with {status}"))));
    Ok(cases)
}
