//! `bench report`: presents results as a page, as Markdown, or as a picture.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::result::Report;

pub(crate) mod charts;
pub(crate) mod document;
pub(crate) mod doubts;
pub(crate) mod letters;
pub(crate) mod markdown;
pub(crate) mod measured;
pub(crate) mod page;
pub(crate) mod picture;
pub(crate) mod plot;
pub(crate) mod scale;
pub(crate) mod topic;

/// Most plots beside each other in a picture.
const COLUMNS: usize = 3;

/// Arguments of `bench report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results written by `bench run -o`.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// File to write; its name determines the form: .html, .md (tables only), .svg or .png (plots only).
    #[arg(long, short = 'o', value_name = "FILE")]
    output: PathBuf,
}

/// Writes the report in the form of the output's name.
///
/// # Errors
/// A result cannot be read, the form is unknown, or the file cannot be written.
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
    match form {
        Form::Text(form) => form.write(&args.output, &measured::document(&reports)),
        Form::Drawing => write(&args.output, plot::draw(&plots(&reports), COLUMNS)?.as_bytes()),
        Form::Picture => write(&args.output, &picture::png(&plots(&reports), COLUMNS)?),
    }
}

/// Writes a report to a file.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("the report {} cannot be written", path.display()))
}

/// Returns the plots of all phases.
fn plots(reports: &[topic::Labelled]) -> Vec<plot::Plot> {
    topic::topics(reports).iter().flat_map(charts::plots).collect()
}

/// A form that contains text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TextForm {
    Page,
    Markdown,
}

impl TextForm {
    /// Returns the form for a file name.
    ///
    /// # Errors
    /// The extension is not one of a text form.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("html" | "htm") => Ok(Self::Page),
            Some("md") => Ok(Self::Markdown),
            _ => bail!("the report {} has to end in .html or .md", path.display()),
        }
    }

    /// Writes a document in this form.
    ///
    /// # Errors
    /// A plot cannot be drawn or the file cannot be written.
    pub(crate) fn write(self, path: &Path, document: &document::Document) -> Result<()> {
        let content = match self {
            Self::Page => page::page(document)?,
            Self::Markdown => markdown::markdown(document),
        };
        write(path, content.as_bytes())
    }
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Text(TextForm),
    Drawing,
    Picture,
}

impl Form {
    /// Returns the form of a report by the ending of its path. Fails for an unknown ending.
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("svg") => Ok(Self::Drawing),
            Some("png") => Ok(Self::Picture),
            _ => match TextForm::of(path) {
                Ok(form) => Ok(Self::Text(form)),
                Err(_) => bail!("the report {} has to end in .html, .md, .svg or .png", path.display()),
            },
        }
    }
}
