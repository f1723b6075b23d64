//! One measurement of one system, kept in a file of its own, so that an interrupted run can continue.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::plan::{Plan, Test};
use super::storage::DiskSample;
use super::system::System;
use crate::report::topic::Labelled;
use crate::result::Report;

/// The identity of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) test: Test,
    pub(crate) clients: u32,
    pub(crate) system: System,
    pub(crate) repeat: u32,
}

/// The result of a measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) key: Key,
    /// Version of the server.
    pub(crate) version: String,
    /// Load average over a minute when the measurement began. It shows how much other work the machine had.
    pub(crate) load: f64,
    pub(crate) report: Report,
    /// Activity of the disks during the measurement, if it was recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) disk: Vec<DiskSample>,
}

impl Key {
    /// Returns the path of the result of this measurement below the working directory.
    fn file(&self, dir: &Path) -> PathBuf {
        let Self { test, clients, system, repeat } = self;
        dir.join("cells").join(format!("{}-{clients}-{}-{repeat}.json", test.name(), system.name()))
    }

    /// Returns a description for people.
    pub(crate) fn describe(&self) -> String {
        let clients =
            if self.clients == 1 { "1 client".to_owned() } else { format!("{} clients", self.clients) };
        format!("{}, {clients}, {}", self.test.name(), self.system.name())
    }

    /// Returns true if the measurement has been made.
    pub(crate) fn is_there(&self, dir: &Path) -> bool {
        self.file(dir).exists()
    }

    /// Returns the measurement, if it has been made.
    pub(crate) fn load(&self, dir: &Path) -> Result<Option<Cell>> {
        let path = self.file(dir);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        let cell = serde_json::from_slice(&text);
        let cell = cell.with_context(|| format!("{} is damaged; remove it", path.display()))?;
        Ok(Some(cell))
    }
}

impl Cell {
    /// Saves the result. The file has the whole result or does not exist.
    pub(crate) fn save(&self, dir: &Path) -> Result<()> {
        let path = self.key.file(dir);
        let new = path.with_extension("new");
        let what = || format!("{} cannot be written", path.display());
        fs::write(&new, serde_json::to_vec(self)?).with_context(what)?;
        fs::rename(&new, &path).with_context(what)
    }
}

/// Makes the working directory, or opens that of an interrupted run with the same plan. The directory is locked until
/// the returned file is closed.
pub(crate) fn open(dir: &Path, plan: &Plan, resume: bool) -> Result<File> {
    let (cells, file) = (dir.join("cells"), dir.join("plan.json"));
    fs::create_dir_all(&cells).with_context(|| format!("{} cannot be made", cells.display()))?;
    let shown = dir.display();
    let path = dir.join("lock");
    let lock = File::create(&path).with_context(|| format!("{} cannot be made", path.display()))?;
    if lock.try_lock().is_err() {
        bail!("another run is at work in {shown}; wait for its end, or use another --dir");
    }
    match fs::read(&file) {
        Ok(_) if !resume => {
            bail!("{shown} has results already; add --resume to go on with them, or use another --dir")
        }
        Ok(text) => {
            let old: Plan =
                serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))?;
            if old != *plan {
                bail!("the results in {shown} are of a run with other options; use another --dir");
            }
        }
        Err(_) => fs::write(&file, serde_json::to_vec_pretty(plan)?)
            .with_context(|| format!("{} cannot be written", file.display()))?,
    }
    Ok(lock)
}

/// Returns one result for each system. The repeats of a measurement become the repeats of its phases.
pub(crate) fn by_system(cells: &[Cell]) -> Vec<Labelled> {
    let mut merged: Vec<(Key, Report)> = Vec::new();
    for Cell { key, report, .. } in cells {
        let same = |known: &Key| Key { repeat: key.repeat, ..*known } == *key;
        let Some((_, known)) = merged.iter_mut().find(|(known, _)| same(known)) else {
            merged.push((*key, report.clone()));
            continue;
        };
        for phase in &report.phases {
            match known.phases.iter_mut().find(|known| known.name == phase.name) {
                Some(known) => known.runs.extend(phase.runs.iter().cloned()),
                None => known.phases.push(phase.clone()),
            }
        }
    }
    merged.sort_by_key(|(key, _)| System::ALL.iter().position(|system| *system == key.system));
    let labelled = |(key, report): (Key, Report)| Labelled { label: key.system.name().to_owned(), report };
    merged.into_iter().map(labelled).collect()
}
