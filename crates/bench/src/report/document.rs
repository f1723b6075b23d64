//! The content of a report in any form: sections of text, tables and plots.

use super::plot::Plot;

/// A piece of text with its emphasis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Span {
    Plain(String),
    Strong(String),
    Code(String),
    /// Text of less importance.
    Note(String),
    /// A link to a section of this document.
    Link {
        to: String,
        text: String,
    },
    Win(String),
    Even(String),
    Lose(String),
}

impl From<&str> for Span {
    fn from(text: &str) -> Self {
        Self::Plain(text.to_owned())
    }
}

impl From<String> for Span {
    fn from(text: String) -> Self {
        Self::Plain(text)
    }
}

/// A paragraph.
pub(crate) type Text = Vec<Span>;

/// Makes a paragraph of values that convert to [`Span`].
macro_rules! text {
    ($($part:expr),* $(,)?) => { vec![$($crate::report::document::Span::from($part)),*] };
}
pub(crate) use text;

/// A table. The first column names the subject of each row.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<Span>>,
    /// Number of columns from the left that contain words. If more than one, cells may take several lines.
    pub(crate) words: usize,
}

impl Table {
    pub(crate) fn new(head: &[&str], rows: Vec<Vec<Span>>) -> Self {
        Self { head: head.iter().map(|cell| (*cell).to_owned()).collect(), rows, words: 1 }
    }
}

/// A part of a section.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    Text(Text),
    List(Vec<Text>),
    Table(Table),
    /// All figures behind a table or a plot; shown on a page only.
    Details(Table),
    /// Plots; shown on a page only.
    Plots(Vec<Plot>),
}

/// Parts under a heading.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    /// Target of links to this section.
    pub(crate) anchor: String,
    pub(crate) title: String,
    pub(crate) parts: Vec<Part>,
}

impl Section {
    /// Returns a section whose anchor is derived from its title, as renderers of Markdown do.
    pub(crate) fn new(title: &str, parts: Vec<Part>) -> Self {
        Self { anchor: anchor(title), title: title.to_owned(), parts }
    }
}

/// A whole report.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) title: String,
    pub(crate) lead: Vec<Text>,
    /// Reasons to doubt the figures.
    pub(crate) warnings: Vec<Text>,
    /// True if the sections are listed at the top.
    pub(crate) listed: bool,
    pub(crate) sections: Vec<Section>,
}

/// Returns the anchor of a heading: lower-case letters, digits, hyphens for spaces; other characters are left out.
pub(crate) fn anchor(title: &str) -> String {
    let letter = |letter: char| match letter {
        ' ' => Some('-'),
        kept if kept.is_alphanumeric() || kept == '-' || kept == '_' => Some(kept),
        _ => None,
    };
    title.to_lowercase().chars().filter_map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_markdown() {
        assert_eq!(anchor("Figure 6: sequential read, warm"), "figure-6-sequential-read-warm");
        assert_eq!(anchor("All clients in one file (N-1)"), "all-clients-in-one-file-n-1");
        assert_eq!(anchor("metadata/create"), "metadatacreate");
    }
}
