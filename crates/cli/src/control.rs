//! The verbs that ask a running server one thing, and how that server is found.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, bail};
use forebay_config::{format_size, state_base};
use forebay_control::{Client, FlushProgress, PoolRequest, PoolStatus, Status};
use serde_json::json;

use crate::args::{FlushArgs, ModeArgs, PoolCommand, Target};
use crate::output::{self, Align, Table};
use crate::{Exit, output::printable};

/// The server that is meant: that of `--state-dir`, else the newest one that answers under the default place.
pub(crate) fn find(target: &Target) -> anyhow::Result<Client> {
    if let Some(dir) = &target.state_dir {
        return Ok(Client::new(dir));
    }
    let base =
        state_base().context("neither HOME nor XDG_STATE_HOME is set; name the server with --state-dir")?;
    let mut running = running(&base);
    running.sort_by_key(|(_, status)| status.started_ns);
    let Some((client, status)) = running.pop() else {
        bail!(
            "no server of this user runs under {}; start one with `forebay serve`, or name one with --state-dir",
            base.display()
        );
    };
    if !running.is_empty() {
        let served: Vec<String> =
            status.exports.iter().map(|export| export.path.display().to_string()).collect();
        let others: Vec<String> =
            running.iter().map(|(other, _)| other.state_dir().display().to_string()).collect();
        output::note(&format!(
            "Asking the newest server, which serves {} (--state-dir {}); also running: {}",
            served.join(", "),
            client.state_dir().display(),
            others.join(", ")
        ));
    }
    Ok(client)
}

/// The servers that answer in the state directories below `base`.
pub(crate) fn running(base: &Path) -> Vec<(Client, Status)> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let clients = entries.map(|entry| Client::new(&entry.path()));
    clients.filter_map(|client| client.status().ok().map(|status| (client, status))).collect()
}

/// `forebay mode`.
pub(crate) fn mode(args: &ModeArgs) -> anyhow::Result<Exit> {
    let (mode, effective) = find(&args.target)?.mode(args.mode)?;
    if args.json {
        output::json(&json!({ "mode": mode, "effective_mode": effective.unwrap_or(mode) }))?;
    } else {
        output::result(&format!("{mode}\n"))?;
        if let Some(effective) = effective {
            output::note(&format!("{effective} is in force: `forebay status` says why."));
        }
    }
    Ok(Exit::Done)
}

/// `forebay flush`.
pub(crate) fn flush(args: &FlushArgs) -> anyhow::Result<Exit> {
    let client = find(&args.target)?;
    if !args.wait {
        client.start_flush()?;
        if args.json {
            output::json(&json!({ "started": true }))?;
        } else {
            output::note("The flush has begun; `forebay events` shows how it ends.");
        }
        return Ok(Exit::Done);
    }
    let terminal = std::io::stderr().is_terminal();
    let report = client.flush(|progress| {
        if terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", describe_progress(progress));
        }
    });
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let report = report?;
    if args.json {
        output::json(&report)?;
    } else {
        let took = output::latency(report.elapsed_ns);
        let systems = report.filesystems;
        let destaged = match report.destaged_bytes {
            0 => String::new(),
            bytes => format!(", {} destaged", format_size(bytes)),
        };
        output::note(&format!(
            "Everything written before is durable: {systems} file system(s) synced in {took}{destaged}."
        ));
    }
    Ok(Exit::Done)
}

fn describe_progress(progress: FlushProgress) -> String {
    let FlushProgress { done, total, bytes } = progress;
    let percent = done.saturating_mul(100).checked_div(total).unwrap_or(0).min(100);
    match bytes {
        true => format!("flush: {} of {} ({percent} %)", format_size(done), format_size(total)),
        false => format!("flush: {done} of {total} file systems ({percent} %)"),
    }
}

/// `forebay pool`.
pub(crate) fn pool(command: PoolCommand) -> anyhow::Result<Exit> {
    match command {
        PoolCommand::Status { target, json } => {
            let pool = find(&target)?.pool(PoolRequest::Status)?;
            if json { output::json(&pool)? } else { show_pool(&pool)? }
        }
        PoolCommand::Add { path, force, target } => {
            let path = std::path::absolute(path)?;
            let pool = find(&target)?.pool(PoolRequest::Add { path, force })?;
            show_pool(&pool)?;
        }
        PoolCommand::Remove { path, wait, target } => {
            let path = std::path::absolute(path)?;
            let pool = find(&target)?.pool(PoolRequest::Remove { path, wait })?;
            show_pool(&pool)?;
        }
    }
    Ok(Exit::Done)
}

fn show_pool(pool: &PoolStatus) -> anyhow::Result<()> {
    if !pool.configured {
        output::result("no cache is configured: reads and writes go straight to the backing store\n")?;
        return Ok(());
    }
    let mut table = Table::new(&[("DEVICE", Align::Left), ("SIZE", Align::Right), ("STATE", Align::Left)]);
    for device in &pool.devices {
        let path = printable(&device.path.to_string_lossy());
        table.row([path, format_size(device.size_bytes), printable(&device.state)]);
    }
    let totals =
        format!("clean {}, dirty {}\n", format_size(pool.clean_bytes), format_size(pool.dirty_bytes));
    Ok(output::result(&(table.render(0) + &totals))?)
}
