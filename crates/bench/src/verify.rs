//! Checks, after a crash or at any other time, that files have the content that a run recorded, and that names exist
//! or not as promised.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use forebay_wire::nfs3::StableHow;

use crate::names::{Fate, Promise};
use crate::options::Options;
use crate::part::{Alone, Part};
use crate::protocol::Handle;
use crate::runner::Runner;
use crate::settings::Settings;
use crate::setup::{Phase, Setup};
use crate::state::{self, UnitFile};
use crate::workload::{Access, Contents, Data, DataPlan, Workload};

const DEPTH: u16 = 4;
/// Clients that read small files.
const READERS: usize = 16;

/// The amount of data that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Data files.
    pub files: usize,
    /// Bytes in the data files.
    pub bytes: u64,
    /// Small files and directories.
    pub names: usize,
}

/// Reads every unit and looks up every name in the state file.
///
/// # Errors
/// One sentence about the first bad unit: older than promised, newer than sent, torn, or missing. Or about the first
/// bad name: lost, without its content, or back after its removal.
pub fn verify(settings: Settings, state: &Path) -> Result<Checked> {
    let options = Options { uid: settings.uid, ..Options::default() };
    let mut gate = Alone;
    let mut runner = Runner::new(settings, Part::WHOLE, &mut gate)?;
    let setup = &mut runner.setup;
    let (files, names) = state::load(state, |name| {
        let found = setup.session.lookup(&setup.dir, name.as_bytes())?;
        found.ok_or_else(|| anyhow!("the file {name} is gone"))
    })?;
    let checked = Checked {
        files: files.len(),
        bytes: files.iter().map(|(file, _)| file.size).sum(),
        names: names.len(),
    };
    let wrong = "the data differs from the state file";
    let filled = find_names(setup, names).context(wrong)?;
    for phase in [units_phase(files), contents_phase(filled)] {
        runner.in_batches(phase, &options).context(wrong)?;
    }
    runner.close();
    Ok(checked)
}

/// Returns the phase that reads all units of the data files.
fn units_phase(files: Vec<UnitFile>) -> Phase {
    const RECORD: u64 = 1 << 20;
    let part = |(file, unit): UnitFile| -> (Box<dyn Workload>, u16) {
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
        (Box::new(Data::new(plan, DEPTH)), DEPTH)
    };
    Phase { name: "verify".to_owned(), parts: files.into_iter().map(part).collect() }
}

/// Returns the phase that reads the small files that must have their content.
fn contents_phase(files: Vec<(Handle, Promise)>) -> Phase {
    let files: Arc<[_]> = files.into();
    let clients = READERS.min(files.len());
    let part = |first| -> (Box<dyn Workload>, u16) {
        (Box::new(Contents::new(files.clone(), first, clients, DEPTH)), DEPTH)
    };
    Phase { name: "verify".to_owned(), parts: (0..clients).map(part).collect() }
}

/// Looks up every name. Returns the files that must have their content.
fn find_names(setup: &mut Setup, names: Vec<Promise>) -> Result<Vec<(Handle, Promise)>> {
    let mut dirs: HashMap<String, Option<Handle>> = HashMap::new();
    let mut filled = Vec::new();
    for promise in names {
        let dir = match dirs.get(&promise.dir) {
            Some(dir) => *dir,
            None => {
                let found = walk(setup, &promise.dir)?;
                dirs.insert(promise.dir.clone(), found);
                found
            }
        };
        let found = match dir {
            Some(dir) => setup.session.lookup(&dir, promise.name.as_bytes())?,
            None => None,
        };
        if let Some(what) = promise.broken(found.is_some()) {
            bail!("{}/{} {what}", promise.dir, promise.name);
        }
        if let (Some(found), Fate::Filled) = (found, promise.fate) {
            filled.push((found, promise));
        }
    }
    Ok(filled)
}

/// Returns the directory at a path below the directory of all runs.
fn walk(setup: &mut Setup, path: &str) -> Result<Option<Handle>> {
    let mut at = setup.dir;
    for name in path.split('/') {
        match setup.session.lookup(&at, name.as_bytes())? {
            Some(found) => at = found,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}
