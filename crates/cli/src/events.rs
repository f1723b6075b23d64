//! `forebay events`.

use std::ops::ControlFlow;

use forebay_control::{Event, Past, Severity};

use crate::monitor_args::EventsArgs;
use crate::output::{self, BAD, GOOD, WARN};
use crate::{Exit, control};

/// Shows past events. With `--follow`, continues with new events until interrupted.
pub(crate) fn events(args: &EventsArgs) -> anyhow::Result<Exit> {
    let client = control::find(&args.target)?;
    let mut outcome = Ok(());
    let mut shown = false;
    let past = Past { last: args.last, since_ns: args.since.map(|moment| moment.0) };
    client.events(past, args.follow, |event| {
        shown = true;
        outcome = if args.json { output::json_line(&event) } else { show(&event) };
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    if !shown && !args.json {
        output::note("No events.");
    }
    Ok(Exit::Done)
}

/// Prints an event as one line, with its local time.
fn show(event: &Event) -> anyhow::Result<()> {
    let style = match event.severity {
        Severity::Info => GOOD,
        Severity::Warning => WARN,
        Severity::Error => BAD,
    };
    let severity = output::paint(style, &format!("{:<7}", event.severity.as_str()));
    let (time, kind) = (output::date_time(event.time_ns), output::printable(&event.kind));
    let message = output::printable(&event.message);
    Ok(output::result(&format!("{time}  {severity}  {kind:<20}  {message}\n"))?)
}
