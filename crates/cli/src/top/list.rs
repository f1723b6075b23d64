//! A list of a tab: columns, rows, their order, and the rows that a filter leaves.

use crate::output::Align;

/// The width of the widest column beside the first, in characters.
const WIDEST: u16 = 20;

/// A cell of a list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    /// The figure by which rows are sorted; `None` for a text, by which they are sorted as texts.
    figure: Option<f64>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Cell { text: text.into(), figure: None }
    }

    pub(super) fn figure(figure: f64, text: String) -> Self {
        Cell { text, figure: Some(figure) }
    }
}

/// A list. Its first column names the thing that a row is about.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct List {
    pub(super) columns: Vec<(&'static str, Align)>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// A sentence for a list without rows.
    pub(super) empty: &'static str,
}

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    /// True for the opposite of the usual order: largest figure first, and texts by the alphabet.
    pub(super) is_reversed: bool,
}

impl List {
    /// Returns the rows with a cell that has `filter`, whatever the case, in order.
    pub(super) fn chosen(&self, filter: &str, sort: Sort) -> Vec<&Vec<Cell>> {
        let filter = filter.to_lowercase();
        let has = |row: &&Vec<Cell>| row.iter().any(|cell| cell.text.to_lowercase().contains(&filter));
        let mut rows: Vec<_> = self.rows.iter().filter(has).collect();
        rows.sort_by(|a, b| {
            let Some((one, other)) = a.get(sort.column).zip(b.get(sort.column)) else {
                return std::cmp::Ordering::Equal;
            };
            let order = match (one.figure, other.figure) {
                (Some(one), Some(other)) => other.total_cmp(&one),
                _ => one.text.cmp(&other.text),
            };
            let order = if sort.is_reversed { order.reverse() } else { order };
            // Equal rows stay at their places from one update to the next.
            order.then_with(|| a.first().map(|cell| &cell.text).cmp(&b.first().map(|cell| &cell.text)))
        });
        rows
    }

    /// Returns the width of each column but the first, in characters. Longer cells are shortened.
    pub(super) fn widths(&self) -> Vec<u16> {
        let width = |column: usize, head: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            // The mark of the sorted column needs a place beside the head.
            let longest = cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0).max(head.len() + 1);
            u16::try_from(longest).unwrap_or(WIDEST).min(WIDEST)
        };
        self.columns.iter().enumerate().skip(1).map(|(column, (head, _))| width(column, head)).collect()
    }
}

/// Returns the end of a name that is too long, since the ends of paths differ.
pub(super) fn shortened(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let end: String = name.chars().skip(length - width.saturating_sub(1)).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        let row = |name: &str, figure: f64| vec![Cell::text(name), Cell::figure(figure, figure.to_string())];
        List {
            columns: vec![("NAME", Align::Left), ("N", Align::Right)],
            rows: vec![row("b", 2.0), row("a", 2.0), row("Cc", 10.0)],
            empty: "",
        }
    }

    fn names(filter: &str, column: usize, is_reversed: bool) -> Vec<String> {
        let list = list();
        let chosen = list.chosen(filter, Sort { column, is_reversed });
        chosen.iter().map(|row| row[0].text.clone()).collect()
    }

    #[test]
    fn rows_are_sorted_by_figures_or_texts_and_equal_ones_by_name() {
        assert_eq!(names("", 1, false), ["Cc", "a", "b"]);
        assert_eq!(names("", 1, true), ["a", "b", "Cc"]);
        assert_eq!(names("", 0, false), ["Cc", "a", "b"]);
        assert_eq!(names("", 9, false), ["b", "a", "Cc"]);
        assert_eq!(names("c", 1, false), ["Cc"]);
        assert_eq!(names("x", 1, false), [""; 0]);
    }

    #[test]
    fn the_end_of_a_long_name_stays() {
        assert_eq!(shortened("/srv/data/file", 6), "…/file");
        assert_eq!(shortened("/srv", 4), "/srv");
        assert_eq!(shortened("äöü", 2), "…ü");
    }
}
