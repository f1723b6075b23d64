//! The verbs of `forebay bench`.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};

use crate::ganesha::{self, Ganesha};
use crate::job::Job;
use crate::options::{Options, Pattern};
use crate::protocol::Version;
use crate::recommend::RecommendArgs;
use crate::replay::ReplayArgs;
use crate::report::ReportArgs;
use crate::result::Report;
use crate::runner;
use crate::settings::Settings;
use crate::url::Target;
use crate::verify::Checked;
use crate::{agents, compare, null_server, recommend, replay, report, table, verify};

/// A verb of `forebay bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Put load on an NFS server and measure it.
    Run(Box<RunArgs>),
    /// Repeat the operations of a trace on an NFSv3 server, at their own times or as fast as possible.
    Replay(ReplayArgs),
    /// Compare two results of `run`: B against A.
    Compare(CompareArgs),
    /// Make a page or a picture of results of `run`.
    Report(ReportArgs),
    /// Check that a server has all files, contents and names that a run with --state recorded, also after a crash.
    Verify(VerifyArgs),
    /// Measure disks and SSDs, predict the effect of a cache, and recommend its size.
    Recommend(RecommendArgs),
    /// Put load on a server on behalf of a controller on another host.
    Agent(AgentArgs),
    /// Answer NFSv3 with constants, to find the highest rate of the load generator.
    #[command(hide = true)]
    NullServer(NullServerArgs),
}

/// The server to measure.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The export: nfs://HOST[:PORT]/EXPORT[?OPTION&...]; options: mountport=N, tls=FILE (authorities in PEM form for
    /// TLS), cert=FILE and key=FILE (of the client).
    #[arg(long, required_unless_present = "ganesha")]
    url: Option<Target>,
    /// Start nfs-ganesha on this directory and measure it (root; packages nfs-ganesha-vfs and rpcbind).
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    ganesha: Option<PathBuf>,
    /// Version of NFS that the clients speak.
    #[arg(long, value_enum, default_value_t)]
    vers: Version,
}

impl ServerArgs {
    /// Returns the server, and its process if this call started one. The server lives as long as that value.
    fn start(&self) -> Result<(Target, Option<Ganesha>)> {
        match (&self.url, &self.ganesha) {
            (Some(url), _) => Ok((url.clone(), None)),
            (None, Some(dir)) => {
                ganesha::move_to_private_network()?;
                let ganesha = Ganesha::start(dir, self.vers)?;
                Ok((ganesha.target().clone(), Some(ganesha)))
            }
            (None, None) => bail!("no server is given; give --url"),
        }
    }
}

/// Arguments of `bench run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Spread the clients over these agents instead of running them on this host.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        requires = "token_file",
        conflicts_with = "ganesha"
    )]
    agents: Vec<String>,
    /// File with the secret that this host and the agents share.
    #[arg(long, value_name = "FILE", requires = "agents")]
    token_file: Option<PathBuf>,
    /// Patterns of load, run one after the other.
    #[arg(required_unless_present = "job")]
    patterns: Vec<Pattern>,
    /// Run the steps of this JSON file instead; options of the clients come from the file as well.
    #[arg(long, value_name = "FILE", conflicts_with = "patterns")]
    job: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// Seconds per pattern [default: 10; sequential and metadata patterns end without a limit].
    #[arg(long, short = 't')]
    seconds: Option<f64>,
    /// Run all steps this many times; figures are then medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Threads that the clients are spread over.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Compare the data of every READ with the data written before.
    #[arg(long)]
    verify: bool,
    /// Record the writes in this file, for `bench verify` after a crash; leaves the files on the server.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Leave the files on the server; a later run with equal sizes uses them.
    #[arg(long)]
    keep: bool,
    /// Drop the caches of this machine before each measured phase (root, server on this machine).
    #[arg(long)]
    drop_caches: bool,
    /// Process id of the server, for its CPU time [default: the process that listens on the port, if local].
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Name of this measurement in reports [default: the URL].
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Write the result to this file as JSON; `-` is the standard output.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Arguments of `bench compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Result that is the reference.
    a: PathBuf,
    /// Result that is compared with the reference.
    b: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `bench verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// State file written by `bench run --state`.
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// User id of the reads.
    #[arg(long, default_value_t = 0)]
    uid: u32,
}

/// Arguments of `bench agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Address on which to wait for a controller; the address in use goes to stdout.
    #[arg(long, default_value = "127.0.0.1:20499")]
    listen: SocketAddr,
    /// File with the secret shared with the controller: at least 16 bytes, accessible to its owner only.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// End after one job.
    #[arg(long)]
    once: bool,
}

/// Arguments of `bench null-server`.
#[derive(Debug, Args)]
pub struct NullServerArgs {
    /// Address to listen on; NFS and MOUNT share the port.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Answer one request out of this many with NFS3ERR_JUKEBOX; 0 means none.
    #[arg(long, default_value_t = 0)]
    put_off: u32,
}

/// Runs one verb. Results go to stdout, everything for people to stderr.
///
/// # Errors
/// One sentence about the failure.
pub fn execute(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Run(args) => run(*args),
        BenchCommand::Replay(args) => run_replay(&args),
        BenchCommand::Compare(args) => run_compare(&args),
        BenchCommand::Report(args) => report::execute(&args),
        BenchCommand::Verify(args) => run_verify(&args),
        BenchCommand::Recommend(args) => recommend::execute(&args),
        BenchCommand::Agent(args) => agents::serve(args.listen, &args.token_file, args.once),
        BenchCommand::NullServer(args) => null_server::serve(args.listen, args.put_off, |address| {
            // The server keeps serving even if no process reads its standard output, so an error is ignored.
            let _ = writeln!(io::stdout(), "nfs://{address}/");
        }),
    }
}

/// Runs a job on this host or on agents, prints a table to standard error, and writes the result if the arguments
/// name a file.
fn run(args: RunArgs) -> Result<()> {
    let job = match &args.job {
        Some(path) => Job::load(path)?,
        None => Job::of_patterns(&args.patterns, &args.options, args.seconds)?,
    };
    if args.threads == 0 {
        bail!("--threads must be at least 1");
    }
    let (target, _ganesha) = args.server.start()?;
    let settings = Settings {
        target,
        nfs: args.server.vers,
        repeat: args.repeat,
        threads: args.threads,
        verify: args.verify,
        state: args.state,
        keep: args.keep,
        drop_caches: args.drop_caches,
        server_pid: args.server_pid,
        uid: args.options.uid,
        label: args.label,
        command: std::env::args().collect(),
    };
    let report = match &args.token_file {
        Some(token_file) => agents::run(&settings, &job, &args.agents, token_file)?,
        None => runner::run(settings, &job)?,
    };
    eprint!("{}", table::table(&report));
    match &args.output {
        Some(path) => write_json(path, &report),
        None => Ok(()),
    }
}

/// Replays a trace, prints a table to standard error, and writes the result if the arguments name a file.
fn run_replay(args: &ReplayArgs) -> Result<()> {
    let report = replay::replay(args)?;
    eprint!("{}", table::table(&report));
    match &args.output {
        Some(path) => write_json(path, &report),
        None => Ok(()),
    }
}

/// Writes a value as JSON to a file, or to standard output if the path is `-`.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let what = || format!("the result {} cannot be written", path.display());
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    if path == Path::new("-") {
        io::stdout().write_all(text.as_bytes()).with_context(what)
    } else {
        std::fs::write(path, text).with_context(what)
    }
}

/// Prints the ratios of two results, phase by phase, as a table or as JSON. Fails without a common phase.
fn run_compare(args: &CompareArgs) -> Result<()> {
    let (a, b) = (Report::load(&args.a)?, Report::load(&args.b)?);
    let comparisons = compare::compare(&a, &b);
    if comparisons.is_empty() {
        bail!("{} and {} have no phase in common", args.a.display(), args.b.display());
    }
    if args.json {
        return write_json(Path::new("-"), &comparisons);
    }
    io::stdout()
        .write_all(compare::table(&comparisons, (a.nfs, b.nfs)).as_bytes())
        .context("the comparison cannot be printed")
}

/// Checks the files of an earlier run against its state file, after a crash of the server. Fails with the first lost
/// or torn data, or removed name.
fn run_verify(args: &VerifyArgs) -> Result<()> {
    let (target, _ganesha) = args.server.start()?;
    let (uid, nfs) = (args.uid, args.server.vers);
    let settings = Settings { verify: true, keep: true, uid, nfs, ..Settings::of(target) };
    let Checked { files, bytes, names } = verify::verify(settings, &args.state)?;
    eprintln!(
        "{files} files, {bytes} bytes, {names} names: no acknowledged data is lost, no data is torn, no removed name is back"
    );
    Ok(())
}
