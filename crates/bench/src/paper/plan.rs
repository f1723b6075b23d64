//! The plan: the published tests, scaled to this machine.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::PaperArgs;
use crate::job::{Group, Job, Step};
use crate::options::{Layout, Options, Pattern, Size, Stable};
use crate::result::Machine;

/// The published numbers of clients.
const CLIENTS: [u32; 8] = [1, 2, 4, 8, 16, 32, 48, 64];
/// Further numbers of clients, for metadata only.
const THREADS: [u32; 3] = [128, 256, 512];
const QUICK_CLIENTS: [u32; 3] = [1, 8, 64];
const MIB: u64 = 1 << 20;
/// Unit of random data in bytes; the data of a client is a multiple of this.
const UNIT: u64 = 64 << 10;
/// Bytes of a cache device for each byte of random data: the published ratio of 350 GB to 256 GB.
const CACHE_SHARE: f64 = 1.37;

/// A test: phases that run on one start of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// Figures 5 and 6: write and read files from front to back, with 1 MiB records.
    Sequential,
    /// Figures 7 and 8: 4 KiB at random places, stable writes, reads of a warm cache.
    Random,
    /// Figures 9 to 11: create, stat, remove.
    Metadata,
    /// Figures 12 and 13: sequential and random read with empty caches.
    Cold,
    /// All clients in one file.
    Shared,
    /// Files of 4 KiB: create, stat, read, remove.
    SmallFiles,
    /// Writes without a promise of durability against durable writes.
    Promise,
    /// Reads and writes for a longer time, to record the requests that reach the disks in each second.
    Trace,
}

impl Test {
    pub(crate) const ALL: [Self; 8] = [
        Self::Sequential,
        Self::Random,
        Self::Metadata,
        Self::Cold,
        Self::Shared,
        Self::SmallFiles,
        Self::Promise,
        Self::Trace,
    ];

    /// Returns the test's name in file names.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::Metadata => "metadata",
            Self::Cold => "cold",
            Self::Shared => "shared",
            Self::SmallFiles => "small-files",
            Self::Promise => "promise",
            Self::Trace => "trace",
        }
    }
}

/// Sizes and times of a run. A run can be resumed only with an equal plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) clients: Vec<u32>,
    /// Further numbers of clients for metadata.
    pub(crate) threads: Vec<u32>,
    /// Seconds of each random phase.
    pub(crate) seconds: f64,
    /// Seconds of the trace.
    pub(crate) trace_seconds: f64,
    /// Bytes of sequential data, over all clients.
    pub(crate) data: u64,
    /// Bytes of random data of each client.
    pub(crate) random: u64,
    /// Small files of a single client; with many clients, each makes fewer.
    pub(crate) items: u32,
    pub(crate) repeat: u32,
    /// True if the page cache is dropped before cold phases.
    pub(crate) drops_caches: bool,
    /// Model of the emulated array, or path of a directory on a real array.
    pub(crate) array: String,
}

impl Plan {
    /// Scales the published tests to this machine: amounts of data follow from memory, the emulated array from
    /// processors and memory. Arguments have priority.
    pub(crate) fn new(args: &PaperArgs, machine: &Machine) -> Result<Self> {
        let quick = args.quick;
        let clients = match args.clients.as_slice() {
            [] if quick => QUICK_CLIENTS.to_vec(),
            [] => CLIENTS.to_vec(),
            given => given.to_vec(),
        };
        if clients.contains(&0) {
            bail!("--clients must be at least 1");
        }
        let most = clients.iter().copied().max().unwrap_or(1);
        // The emulated array keeps written data in memory.
        let affordable = (machine.memory / 32).max(64 * MIB);
        let data =
            args.data.map_or(if quick { 256 * MIB } else { 4096 * MIB }.min(affordable), |size| size.0);
        let large = machine.cpus >= 8 && machine.memory >= 64 << 30;
        let model = if large && !quick { "nl-sas-48" } else { "nl-sas-8" };
        let array = match (&args.array, &args.model) {
            (Some(dir), _) => dir.display().to_string(),
            (None, model_given) => model_given.clone().unwrap_or_else(|| model.to_owned()),
        };
        Ok(Self {
            threads: if quick || !args.clients.is_empty() { Vec::new() } else { THREADS.to_vec() },
            clients,
            seconds: args.seconds.unwrap_or(if quick { 3.0 } else { 20.0 }),
            trace_seconds: args.seconds.map_or(if quick { 10.0 } else { 60.0 }, |seconds| seconds * 3.0),
            data,
            random: (data * 2 / u64::from(most) / UNIT).max(1) * UNIT,
            items: if quick { 150 } else { 1500 },
            repeat: args.repeat.unwrap_or(if quick { 1 } else { 3 }),
            drops_caches: !args.keep_page_cache,
            array,
        })
    }

    /// Returns the bytes of each of two cache devices.
    pub(crate) fn cache_size(&self) -> u64 {
        let most = self.clients.iter().copied().max().unwrap_or(1);
        let random = (self.random * u64::from(most)) as f64 * CACHE_SHARE;
        ((random as u64).max(self.data) / MIB).max(256) * MIB
    }

    /// Returns the numbers of clients with which a test is run.
    pub(crate) fn clients_of(&self, test: Test) -> Vec<u32> {
        let middle = self.clients.get(self.clients.len() / 2).copied().unwrap_or(1);
        let most = self.clients.iter().copied().max().unwrap_or(1);
        match test {
            Test::Sequential | Test::Random | Test::Cold => self.clients.clone(),
            Test::Metadata => self.clients.iter().chain(&self.threads).copied().collect(),
            Test::Shared | Test::Trace => vec![middle],
            Test::SmallFiles | Test::Promise => vec![most],
        }
    }

    /// Returns the bytes of sequential data of each of `clients` clients.
    fn piece(&self, clients: u32) -> Size {
        Size((self.data / u64::from(clients) / MIB).max(1) * MIB)
    }

    /// Returns the sequential test: each client writes a file of its own, then reads it.
    pub(crate) fn sequential(&self, clients: u32) -> Job {
        let options = Options { clients, depth: 4, size: self.piece(clients), ..Options::default() };
        job([
            step("sequential write", Pattern::Seqwrite, &options, None),
            step("sequential read, warm", Pattern::Seqread, &options, None),
        ])
    }

    fn small(&self, clients: u32) -> Options {
        Options { clients, size: Size(self.random), ..Options::default() }
    }

    pub(crate) fn random_write(&self, clients: u32) -> Job {
        job([step("random write", Pattern::Randwrite, &self.small(clients), Some(self.seconds))])
    }

    pub(crate) fn random_read(&self, clients: u32) -> Job {
        job([step("random read, warm", Pattern::Randread, &self.small(clients), Some(self.seconds))])
    }

    /// Returns a job that reads nearly all of the random data. Its records are too small for a cache to treat them as
    /// a stream.
    pub(crate) fn warm_up(&self, clients: u32) -> Job {
        let count = Some(self.random / UNIT * 3);
        let options = Options { record: Some(Size(UNIT)), depth: 4, count, ..self.small(clients) };
        job([step("warm-up", Pattern::Randread, &options, None)])
    }

    /// Returns a job that makes the files of the random tests.
    pub(crate) fn prepare_random(&self) -> Job {
        let most = self.clients.iter().copied().max().unwrap_or(1);
        job([step("prepare", Pattern::Randread, &Options { count: Some(1), ..self.small(most) }, None)])
    }

    /// Returns a job that makes the files of the cold tests.
    pub(crate) fn prepare_cold(&self, clients: u32) -> Job {
        let options = Options { clients, size: self.piece(clients), count: Some(1), ..Options::default() };
        job([step("prepare", Pattern::Randread, &options, None)])
    }

    /// Returns the test of a sequential read after all caches were removed.
    pub(crate) fn cold_sequential(&self, clients: u32) -> Job {
        let options = Options { clients, depth: 4, size: self.piece(clients), ..Options::default() };
        job([step("sequential read, cold", Pattern::Seqread, &options, None)])
    }

    /// Returns the test of random reads after all caches were removed.
    pub(crate) fn cold_random(&self, clients: u32) -> Job {
        let options = Options { clients, size: self.piece(clients), ..Options::default() };
        job([step("random read, cold", Pattern::Randread, &options, Some(self.seconds))])
    }

    /// Returns the number of small files of each of `clients` clients.
    fn items(&self, clients: u32) -> u32 {
        (self.items * 8 / (clients + 7)).max(self.items / 10).max(1)
    }

    /// Returns the test of small files: made, asked for and removed, and then files of 4 KiB that are written
    /// durably.
    pub(crate) fn metadata(&self, clients: u32) -> Job {
        let items = self.items(clients);
        let made = Options { clients, items, ..Options::default() };
        let asked = Options { clients, items: items.min(32), ..Options::default() };
        let stable = Some(Stable::FileSync);
        let durable = Options { clients, item_size: Size(4096), stable, ..Options::default() };
        job([
            step("metadata", Pattern::Meta, &made, None),
            step("stat", Pattern::Lookup, &asked, Some((self.seconds / 2.0).max(0.1))),
            step("durable small file", Pattern::Smallfile, &durable, Some(self.seconds)),
        ])
    }

    /// Returns a job like mdtest's with 4 KiB written and synced, and 1,024 files in a directory.
    pub(crate) fn small_files(&self, clients: u32) -> Job {
        let options = Options {
            clients,
            items: self.items(clients),
            items_per_dir: 1024,
            item_size: Size(4096),
            stable: Some(Stable::FileSync),
            ..Options::default()
        };
        job([step("4 KiB files", Pattern::Meta, &options, None)])
    }

    /// Returns the test in which all clients use one file, in segments of their own and then in strides.
    pub(crate) fn shared(&self, clients: u32) -> Job {
        let options = |layout| Options {
            clients,
            depth: 4,
            size: self.piece(clients),
            shared: Some(layout),
            ..Options::default()
        };
        let (segmented, strided) = (options(Layout::Segmented), options(Layout::Strided));
        job([
            step("N-1 segmented write", Pattern::Seqwrite, &segmented, None),
            step("N-1 segmented read", Pattern::Seqread, &segmented, None),
            step("N-1 strided write", Pattern::Seqwrite, &strided, None),
            step("N-1 strided read", Pattern::Seqread, &strided, None),
        ])
    }

    /// Returns a job with equal writes, without and with durability. An `async` export answers every write early; a
    /// client gets that from any server with UNSTABLE and no COMMIT. The data is small, because the COMMIT at the end
    /// is part of the run.
    pub(crate) fn promise(&self, clients: u32) -> Job {
        let size = Size((self.random / 16 / UNIT).max(1) * UNIT);
        let sync = Options { clients, size, ..Options::default() };
        let unsafe_writes =
            Options { stable: Some(Stable::Unstable), commit_every: u32::MAX, ..sync.clone() };
        job([
            step("random write, async", Pattern::Randwrite, &unsafe_writes, Some(self.seconds)),
            step("random write, sync", Pattern::Randwrite, &sync, Some(self.seconds)),
        ])
    }

    /// Returns the test whose rates are shown over time: half of the requests are reads.
    pub(crate) fn trace(&self, clients: u32) -> Job {
        let options = Options { read_percent: 50, ..self.small(clients) };
        job([step("random read and write", Pattern::Mixed, &options, Some(self.trace_seconds))])
    }
}

pub(super) fn job(steps: impl IntoIterator<Item = Step>) -> Job {
    Job { steps: steps.into_iter().collect() }
}

pub(super) fn step(name: &str, pattern: Pattern, options: &Options, seconds: Option<f64>) -> Step {
    Step { name: Some(name.to_owned()), seconds, groups: vec![Group { pattern, options: options.clone() }] }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: PaperArgs,
    }

    fn plan(arguments: &str, memory: u64) -> Result<Plan> {
        let words = std::iter::once("paper").chain(arguments.split_whitespace());
        let machine = Machine { memory, cpus: 2, ..Machine::default() };
        Plan::new(&Cli::try_parse_from(words).unwrap().args, &machine)
    }

    #[test]
    fn every_job_of_every_plan_works() {
        for arguments in
            ["", "--quick", "--clients 3,7", "--data 5M --clients 64", "--data 1", "--seconds 0.1 --quick"]
        {
            for memory in [1 << 28, 24 << 30] {
                let plan = plan(arguments, memory).unwrap();
                for test in Test::ALL {
                    for clients in plan.clients_of(test) {
                        let jobs = [
                            plan.sequential(clients),
                            plan.random_write(clients),
                            plan.random_read(clients),
                            plan.warm_up(clients),
                            plan.prepare_random(),
                            plan.prepare_cold(clients),
                            plan.cold_sequential(clients),
                            plan.cold_random(clients),
                            plan.metadata(clients),
                            plan.shared(clients),
                            plan.small_files(clients),
                            plan.promise(clients),
                            plan.trace(clients),
                        ];
                        jobs.iter().for_each(|job| job.check().unwrap());
                    }
                }
            }
        }
    }

    #[test]
    fn the_caches_hold_the_random_data() {
        let plan = plan("--quick", 24 << 30).unwrap();
        assert_eq!(plan.random * 64, 512 * MIB);
        assert!(plan.cache_size() >= 512 * MIB);
    }

    #[test]
    fn cold_phases_drop_the_page_cache_unless_it_is_to_stay() {
        assert!(plan("--quick", 24 << 30).unwrap().drops_caches);
        assert!(!plan("--quick --keep-page-cache", 24 << 30).unwrap().drops_caches);
    }

    #[test]
    fn no_clients_are_refused() {
        assert!(plan("--clients 0", 1 << 30).is_err());
    }
}
