//! `bench report`: results as a page, or as a picture.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::result::Report;

pub(crate) mod charts;
pub(crate) mod page;
pub(crate) mod picture;
pub(crate) mod plot;
pub(crate) mod scale;
pub(crate) mod topic;

/// Plots beside each other in a picture.
const COLUMNS: usize = 3;

/// Arguments of `bench report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results that `bench run -o` has written.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// What to write; the name says the form: .html, .svg or .png.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: PathBuf,
}

/// Writes what was asked for.
///
/// # Errors
/// Where a result cannot be read, the form is unknown, or the file cannot be written.
pub(crate) fn execute(args: &ReportArgs) -> Result<()> {
    let form = Form::of(&args.output)?;
    let reports: Result<Vec<(String, Report)>> = args
        .results
        .iter()
        .map(|path| {
            let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            Ok((name, Report::load(path)?))
        })
        .collect();
    let reports = topic::label(reports?);
    let content = match form {
        Form::Page => page::report(&reports)?.into_bytes(),
        Form::Drawing => drawing(&reports)?.into_bytes(),
        Form::Picture => picture::png(&drawing(&reports)?)?,
    };
    write(&args.output, &content)
}

/// Writes a file that a person asked for.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("the report {} cannot be written", path.display()))
}

fn drawing(reports: &[topic::Labelled]) -> Result<String> {
    let plots: Vec<plot::Plot> = topic::topics(reports).iter().flat_map(charts::plots).collect();
    plot::draw(&plots, COLUMNS.min(plots.len()))
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Page,
    Drawing,
    Picture,
}

impl Form {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("html" | "htm") => Ok(Self::Page),
            Some("svg") => Ok(Self::Drawing),
            Some("png") => Ok(Self::Picture),
            _ => bail!("the report {} has to end in .html, .svg or .png", path.display()),
        }
    }
}
