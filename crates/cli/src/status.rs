//! `forebay status`: the state of a running server on one screen.

use std::time::Duration;

use forebay_config::format_size;
use forebay_control::{ClientStateStatus, HandleMode, Health, RateLimitStatus, Status};

use crate::monitor_args::StatusArgs;
use crate::output::{self, Align, BAD, GOOD, HEAD, Table, WARN, count, latency, paint, printable, span};
use crate::{Exit, control, volume};

/// Most clients listed; `--json` has more.
const CLIENTS_SHOWN: usize = 20;

/// Runs `forebay status`.
pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<Exit> {
    let client = control::find(&args.target)?;
    let status = client.status()?;
    if args.prometheus {
        output::result(&client.metrics()?)?;
    } else if args.json {
        output::json(&status)?;
    } else {
        output::result(&describe(&status))?;
    }
    Ok(Exit::Done)
}

/// Returns the whole status as text: the head, tables that have rows, and the counters.
fn describe(status: &Status) -> String {
    let mut text = head(status);
    let devices = status.pool.as_ref().map(control::device_table);
    let volumes = Some(volume::table(&status.volumes));
    for table in [Some(exports(status)), volumes, devices, Some(clients(status)), Some(procedures(status))]
        .into_iter()
        .flatten()
    {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(&table.render(0));
        }
    }
    if let hidden @ 1.. = status.clients.len().saturating_sub(CLIENTS_SHOWN) {
        text.push_str(&format!("{hidden} more clients; --json lists them\n"));
    }
    text.push('\n');
    text.push_str(&counters(status));
    text
}

/// Returns the first lines: version, health, mode, uptime, addresses.
pub(crate) fn head(status: &Status) -> String {
    let up = span(Duration::from_nanos(status.uptime_ns));
    let health = match &status.health {
        _ if status.starting.is_some() => paint(WARN, "STARTING"),
        Health::Ok => paint(GOOD, "OK"),
        Health::Degraded { .. } => paint(BAD, "DEGRADED"),
    };
    let name = paint(HEAD, &format!("forebay {}", printable(&status.version)));
    let mode = match status.effective_mode == status.mode {
        true => status.mode.to_string(),
        false => format!("{} (chosen: {})", status.effective_mode, status.mode),
    };
    let mut text = format!("{name}  {health}  mode {mode}  pid {}  up {up}\n", status.pid);
    if let Health::Degraded { reasons } = &status.health {
        for reason in reasons {
            text.push_str(&format!("  {}\n", paint(BAD, &printable(reason))));
        }
    }
    let listen: Vec<String> = status.listen.iter().map(ToString::to_string).collect();
    let handles = match status.handles {
        HandleMode::Kernel => "kernel",
        HandleMode::Fallback => "fallback (by inode)",
    };
    let verifier = printable(&status.write_verifier);
    // A server that has not opened its exports listens nowhere.
    if !listen.is_empty() {
        text.push_str(&format!(
            "listening on {}  handles {handles}  verifier {verifier}\n",
            listen.join(", ")
        ));
    }
    text.push_str(&format!("state in {}\n", printable(&status.state_dir.to_string_lossy())));
    text
}

/// Returns the table of exports. Sizes that the file system has not told are `-`.
fn exports(status: &Status) -> Table {
    let left = |head| (head, Align::Left);
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        left("EXPORT"),
        left("PATH"),
        left("TYPE"),
        right("SIZE"),
        right("FREE"),
        right("FREE INODES"),
    ]);
    for export in &status.exports {
        let names: Vec<&str> =
            std::iter::once(&export.name).chain(&export.aliases).map(String::as_str).collect();
        let inodes = match export.total_inodes {
            0 => "-".to_owned(),
            _ => count(export.free_inodes),
        };
        table.row([
            printable(&names.join(" ")),
            printable(&export.path.to_string_lossy()),
            printable(&export.fs_type),
            format_size(export.total_bytes),
            match export.total_bytes {
                // The file system has not answered yet.
                0 => "-".to_owned(),
                _ => format_size(export.free_bytes),
            },
            inodes,
        ]);
    }
    table
}

/// Returns the table of the clients with the most operations, `CLIENTS_SHOWN` at most.
fn clients(status: &Status) -> Table {
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        ("CLIENT", Align::Left),
        right("CONNS"),
        right("OPS"),
        right("READ"),
        right("WRITTEN"),
        right("LAST SEEN"),
    ]);
    for client in status.clients.iter().take(CLIENTS_SHOWN) {
        table.row([
            client.address.to_string(),
            count(client.connections),
            count(client.operations),
            format_size(client.bytes_read),
            format_size(client.bytes_written),
            output::time_of_day(client.last_seen_ns),
        ]);
    }
    table
}

/// Returns the table of procedures with their latencies.
fn procedures(status: &Status) -> Table {
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        ("PROCEDURE", Align::Left),
        right("CALLS"),
        right("ERRORS"),
        right("MEAN"),
        right("P50"),
        right("P95"),
        right("P99"),
        right("P99.9"),
        right("MAX"),
    ]);
    for procedure in &status.procedures {
        let figures = procedure.latency;
        let latencies = [
            figures.mean_ns,
            figures.p50_ns,
            figures.p95_ns,
            figures.p99_ns,
            figures.p999_ns,
            figures.max_ns,
        ];
        let counts = [printable(&procedure.name), count(procedure.count), count(procedure.errors)];
        table.row(counts.into_iter().chain(latencies.map(latency)));
    }
    table
}

/// Returns a limit on rates as text.
fn rate_limit(limit: &RateLimitStatus) -> String {
    let requests = limit.requests_per_second.map(|rate| format!("{} requests/s", count(rate)));
    let bytes = limit.bytes_per_second.map(|rate| format!("{}/s", format_size(rate)));
    let rates: Vec<_> = requests.into_iter().chain(bytes).collect();
    let whose = match &limit.export {
        Some(export) => format!("all clients of the export {} together", printable(export)),
        None => format!("each client of {}", limit.networks.join(", ")),
    };
    format!(
        "{} for {whose}: {}; {} delays, {} in all",
        printable(&limit.name),
        rates.join(" and "),
        count(limit.delays),
        latency(limit.delayed_ns)
    )
}

/// Returns the server's counters since its start, a line for each subject.
fn counters(status: &Status) -> String {
    let Status { memory, workers, durability, reply_cache, metadata, .. } = status;
    let shared = match durability.batches {
        0 => String::new(),
        batches => format!(" ({:.1} per sync)", durability.operations as f64 / batches as f64),
    };
    let lines = [
        (
            "payload",
            format!("read {}, written {}", format_size(status.bytes_read), format_size(status.bytes_written)),
        ),
        (
            "connections",
            format!(
                "{} of {}, {} encrypted ({} by the kernel), {} requests in flight",
                count(status.connections),
                count(status.connections_limit),
                count(status.encrypted),
                count(status.encrypted_in_kernel),
                count(status.inflight)
            ),
        ),
        (
            "memory",
            format!(
                "buffers {} of {}, process {}",
                format_size(memory.used_bytes),
                format_size(memory.limit_bytes),
                format_size(memory.resident_bytes)
            ),
        ),
        (
            "workers",
            format!(
                "{} of {} busy, {} of {} requests waiting, {} turned away",
                workers.busy,
                workers.threads,
                count(workers.queued),
                count(workers.queue_limit),
                count(workers.rejected)
            ),
        ),
        (
            "durability",
            format!(
                "{} syncs for {} operations{shared}, {} failed, p99 {}",
                count(durability.batches),
                count(durability.operations),
                count(durability.failures),
                latency(durability.latency.p99_ns)
            ),
        ),
        (
            "metadata",
            format!(
                "{} of {}: {} entries listed, {} names, attributes of {} files that are not open",
                format_size(metadata.bytes),
                format_size(metadata.limit_bytes),
                count(metadata.listed),
                count(metadata.names),
                count(metadata.files)
            ),
        ),
        (
            "from memory",
            format!(
                "{} listings, {} not; {} GETATTR, LOOKUP and ACCESS of files that are not open, {} not",
                count(metadata.listing_hits),
                count(metadata.listing_misses),
                count(metadata.file_hits),
                count(metadata.file_misses)
            ),
        ),
        (
            "reply cache",
            format!(
                "{} replies, {}, {} retransmissions answered, {} still in progress",
                count(reply_cache.entries),
                format_size(reply_cache.bytes),
                count(reply_cache.hits),
                count(reply_cache.in_progress_hits)
            ),
        ),
    ];
    let limits = status.rate_limits.iter().map(|limit| ("rate limit", rate_limit(limit))).collect::<Vec<_>>();
    let state = status.client_state.as_ref().map(client_state).unwrap_or_default();
    let cache = status.pool.as_ref().map(control::pool_lines);
    let cache = cache.unwrap_or_else(|| vec![("cache", "none configured".to_owned())]);
    lines
        .iter()
        .chain(&limits)
        .chain(&state)
        .chain(&cache)
        .map(|(name, text)| format!("{name:<12} {text}\n"))
        .collect()
}

/// Returns the lines about the state of clients.
fn client_state(state: &ClientStateStatus) -> Vec<(&'static str, String)> {
    vec![
        (
            "state",
            format!(
                "{} NFSv4 clients, {} sessions, {} opens, {} delegations; {} NLM hosts, {} shares; {} locks, {} waited for; {} copies",
                count(state.clients),
                count(state.sessions),
                count(state.opens),
                count(state.delegations),
                count(state.hosts),
                count(state.shares),
                count(state.locks),
                count(state.blocked),
                count(state.copies)
            ),
        ),
        (
            "call-backs",
            format!(
                "{} answered, {} waiting, {} given up; {} delegations recalled, {} revoked",
                count(state.callbacks),
                count(state.callbacks_waiting),
                count(state.callbacks_given_up),
                count(state.recalls),
                count(state.revoked)
            ),
        ),
    ]
}
