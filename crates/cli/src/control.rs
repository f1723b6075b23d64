//! The verbs that send one request to a running server, and the search for that server.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use forebay_config::{STATE_BASE_OF_ROOT, format_size, state_base};
use forebay_control::{
    Client, ClientError, FlushProgress, PoolDevice, PoolRequest, PoolStatus, PoolWork, PoolWorkKind,
    ScrubStatus, Status,
};
use serde_json::json;

use crate::args::Target;
use crate::control_args::{FlushArgs, ModeArgs, PoolCommand, ReloadArgs};
use crate::output::{self, Align, Table};
use crate::{Exit, output::printable};

/// Finds the server to ask: that of `--state-dir`, or the newest server that answers below the default directory.
pub(crate) fn find(target: &Target) -> anyhow::Result<Client> {
    if let Some(dir) = &target.state_dir {
        return Ok(Client::new(dir));
    }
    let base =
        state_base().context("neither HOME nor XDG_STATE_HOME is set; name the server with --state-dir")?;
    let FoundServers { mut running, silent } = look(&base)?;
    running.sort_by_key(|(_, status)| status.started_ns);
    let Some((client, status)) = running.pop() else {
        // A server may exist without answering. The reason is more useful than the message that no server was found.
        if let Some(error) = silent.into_iter().next() {
            return Err(error.into());
        }
        let roots = Path::new(STATE_BASE_OF_ROOT);
        let hint = match base != roots && roots.exists() {
            true => "; for a server of root, ask as root",
            false => "",
        };
        bail!(
            "no server of this user runs under {}; start one with `forebay serve`, or name one with --state-dir{hint}",
            base.display()
        );
    };
    silent.iter().for_each(|error| output::note(&format!("Note: {error}.")));
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

/// The servers below a directory.
pub(crate) struct FoundServers {
    /// Servers that answer.
    pub(crate) running: Vec<(Client, Status)>,
    /// Errors of servers that may exist but did not answer, such as missing permissions or timeouts.
    pub(crate) silent: Vec<ClientError>,
}

/// Asks the servers of the state directories below `base`.
///
/// # Errors
/// This user may not list `base`.
pub(crate) fn look(base: &Path) -> anyhow::Result<FoundServers> {
    let entries = match std::fs::read_dir(base) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("permission denied: this user may not list {}; ask as root", base.display())
        }
        entries => entries.into_iter().flatten().flatten(),
    };
    let mut found = FoundServers { running: Vec::new(), silent: Vec::new() };
    for entry in entries {
        let client = Client::new(&entry.path());
        match client.status() {
            Ok(status) => found.running.push((client, status)),
            Err(ClientError::NotRunning(_)) => {}
            Err(error) => found.silent.push(error),
        }
    }
    Ok(found)
}

/// Runs `forebay reload`.
pub(crate) fn reload(args: &ReloadArgs) -> anyhow::Result<Exit> {
    let report = find(&args.target)?.reload()?;
    if args.json {
        output::json(&report)?;
    }
    if !report.mistakes.is_empty() {
        report.mistakes.iter().for_each(|mistake| output::error(mistake));
        output::note("Nothing has changed.");
        return Ok(Exit::Usage);
    }
    if !args.json {
        report.changed.iter().for_each(|change| output::note(&format!("In force now: {change}.")));
        report.at_next_start.iter().for_each(|change| output::note(&format!("At the next start: {change}.")));
        if report.changed.is_empty() && report.at_next_start.is_empty() {
            output::note("The configuration is the same as before.");
        }
    }
    Ok(Exit::Done)
}

/// Runs `forebay mode`.
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

/// Runs `forebay flush`.
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
    let begun = std::time::Instant::now();
    let report = client.flush(|progress| {
        if terminal {
            let shown = describe_progress(progress, begun.elapsed());
            let _ = write!(std::io::stderr(), "\r\x1b[K{shown}");
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

/// Returns the progress of a flush as one line, with the rate since its start and the time that is left.
fn describe_progress(progress: FlushProgress, elapsed: Duration) -> String {
    let FlushProgress { done, total, bytes } = progress;
    let percent = done.saturating_mul(100).checked_div(total).unwrap_or(0).min(100);
    if !bytes {
        return format!("flush: {done} of {total} file systems ({percent} %)");
    }
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = match total.saturating_sub(done) {
        0 => String::new(),
        _ if done == 0 => ", estimating".to_owned(),
        rest => format!(", {} left", output::span(Duration::from_secs_f64((rest as f64 / rate).min(1e9)))),
    };
    format!(
        "flush: {} of {} ({percent} %), {}/s{left}; Ctrl-C lets it go on in the background",
        format_size(done),
        format_size(total),
        format_size(rate as u64)
    )
}

/// Runs `forebay pool`.
pub(crate) fn pool(command: PoolCommand) -> anyhow::Result<Exit> {
    match command {
        PoolCommand::Status { target, json } => {
            let pool = find(&target)?.pool(PoolRequest::Status)?;
            if json { output::json(&pool)? } else { show_pool(&pool)? }
        }
        PoolCommand::Scrub { wait, target, json } => {
            let pool = find(&target)?.pool(PoolRequest::Scrub { wait })?;
            if json {
                output::json(&pool.scrub)?;
            } else if wait {
                output::note(&format!("Scrubbed: {}.", describe_scrub(&pool.scrub)));
            } else {
                output::note("The scrub has begun; `forebay pool status` shows how far it is.");
            }
        }
        PoolCommand::Add { path, force, target, json } => {
            let path = crate::data_args::device(path)?;
            let shown = path.display().to_string();
            let pool = find(&target)?.pool(PoolRequest::Add { path, force })?;
            if json {
                output::json(&pool)?;
            } else {
                output::note(&format!("{shown} is in use."));
                show_pool(&pool)?;
            }
        }
        PoolCommand::Remove { path, wait, target, json } => {
            let path = crate::data_args::device(path)?;
            let shown = path.display().to_string();
            let pool = find(&target)?.pool(PoolRequest::Remove { path, wait })?;
            if json {
                output::json(&pool)?;
            } else {
                output::note(&match wait {
                    true => format!("{shown} is not used any more and may be pulled."),
                    false => format!(
                        "The removal of {shown} has begun: it may be pulled once `forebay pool status` does not list it; an event \
                         reports the end of the removal."
                    ),
                });
                show_pool(&pool)?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Prints the devices and the state of the cache, or a sentence if none is configured.
fn show_pool(pool: &PoolStatus) -> anyhow::Result<()> {
    if !pool.configured {
        output::result("no cache is configured: reads and writes go straight to the backing store\n")?;
        return Ok(());
    }
    let mut text = device_table(pool).render(0);
    pool.devices.iter().filter_map(identity).for_each(|line| text.push_str(&line));
    for (name, line) in pool_lines(pool) {
        text.push_str(&format!("{name:<12} {line}\n"));
    }
    Ok(output::result(&text)?)
}

/// Returns a line with names by which a device is found after a reboot, if any is known.
fn identity(device: &PoolDevice) -> Option<String> {
    let named = |name: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!("{name}{}", printable(value)))
    };
    let known =
        [named("", &device.stable_path), named("serial ", &device.serial), named("UUID ", &device.uuid)];
    let known: Vec<_> = known.into_iter().flatten().collect();
    (!known.is_empty())
        .then(|| format!("{}: {}\n", printable(&device.path.to_string_lossy()), known.join(", ")))
}

/// Returns the table of cache devices with their wear.
pub(crate) fn device_table(pool: &PoolStatus) -> Table {
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        ("CACHE DEVICE", Align::Left),
        right("SIZE"),
        ("STATE", Align::Left),
        right("LIFE USED"),
        right("SPARE"),
        right("MEDIA ERRORS"),
    ]);
    for device in &pool.devices {
        let wear = device.wear.unwrap_or_default();
        let percent = |value: Option<u8>| value.map_or("-".to_owned(), |value| format!("{value} %"));
        table.row([
            printable(&device.path.to_string_lossy()),
            format_size(device.size_bytes),
            printable(&device.state),
            percent(wear.life_used_percent),
            percent(wear.spare_percent),
            wear.media_errors.map_or("-".to_owned(), output::count),
        ]);
    }
    table
}

/// Returns the results of a scrub as one line.
fn describe_scrub(scrub: &ScrubStatus) -> String {
    let ScrubStatus { blocks_checked, blocks_repaired, blocks_dropped, blocks_lost, .. } = *scrub;
    let (checked, repaired) = (output::count(blocks_checked), output::count(blocks_repaired));
    let (dropped, lost) = (output::count(blocks_dropped), output::count(blocks_lost));
    format!("{checked} blocks checked, {repaired} copies repaired, {dropped} dropped, {lost} lost")
}

/// Returns the contents and the activity of the cache, each with its name.
pub(crate) fn pool_lines(pool: &PoolStatus) -> Vec<(&'static str, String)> {
    let counters = &pool.counters;
    let (ram, ssd) = counters.hit_rates();
    let age = output::span(Duration::from_nanos(pool.dirty_age_ns));
    let dirty_age = if pool.dirty_bytes > 0 { format!(", the oldest for {age}") } else { String::new() };
    let warming = match pool.loaded_percent {
        100.. => String::new(),
        percent => format!(" (still warming: {percent} % loaded)"),
    };
    let scrub = match &pool.scrub {
        ScrubStatus { number: 0, .. } => "none since the start".to_owned(),
        scrub @ ScrubStatus { running: true, segments_done, segments, .. } => {
            format!("{segments_done} of {segments} segments: {}", describe_scrub(scrub))
        }
        scrub => format!("the last one: {}", describe_scrub(scrub)),
    };
    let notes = pool.notes.iter().map(|note| ("cache note", printable(note)));
    let mut lines = vec![
        (
            "cache",
            format!(
                "clean {}{warming}, dirty {}{dirty_age}; in memory {} of {}",
                format_size(pool.clean_bytes),
                format_size(pool.dirty_bytes),
                format_size(pool.ram_bytes),
                format_size(pool.ram_limit_bytes)
            ),
        ),
        (
            "cache hits",
            match counters.blocks_read() {
                0 => "- (no reads through the cache yet)".to_owned(),
                _ => format!(
                    "memory {:.1} %, SSD {:.1} %, backing store {:.1} % of reads through the cache",
                    ram * 100.0,
                    ssd * 100.0,
                    (1.0 - ram - ssd).max(0.0) * 100.0
                ),
            },
        ),
        (
            "cache writes",
            format!(
                "{} logged, {} direct, {} destaged in {} writes, {:.2} bytes to the SSDs for each",
                format_size(counters.blocks_written * 4096),
                format_size(counters.direct_bytes),
                format_size(counters.blocks_destaged * 4096),
                output::count(counters.destage_writes),
                counters.write_amplification()
            ),
        ),
        (
            "cache index",
            format!(
                "{} for {} files, {:.1} bytes for each block",
                format_size(pool.index_bytes),
                output::count(pool.objects),
                pool.index_bytes_per_block
            ),
        ),
        ("cache scrub", scrub),
    ];
    lines.extend(pool.work.iter().map(|work| ("cache work", work_line(work))));
    lines.extend(notes);
    lines
}

/// Returns a work in progress as one line, with the time left.
fn work_line(work: &PoolWork) -> String {
    let PoolWork { kind, device, done, total, left_ns } = work;
    let name = match kind {
        PoolWorkKind::Load => "clean data is loaded".to_owned(),
        PoolWorkKind::Rebuild => "dirty data gets its second copy".to_owned(),
        PoolWorkKind::Removal => {
            let device = device.as_ref().map(|device| printable(&device.display().to_string()));
            format!("data leaves {}", device.unwrap_or_default())
        }
        PoolWorkKind::Scrub => "scrub".to_owned(),
    };
    let amounts = match kind {
        PoolWorkKind::Load | PoolWorkKind::Scrub => {
            format!("{} of {} segments", output::count(*done), output::count(*total))
        }
        PoolWorkKind::Rebuild | PoolWorkKind::Removal => {
            format!("{} of {}", format_size(*done), format_size(*total))
        }
    };
    let left = left_ns.map_or_else(
        || "the time left is not known yet".to_owned(),
        |left| format!("{} left", output::span(Duration::from_nanos(left))),
    );
    format!("{name}: {amounts}, {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_tells_its_rate_and_what_is_left() {
        let progress =
            |done: u64, total: u64| FlushProgress { done: done << 20, total: total << 20, bytes: true };
        let shown = describe_progress(progress(50, 200), Duration::from_secs(5));
        assert!(shown.starts_with("flush: 50 MiB of 200 MiB (25 %), 10 MiB/s, 15 s left"), "{shown}");
        let shown = describe_progress(progress(0, 200), Duration::ZERO);
        assert!(shown.contains("estimating"), "{shown}");
        assert!(!describe_progress(progress(200, 200), Duration::from_secs(1)).contains("left"));
    }
}
