//! The pieces of the archive: those of the server first, then those of the host.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_config::{Flags, describe, resolve};
use forebay_control::{COLUMNS, Client, Figures, Past, PoolRequest, StatSample, Status};
use serde::Serialize;

use super::{Piece, host, run};
use crate::support_args::SupportArgs;
use crate::{control, output};

/// Time between the two samples of counters.
const BETWEEN: Duration = Duration::from_secs(1);
/// Length of the history.
const HISTORY: Duration = Duration::from_secs(3600);

/// Collects all pieces. `step` is told what comes next.
pub(super) fn collect(args: &SupportArgs, step: &mut dyn FnMut(&str)) -> Vec<Piece> {
    step("the state of the server");
    let (client, status) = match control::find(&args.target) {
        Ok(client) => {
            let status = client.status().map_err(|error| error.to_string());
            (Ok(client), status)
        }
        Err(error) => (Err(output::sentence(&error)), Err(output::sentence(&error))),
    };
    let state_dir = args.target.state_dir.clone();
    let state_dir = state_dir.or_else(|| client.as_ref().ok().map(|client| client.state_dir().to_owned()));
    let mut pieces = vec![
        Piece::new("versions.txt", "versions of forebay, kernel and distribution", Ok(host::versions())),
        Piece::new("status.json", "state of the server, as `forebay status --json`", text(&status)),
    ];
    of_server(&client, state_dir.as_deref(), &mut pieces, step);
    step("the configuration");
    pieces.push(Piece::new(
        "config-file.toml",
        "settings of the configuration file",
        described(&args.config),
    ));
    step("the findings of `forebay doctor`");
    pieces.push(Piece::new(
        "doctor.txt",
        "findings of `forebay doctor` on this host",
        doctor(args, status.is_ok()),
    ));
    host::collect(status.as_ref().ok(), &mut pieces, step);
    pieces
}

/// Adds what the server tells. Without a server, the events come from the state directory.
fn of_server(
    client: &Result<Client, String>,
    state_dir: Option<&Path>,
    pieces: &mut Vec<Piece>,
    step: &mut dyn FnMut(&str),
) {
    let asked =
        |ask: &dyn Fn(&Client) -> Result<String, String>| client.as_ref().map_err(Clone::clone).and_then(ask);
    let config = asked(&|client| {
        client.config().map(|entries| describe(&entries, true)).map_err(|error| error.to_string())
    });
    pieces.push(Piece::new("config.toml", "settings in force, each with its source", config));
    let pool = asked(&|client| text(&client.pool(PoolRequest::Status).map_err(|error| error.to_string())));
    pieces.push(Piece::new("pool.json", "cache devices, as `forebay pool status --json`", pool));
    pieces.push(Piece::new("profile.json", "what clients do, without the names of files", asked(&profile)));
    step("counters");
    let samples = asked(&|client| samples(client).and_then(|samples| text(&Ok(samples))));
    pieces.push(Piece::new("samples.json", "counters twice, one second apart", samples));
    let figures = state_dir.ok_or("no state directory is known".to_owned()).and_then(figures);
    pieces.push(Piece::new("history.csv", "figures of each second of the last hour", figures));
    step("events");
    let events = asked(&events).or_else(|reason| kept_events(state_dir).ok_or(reason));
    pieces.push(Piece::new("events.jsonl", "events, oldest first, one per line", events));
}

/// Returns a value as text of JSON.
fn text<T: Serialize>(value: &Result<T, String>) -> Result<String, String> {
    let value = value.as_ref().map_err(Clone::clone)?;
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// Returns what clients do. Names of files may be confidential, and stay here.
fn profile(client: &Client) -> Result<String, String> {
    let mut activity = client.activity(100).map_err(|error| error.to_string())?;
    activity
        .files
        .entries
        .iter_mut()
        .enumerate()
        .for_each(|(number, file)| file.name = format!("file {number}"));
    text(&Ok(activity))
}

/// Returns two samples of the server's counters. Waits `BETWEEN` after the first, so that rates can be computed.
fn samples(client: &Client) -> Result<Vec<StatSample>, String> {
    let sample = || client.sample().map_err(|error| error.to_string());
    let first = sample()?;
    std::thread::sleep(BETWEEN);
    Ok(vec![first, sample()?])
}

/// Returns the figures of the last hour that a server has kept, with one line for each second.
fn figures(state_dir: &Path) -> Result<String, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let kept = Figures::kept_in(state_dir, now)
        .map_err(|error| format!("the history in {} cannot be read: {error}", state_dir.display()))?;
    let mut text = format!("time_ms,{}\n", COLUMNS.join(","));
    for point in kept.last(HISTORY, HISTORY.as_secs() as usize, now).points {
        let values: Vec<String> = point.values().iter().map(ToString::to_string).collect();
        text.push_str(&format!("{},{}\n", point.time_ms, values.join(",")));
    }
    Ok(text)
}

/// Returns all events that the server has kept, as lines of JSON.
fn events(client: &Client) -> Result<String, String> {
    let mut lines = String::new();
    let mut add = |event: &forebay_control::Event| {
        if let Ok(line) = serde_json::to_string(event) {
            lines.push_str(&(line + "\n"));
        }
    };
    let asked = client.events(Past { last: None, since_ns: None }, false, |event| {
        add(&event);
        ControlFlow::Continue(())
    });
    asked.map(|_| lines).map_err(|error| error.to_string())
}

/// Returns the events that the last server has kept, if its state directory can be read.
fn kept_events(state_dir: Option<&Path>) -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(state_dir?.join(name)).ok();
    let files: Vec<String> = ["events.old.jsonl", "events.jsonl"].into_iter().filter_map(read).collect();
    (!files.is_empty()).then(|| files.concat())
}

/// Returns the settings of a configuration file, or its mistakes. The text of the file itself stays here: a comment
/// may have anything.
fn described(file: &Path) -> Result<String, String> {
    if !file.exists() {
        return Err(format!("{} does not exist", file.display()));
    }
    let flags = Flags { config: Some(PathBuf::from(file)), ..Flags::default() };
    Ok(match resolve(&flags) {
        Ok(resolved) => describe(&resolved.settings.entries(), true),
        Err(problems) => format!("The file has mistakes:\n{problems}\n"),
    })
}

/// Returns the findings of `forebay doctor`, which a process of its own makes: a check may wait for a file system that
/// does not answer. Without a server that `runs`, they are for the settings of the configuration file.
fn doctor(args: &SupportArgs, runs: bool) -> Result<String, String> {
    let own = std::env::current_exe().map_err(|error| format!("forebay does not find itself: {error}"))?;
    let mut words = vec!["doctor".to_owned()];
    if let Some(dir) = &args.target.state_dir {
        words.extend(["--state-dir".to_owned(), dir.display().to_string()]);
    }
    let flags = Flags { config: Some(args.config.clone()), ..Flags::default() };
    if !runs && resolve(&flags).is_ok() {
        words.extend(["--config".to_owned(), args.config.display().to_string()]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run::output(&own.to_string_lossy(), &words)
}

/// Returns the directories that the server serves.
pub(super) fn served(status: Option<&Status>) -> Vec<PathBuf> {
    status.iter().flat_map(|status| &status.exports).map(|export| export.path.clone()).collect()
}
