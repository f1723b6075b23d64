//! The `forebay` command.

mod adopt;
mod advise;
mod advise_args;
mod announce;
mod args;
mod bench;
mod cached;
mod config;
mod config_args;
mod control;
mod control_args;
mod data_args;
mod doctor;
mod events;
mod generate;
mod hypot;
mod logging;
mod lost;
mod moment;
mod monitor_args;
mod notify;
mod output;
mod policy;
mod policy_args;
mod profile;
mod profile_args;
mod rates;
mod serve;
mod serve_args;
mod service_manager;
mod stat;
mod stat_by;
mod status;
mod support;
mod support_args;
mod top;
mod unit_drop_ins;
mod volume;
mod volume_args;
mod warm;
mod web;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

/// Requests allocate often, and often free memory in another thread (docs/decisions/011-allocator.md).
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The exit code of the program. The numbers are a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The verb has succeeded.
    Done = 0,
    /// The verb has failed.
    Failed = 1,
    /// The command line or the configuration is wrong. Clap uses this code as well.
    Usage = 2,
}

/// Runs the verb of the command line. An error becomes one line on stderr and exit status 1.
fn main() -> ExitCode {
    if let Some(served) = std::env::args_os().nth(1).and_then(|verb| serve_server(&verb)) {
        return ExitCode::from(u8::from(served.is_err()));
    }
    let words = args::with_http_joined(std::env::args_os());
    let exit = run(Cli::parse_from(words).command).unwrap_or_else(|error| {
        if output::is_broken_pipe(&error) {
            // The reader of the results has closed the pipe, which is not a failure.
            return Exit::Done;
        }
        output::error(&output::sentence(&error));
        Exit::Failed
    });
    logging::finish();
    ExitCode::from(exit as u8)
}

/// Runs a verb that only the server uses, to start this program as its helper. Such verbs are not part of the command
/// line. Returns `None` for other verbs.
fn serve_server(verb: &std::ffi::OsStr) -> Option<std::io::Result<()>> {
    match verb.to_str()? {
        forebay_server::UBLK_VERB => Some(forebay_server::control_ublk()),
        forebay_server::HEALTH_VERB => Some(forebay_server::answer_health()),
        forebay_server::PRIVILEGED_VERB => Some(forebay_server::answer_server()),
        forebay_server::NOTIFY_VERB => Some(forebay_server::send_notifications()),
        _ => None,
    }
}

/// Carries out a verb. Returns the exit status, or the error to print.
fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Serve(args) => serve::serve(*args),
        Command::Pool(args) => control::pool(args.command),
        Command::Volume(args) => volume::volume(args.command),
        Command::Mode(args) => control::mode(&args),
        Command::Flush(args) => control::flush(&args),
        Command::Reload(args) => control::reload(&args),
        Command::Config(args) => config::config(args.command),
        Command::Policy(args) => policy::policy(args.command),
        Command::Cached(args) => cached::cached(&args),
        Command::Warm(args) => warm::warm(&args),
        Command::Invalidate(args) => cached::invalidate(&args),
        Command::Lost(args) => lost::lost(args.command),
        Command::Adopt(args) => adopt::adopt(&args),
        Command::Status(args) => status::status(&args),
        Command::Stat(args) => stat::stat(&args),
        Command::Profile(args) => profile::profile(&args),
        Command::Top(args) => top::top(&args),
        Command::Events(args) => events::events(&args),
        Command::Advise(args) => advise::advise(&args),
        Command::Notify(args) => notify::notify(args.command),
        Command::Web(args) => web::web(&args),
        Command::Bench(args) => bench::bench(*args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Support(args) => support::support(&args),
        Command::Completions(args) => generate::completions(args.shell),
        Command::Man(args) => generate::man(args.dir.as_deref()),
        Command::UnitDropIns(args) => unit_drop_ins::unit_drop_ins(&args),
    }
}
