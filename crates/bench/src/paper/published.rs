//! The published figures with which the measured ones are compared. Figures are peaks over the numbers of clients.
//!
//! The first source is a white paper on NFS with a host cache on direct-attached storage (Dell HPC, 2013): 48 disks
//! in RAID 60, two 350 GB PCIe SSDs, 64 clients. The second is a study of a parallel file system, PixStor on eight
//! enclosures of 84 disks (2020).

/// One published figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// Number of the figure in the paper.
    pub(crate) number: &'static str,
    /// Name of the phase that repeats the test.
    pub(crate) phase: &'static str,
    pub(crate) baseline: &'static str,
    pub(crate) write_back: &'static str,
    pub(crate) write_through: &'static str,
    /// Peak with write-back divided by the baseline's peak; `None` if the paper gives no figure.
    pub(crate) ratio: Option<f64>,
    /// Differences that a reader must know to compare.
    pub(crate) note: &'static str,
}

impl Figure {
    /// Returns the figure's name in the report.
    pub(crate) fn name(&self) -> &'static str {
        self.phase.strip_prefix("metadata/").unwrap_or(self.phase)
    }
}

pub(crate) const FIGURES: [Figure; 9] = [
    Figure {
        number: "5",
        phase: "sequential write",
        baseline: "about 2,000 MiB/s",
        write_back: "about 400, peak 600 MiB/s",
        write_through: "peak about 1,000 MiB/s",
        ratio: Some(0.3),
        note: "A published loss: every byte went to two SSDs first. COMMIT at the end is timed, there and here.",
    },
    Figure {
        number: "6",
        phase: "sequential read, warm",
        baseline: "about 2,500 MiB/s",
        write_back: "13 to 60 % more, peak about 3,050 MiB/s",
        write_through: "the same",
        ratio: Some(1.22),
        note: "Reads of what was just written. The page cache is dropped in between, as data larger than memory would do.",
    },
    Figure {
        number: "7",
        phase: "random write",
        baseline: "about 1,600/s",
        write_back: "up to 6.4 times the baseline, at 64 clients",
        write_through: "about the baseline",
        ratio: Some(6.4),
        note: "4 KiB, FILE_SYNC, one request in flight for each client. The data fits into the cache, there and here.",
    },
    Figure {
        number: "8",
        phase: "random read, warm",
        baseline: "about 9,300/s",
        write_back: "123,000/s at 32 clients",
        write_through: "the same",
        ratio: Some(13.2),
        note: "4 KiB, one request in flight for each client; the cache was warmed before, the page cache dropped.",
    },
    Figure {
        number: "9",
        phase: "metadata/create",
        baseline: "up to about 40,000/s",
        write_back: "below the baseline",
        write_through: "below the baseline",
        ratio: None,
        note: "A published loss, without a figure. nfs-ganesha answers before a CREATE is durable, Forebay after.",
    },
    Figure {
        number: "10",
        phase: "stat",
        baseline: "not given",
        write_back: "up to 80 % more",
        write_through: "the same",
        ratio: Some(1.8),
        note: "LOOKUP of names that exist, as mdtest's stat.",
    },
    Figure {
        number: "11",
        phase: "metadata/remove",
        baseline: "ahead of the cache",
        write_back: "below the baseline",
        write_through: "below the baseline",
        ratio: None,
        note: "A published loss, without a figure. nfs-ganesha answers before a REMOVE is durable, Forebay after.",
    },
    Figure {
        number: "12",
        phase: "sequential read, cold",
        baseline: "about 2,500 MiB/s",
        write_back: "about 1,050 MiB/s",
        write_through: "not given",
        ratio: Some(0.42),
        note: "A published loss: data went from disk to SSD to client. Server restarted with empty caches.",
    },
    Figure {
        number: "13",
        phase: "random read, cold",
        baseline: "about 9,300/s",
        write_back: "about 80,000/s",
        write_through: "not given",
        ratio: Some(8.6),
        note: "The published cache warmed within a long run; a short run here can only begin to.",
    },
];

/// Further phases that are compared with the baseline.
pub(crate) const OTHERS: [&str; 9] = [
    "durable small file",
    "N-1 segmented write",
    "N-1 segmented read",
    "N-1 strided write",
    "N-1 strided read",
    "4 KiB files/create",
    "4 KiB files/stat",
    "4 KiB files/read",
    "4 KiB files/remove",
];

/// A published peak of a parallel file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parallel {
    pub(crate) name: &'static str,
    /// Name of the phase that repeats the test.
    pub(crate) phase: &'static str,
    pub(crate) published: &'static str,
    /// Name of the peak to compare with, and the published ratio of the two.
    pub(crate) against: Option<(&'static str, f64)>,
}

/// Makes an entry of the table below. See [`Parallel`] for the fields.
const fn parallel(
    name: &'static str,
    phase: &'static str,
    published: &'static str,
    against: Option<(&'static str, f64)>,
) -> Parallel {
    Parallel { name, phase, published, against }
}

pub(crate) const PARALLEL: [Parallel; 13] = [
    parallel("sequential write, a file each", "sequential write", "20.4 GB/s", None),
    parallel("sequential read, a file each", "sequential read, warm", "24.2 GB/s", None),
    parallel("write of one file (N-1)", "N-1 segmented write", "19.3 GB/s", None),
    parallel("read of one file (N-1)", "N-1 segmented read", "24.8 GB/s", None),
    parallel("random write 4 KiB", "random write", "40,000/s (depth 16)", None),
    parallel("random read 4 KiB", "random read, cold", "25,600/s (depth 16)", None),
    parallel("create, empty", "metadata/create", "169,400/s", None),
    parallel("stat, empty", "metadata/stat", "11,000,000/s", None),
    parallel("remove, empty", "metadata/remove", "170,600/s", None),
    parallel("create, 4 KiB", "4 KiB files/create", "68,100/s", Some(("create, empty", 0.40))),
    parallel("stat, 4 KiB", "4 KiB files/stat", "8,200,000/s", Some(("stat, empty", 0.75))),
    parallel("read, 4 KiB", "4 KiB files/read", "44,800/s", None),
    parallel("remove, 4 KiB", "4 KiB files/remove", "400,000/s", Some(("remove, empty", 2.34))),
];
