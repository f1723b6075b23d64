//! The state file: for every unit, the newest generation sent and the newest one promised. With it another process
//! can check the data after the server or the machine has crashed.
//!
//! The file has one line of JSON, then one line for each name that was made or removed. Then follow, for each file of
//! the first line, the generations sent and the generations durable, four bytes each, little-endian.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::names::Promise;
use crate::protocol::Handle;
use crate::workload::DataFile;

const SCHEMA: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Header {
    schema: u32,
    files: Vec<FileHeader>,
    /// Number of lines with names.
    names: usize,
}

#[derive(Serialize, Deserialize)]
struct FileHeader {
    id: u64,
    name: String,
    size: u64,
    unit: u32,
}

/// Writes the state of names, and of files that have a ledger.
pub(crate) fn save<'a>(
    path: &Path,
    files: impl Iterator<Item = &'a Arc<DataFile>>,
    names: &[Promise],
) -> Result<()> {
    let files: Vec<&Arc<DataFile>> = files.filter(|file| file.ledger.is_some()).collect();
    let header = Header {
        schema: SCHEMA,
        files: files
            .iter()
            .map(|file| FileHeader {
                id: file.id,
                name: file.name.clone(),
                size: file.size,
                unit: file.ledger.as_ref().map_or(0, Ledger::unit),
            })
            .collect(),
        names: names.len(),
    };
    let what = || format!("the state file {} cannot be written", path.display());
    let mut out = BufWriter::new(File::create(path).with_context(what)?);
    serde_json::to_writer(&mut out, &header).with_context(what)?;
    out.write_all(b"\n").with_context(what)?;
    for name in names {
        serde_json::to_writer(&mut out, name).with_context(what)?;
        out.write_all(b"\n").with_context(what)?;
    }
    for ledger in files.iter().filter_map(|file| file.ledger.as_ref()) {
        ledger.save(&mut out)?;
    }
    out.into_inner().with_context(what)?.sync_all().with_context(what)
}

/// A data file and the size of its units in bytes.
pub(crate) type UnitFile = (Arc<DataFile>, u32);

/// Reads a state file: data files with their units, and names. `find` returns the handle of a data file by its name.
pub(crate) fn load(
    path: &Path,
    mut find: impl FnMut(&str) -> Result<Handle>,
) -> Result<(Vec<UnitFile>, Vec<Promise>)> {
    let what = || format!("the state file {} cannot be read", path.display());
    let mut input = BufReader::new(File::open(path).with_context(what)?);
    let mut line = String::new();
    input.read_line(&mut line).with_context(what)?;
    let header: Header = serde_json::from_str(&line).with_context(what)?;
    if header.schema != SCHEMA {
        bail!(
            "the state file {} has version {}, but this program reads version {SCHEMA}; use the forebay that wrote it",
            path.display(),
            header.schema
        );
    }
    let mut names = Vec::new();
    for _ in 0..header.names {
        line.clear();
        input.read_line(&mut line).with_context(what)?;
        names.push(serde_json::from_str(&line).with_context(what)?);
    }
    let mut files = Vec::new();
    for FileHeader { id, name, size, unit } in header.files {
        if unit < crate::content::MIN_UNIT as u32 {
            bail!("the state file {} is damaged: {name} has units of {unit} bytes", path.display());
        }
        let ledger = Ledger::load(size, unit, &mut input).with_context(what)?;
        let handle = find(&name)?;
        files.push((Arc::new(DataFile { id, name, handle, size, ledger: Some(ledger) }), unit));
    }
    Ok((files, names))
}
