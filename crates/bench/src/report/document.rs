//! What a report says, whatever form it takes: sections of text, tables and plots.

use super::plot::Plot;

/// A piece of text, and what is to be seen of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Span {
    Plain(String),
    Strong(String),
    Code(String),
    /// Of less weight than the rest.
    Note(String),
    /// A section of the same document.
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

/// A paragraph of anything that becomes a [`Span`].
macro_rules! text {
    ($($part:expr),* $(,)?) => { vec![$($crate::report::document::Span::from($part)),*] };
}
pub(crate) use text;

/// Rows under a head; the first column says what a row is about.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<Span>>,
    /// Columns from the left that hold words; where that is more than one, cells may take several lines.
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
    /// All the figures behind a table or a plot: on a page only.
    Details(Table),
    /// On a page only.
    Plots(Vec<Plot>),
}

/// Parts under a heading.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    /// What links lead to.
    pub(crate) anchor: String,
    pub(crate) title: String,
    pub(crate) parts: Vec<Part>,
}

impl Section {
    /// A section whose anchor is made of its title, as readers of Markdown make it.
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
    /// Whether the sections are listed at the top.
    pub(crate) listed: bool,
    pub(crate) sections: Vec<Section>,
}

/// The anchor of a heading: small letters and digits, hyphens for spaces, nothing else.
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
