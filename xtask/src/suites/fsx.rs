//! Runs fsx (the crate): random I/O on one file. Each read is compared with the expected contents.

use std::time::Duration;

use anyhow::Result;

use super::{Case, Target, asset, whole};
use crate::setup::tool;

const LIMIT: Duration = Duration::from_secs(300);

struct Run {
    name: &'static str,
    options: &'static str,
    /// Number of operations, also used as the seed, so that a failure can be repeated exactly.
    operations: u32,
}

const RUNS: [Run; 3] = [
    Run { name: "small", options: "", operations: 3_000 },
    Run { name: "large", options: "", operations: 1_000 },
    Run { name: "uncached", options: "noac,sync,rsize=4096,wsize=4096", operations: 2_000 },
];

/// Runs fsx in a guest, once for each kind of mount. A run that ends with an error is a failed case with its output.
pub(super) fn run(target: &mut Target) -> Result<Vec<Case>> {
    let binary = tool("fsx")?;
    RUNS.iter()
        .map(|Run { name, options, operations }| {
            let config = asset(&format!("fsx-{name}.toml"));
            let operations = operations.to_string();
            let binary = binary.to_string_lossy();
            let config = config.to_string_lossy();
            let file = format!("/mnt/{name}");
            let words = [&binary, "-f", &config, "-N", &operations, "-S", &operations, "-P", "/tmp", &file];
            let mut guest = target.guest(LIMIT, words);
            if let Some(nfs) = &mut guest.nfs {
                (*options).clone_into(&mut nfs.options);
            }
            let mut said = String::new();
            let status = guest.run(|line| said.push_str(&String::from_utf8_lossy(line)))?;
            Ok(whole(name, (status != 0).then_some(said)))
        })
        .collect()
}
