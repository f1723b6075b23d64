//! Checks, after a crash or at any other time, that files hold what a run has left in them.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use forebay_wire::nfs3::StableHow;

use crate::options::Options;
use crate::part::{Alone, Part};
use crate::runner::{Runner, Settings};
use crate::setup::Phase;
use crate::state;
use crate::workload::{Access, Data, DataPlan, Workload};

/// Reads every unit that the state file tells of. Returns files and bytes checked.
///
/// # Errors
/// One sentence on the first unit that is older than what was promised, newer than what was sent, torn, or not there.
pub fn verify(settings: Settings, state: &Path) -> Result<(usize, u64)> {
    const DEPTH: u16 = 4;
    const RECORD: u64 = 1 << 20;
    let options = Options { uid: settings.uid, ..Options::default() };
    let mut gate = Alone;
    let mut runner = Runner::new(settings, Part::WHOLE, &mut gate)?;
    let setup = &mut runner.setup;
    let files = state::load(state, |name| {
        let found = setup.session.lookup(&setup.dir, name.as_bytes())?;
        found.map(|found| found.object).ok_or_else(|| anyhow!("the file {name} is gone"))
    })?;
    let bytes = files.iter().map(|(file, _)| file.size).sum();
    let count = files.len();
    let mut parts: Vec<(Box<dyn Workload>, u16)> = Vec::new();
    for (file, unit) in files {
        let units = file.size / u64::from(unit);
        let most = (RECORD / u64::from(unit)).max(1);
        let per_record = (1..=most).rev().find(|count| units.is_multiple_of(*count)).unwrap_or(1);
        let records = units / per_record;
        let plan = DataPlan {
            files: vec![file],
            access: Access::Sequential { first: 0, stride: 1 },
            read_percent: 100,
            record: unit * per_record as u32,
            unit,
            stable: StableHow::Unstable,
            commit_every: None,
            records,
            limit: Some(records),
            at_rest: true,
            seed: 0,
        };
        parts.push((Box::new(Data::new(plan, DEPTH)), DEPTH));
    }
    let phase = Phase { name: "verify".to_owned(), parts };
    runner.in_batches(phase, &options).context("the data is not what it has to be")?;
    Ok((count, bytes))
}
