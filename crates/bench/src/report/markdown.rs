//! A report as Markdown: text and tables without plots, for documents that are kept with the code.

use std::fmt::Write as _;

use super::document::{Document, Part, Span, Table};

/// Returns the whole document.
pub(crate) fn markdown(document: &Document) -> String {
    let mut out = format!("# {}\n", escaped(&document.title));
    for text in &document.lead {
        let _ = write!(out, "\n{}\n", line(text));
    }
    for text in &document.warnings {
        let _ = write!(out, "\n**Warning:** {}\n", line(text));
    }
    for section in &document.sections {
        let _ = write!(out, "\n## {}\n", escaped(&section.title));
        section.parts.iter().for_each(|part| append(&mut out, part));
    }
    out
}

/// Appends a part of the report. Leaves out plots, and details, which are for the page only.
fn append(out: &mut String, part: &Part) {
    match part {
        Part::Text(text) => {
            let _ = write!(out, "\n{}\n", line(text));
        }
        Part::List(items) => {
            out.push('\n');
            for item in items {
                let _ = writeln!(out, "- {}", line(item));
            }
        }
        Part::Table(table) => append_table(out, table),
        Part::Details(_) | Part::Plots(_) => {}
    }
}

/// Appends a table with its head, all cells escaped.
fn append_table(out: &mut String, table: &Table) {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    out.push('\n');
    out.push_str(&row(table.head.iter().map(|cell| escaped(cell)).collect()));
    out.push_str(&format!("|{}\n", "---|".repeat(table.head.len())));
    for cells in &table.rows {
        out.push_str(&row(cells.iter().map(span).collect()));
    }
}

fn line(text: &[Span]) -> String {
    text.iter().map(span).collect()
}

/// Returns a span of text as Markdown. Wins and losses are bold, since Markdown has no colours.
fn span(span: &Span) -> String {
    match span {
        Span::Plain(text) | Span::Note(text) | Span::Even(text) => escaped(text),
        Span::Strong(text) | Span::Win(text) | Span::Lose(text) => format!("**{}**", escaped(text)),
        Span::Code(text) => format!("`{}`", text.replace('`', "'")),
        Span::Link { to, text } => format!("[{}](#{to})", escaped(text)),
    }
}

/// Escapes text so that Markdown shows it unchanged, also within a table.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if matches!(letter, '\\' | '`' | '*' | '_' | '|' | '[' | ']' | '<' | '>') {
            out.push('\\');
        }
        out.push(match letter {
            '\n' => ' ',
            // The separator of thousands on a page.
            '\u{202f}' => ',',
            letter => letter,
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::document::{Section, text};

    #[test]
    fn text_and_tables_stay_what_they_are() {
        let rows = vec![vec![Span::from("a|b"), Span::Strong("1".into())]];
        let parts = vec![
            Part::Text(text!["see ", Span::Link { to: "x".into(), text: "there".into() }]),
            Part::List(vec![text!["<b>"], text![Span::Code("a|b".into())]]),
            Part::Table(Table::new(&["", "rate"], rows)),
            Part::Details(Table::new(&["left out"], Vec::new())),
        ];
        let document = Document {
            title: "T".into(),
            lead: vec![text!["1\u{202f}726 a lead"]],
            warnings: vec![text!["loaded"]],
            listed: true,
            sections: vec![Section::new("S", parts)],
        };
        let expected = "# T\n\n1,726 a lead\n\n**Warning:** loaded\n\n## S\n\nsee [there](#x)\n\n- \\<b\\>\n- `a|b`\n\n|  | rate |\n|---|---|\n| a\\|b | **1** |\n";
        assert_eq!(markdown(&document), expected);
    }
}
