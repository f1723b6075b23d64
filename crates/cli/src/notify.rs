//! `forebay notify`.

use clap::{Args, Subcommand};
use forebay_control::Delivery;

use crate::args::Target;
use crate::output::{self, Align, Table, latency, printable};
use crate::{Exit, control};

#[derive(Debug, Args)]
#[command(after_help = "\
The targets are the [[notify]] of the configuration: programs, webhooks, syslog and the journal. A test goes to a target \
whatever severity the target wants, without another attempt, and does not count against its rate.

Examples:
  forebay notify test
  forebay notify test --target chat
  forebay notify test --json")]
pub(crate) struct NotifyArgs {
    #[command(subcommand)]
    pub(crate) command: NotifyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotifyCommand {
    /// Send a test to each target, and show whether the target took it; the exit code is 1 if one did not
    Test {
        /// Name of the only target to test [default: all]
        #[arg(long = "target", value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        server: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `forebay notify`.
pub(crate) fn notify(command: NotifyCommand) -> anyhow::Result<Exit> {
    let NotifyCommand::Test { name, server, json } = command;
    let deliveries = control::find(&server)?.test_notify(name.as_deref())?;
    match json {
        true => output::json(&deliveries)?,
        false => output::result(&table(&deliveries).render(0))?,
    }
    let all_taken = deliveries.iter().all(|delivery| delivery.error.is_none());
    Ok(if all_taken { Exit::Done } else { Exit::Failed })
}

/// Returns the results of a test as a table, with a row for each target.
fn table(deliveries: &[Delivery]) -> Table {
    let columns =
        [("TARGET", Align::Left), ("KIND", Align::Left), ("TIME", Align::Right), ("RESULT", Align::Left)];
    let mut table = Table::new(&columns);
    for Delivery { target, kind, elapsed_ns, error } in deliveries {
        let result = match error {
            None => output::paint(output::GOOD, "delivered"),
            Some(error) => output::paint(output::BAD, &format!("failed: {}", printable(error))),
        };
        table.row([target.clone(), kind.clone(), latency(*elapsed_ns), result]);
    }
    table
}
