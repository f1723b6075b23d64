//! The JSON result of a run: job, machine and figures, complete enough to compare with a later run.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::options::{Options, Pattern};
use crate::protocol::{Operation, Version};
use crate::stats::{Latencies, Measured};

/// Version of the form of [`Report`]. It is raised when a reader of the old form would misunderstand the new one.
pub const SCHEMA: u32 = 1;

/// The result of a whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Version of this form, [`SCHEMA`].
    pub schema: u32,
    /// The command line.
    pub command: Vec<String>,
    /// Version of forebay bench.
    pub version: String,
    /// Seconds since 1970-01-01 00:00 UTC when the run began.
    pub started: u64,
    /// Server and export that were measured.
    pub target: String,
    /// Version of NFS; results from before this field are of NFSv3.
    #[serde(default)]
    pub nfs: Version,
    /// Name in reports, if not the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The machine that the clients ran on.
    pub machine: Machine,
    /// The hosts that the clients ran on, if `machine` was only the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentReport>,
    /// Threads that the clients of a host were spread over.
    pub threads: usize,
    /// True if the content of all reads was checked.
    pub verified: bool,
    /// True if the caches of this machine were dropped before each phase.
    pub caches_dropped: bool,
    /// One entry per step and phase, in the order they ran.
    pub phases: Vec<PhaseReport>,
}

impl Report {
    /// Reads a result in JSON.
    ///
    /// # Errors
    /// The file cannot be read or has another [`SCHEMA`].
    pub fn load(path: &Path) -> Result<Self> {
        let what = || format!("the result {} cannot be read", path.display());
        let file = BufReader::new(File::open(path).with_context(what)?);
        let report: Self = serde_json::from_reader(file).with_context(what)?;
        if report.schema != SCHEMA {
            bail!(
                "the result {} has version {}, but this program reads version {SCHEMA}; use the forebay that wrote it",
                path.display(),
                report.schema
            );
        }
        Ok(report)
    }
}

/// A host that clients ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    /// Address at which the controller reached the host.
    pub address: String,
    /// Version of forebay bench on the host.
    pub version: String,
    /// Description of the host.
    pub machine: Machine,
}

/// The description of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub hostname: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processors.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
}

impl Machine {
    /// Returns the description of this machine. Unknown fields are empty.
    #[must_use]
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kibibytes: u64 =
            memory.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        Self {
            hostname: read("/proc/sys/kernel/hostname").trim().to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory: kibibytes << 10,
        }
    }
}

/// One phase of one step, with all its repeats.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PhaseReport {
    /// Name of the step, and of the phase if the step has several. Comparisons match phases by this name.
    pub name: String,
    /// Groups of clients.
    pub groups: Vec<GroupReport>,
    /// The repeats, in the order they ran.
    pub runs: Vec<Run>,
}

/// One group of clients of a step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GroupReport {
    /// Pattern of the clients.
    pub pattern: Pattern,
    /// Options of the clients.
    pub options: Options,
}

/// One repeat of a phase. Rates are per second of [`Run::seconds`], latencies in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Time of the first request, in seconds since 1970; 0 if unknown.
    #[serde(default)]
    pub began: f64,
    /// How long it took, from the first request to the last reply.
    pub seconds: f64,
    /// Operations completed.
    pub operations: u64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Payload bytes read and written.
    pub bytes: u64,
    /// Payload bytes per second.
    pub bytes_per_second: f64,
    /// Directory entries listed per second.
    pub entries_per_second: f64,
    /// Requests that the server answered with NFS3ERR_JUKEBOX or NFS4ERR_DELAY. They were sent again 10 ms later.
    pub put_off: u64,
    /// Time from the first request of an operation to its last reply.
    pub latency: Latency,
    /// Time from request to reply, for each procedure of NFSv3, or main operation of the COMPOUNDs of NFSv4.
    pub procedures: Vec<ProcedureReport>,
    /// Figures of each second.
    pub series: Vec<SecondReport>,
    /// CPU seconds that the clients used.
    pub client_cpu: Option<f64>,
    /// CPU seconds that the server used, if it is on this machine.
    pub server_cpu: Option<f64>,
    /// CPU seconds of all other processes on this machine. Known only if all clients are on this machine and the
    /// server's CPU time is known.
    #[serde(default)]
    pub other_cpu: Option<f64>,
}

/// A distribution of latencies, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median: half of the operations were faster.
    pub p50: f64,
    /// 90 % were faster.
    pub p90: f64,
    /// 99 % were faster.
    pub p99: f64,
    /// 99.9 % were faster.
    pub p999: f64,
    /// 99.99 % were faster.
    pub p9999: f64,
    /// Largest latency.
    pub max: f64,
}

/// Requests of one procedure or operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcedureReport {
    /// Name of the procedure or operation.
    pub procedure: String,
    /// Replies received.
    pub count: u64,
    /// Time from request to reply.
    pub latency: Latency,
}

/// The figures of one second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct SecondReport {
    /// Operations completed in this second.
    pub operations: u64,
    /// Payload bytes moved in this second.
    pub bytes: u64,
    /// Mean latency of the operations completed in this second, in microseconds.
    pub mean: f64,
    /// Largest latency of an operation completed in this second, in microseconds.
    pub max: f64,
}

fn microseconds(nanoseconds: f64) -> f64 {
    (nanoseconds / 10.0).round() / 100.0
}

impl Latency {
    /// Returns the mean, the quantiles and the maximum of a histogram, in microseconds.
    fn of(latencies: &Latencies) -> Self {
        let at = |quantile: f64| microseconds(latencies.0.value_at_quantile(quantile) as f64);
        Self {
            mean: microseconds(latencies.0.mean()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: microseconds(latencies.0.max() as f64),
        }
    }
}

impl Run {
    /// Computes the figures of one repeat of a phase, as they go into the result.
    pub(crate) fn new(measured: &Measured) -> Self {
        let Measured { stats, began, seconds, client_cpu, server_cpu, other_cpu } = measured;
        let (seconds, client_cpu, server_cpu) = (*seconds, *client_cpu, *server_cpu);
        let operations = stats.operations.0.len();
        let procedures = Operation::ALL.iter().zip(&stats.requests).filter_map(|(operation, latencies)| {
            let latencies = latencies.as_ref()?;
            let procedure = operation.name().to_owned();
            Some(ProcedureReport { procedure, count: latencies.0.len(), latency: Latency::of(latencies) })
        });
        let series = stats.seconds.iter().map(|second| SecondReport {
            operations: second.operations,
            bytes: second.bytes,
            mean: microseconds(second.latency_sum as f64 / second.operations.max(1) as f64),
            max: microseconds(second.latency_max as f64),
        });
        Self {
            began: *began,
            seconds,
            operations,
            operations_per_second: operations as f64 / seconds,
            bytes: stats.bytes,
            bytes_per_second: stats.bytes as f64 / seconds,
            entries_per_second: stats.entries as f64 / seconds,
            put_off: stats.put_off,
            latency: Latency::of(&stats.operations),
            procedures: procedures.collect(),
            series: series.collect(),
            client_cpu,
            server_cpu,
            other_cpu: *other_cpu,
        }
    }
}

/// Returns the median; 0 if there are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
