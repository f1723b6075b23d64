//! The published figures that ours are set beside: a white paper on NFS with a host cache on direct-attached storage
//! (Dell HPC, 2013): 48 disks in RAID 60, two 350 GB PCIe SSDs, 64 clients. Figures are peaks over the numbers of clients.

/// One published figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// Its number in the paper.
    pub(crate) number: &'static str,
    /// Name of our phase.
    pub(crate) phase: &'static str,
    pub(crate) baseline: &'static str,
    pub(crate) write_back: &'static str,
    pub(crate) write_through: &'static str,
    /// Peak with write-back divided by peak of the baseline, where a figure can be given.
    pub(crate) ratio: Option<f64>,
    /// What has to be known to compare.
    pub(crate) note: &'static str,
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
