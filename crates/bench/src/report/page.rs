//! A report as an HTML page: one file, without scripts and without external resources.

use anyhow::Result;
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::document::{Document, Part, Section, Span, Table};
use super::plot::{self, Plot};

const STYLE: &str = include_str!("page.css");

/// Returns the whole page.
///
/// # Errors
/// A plot cannot be drawn.
pub(crate) fn page(document: &Document) -> Result<String> {
    let Document { title, lead, warnings, listed, sections } = document;
    let shown: Result<Vec<Markup>> = sections.iter().map(section).collect();
    let shown = shown?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    @for text in lead { p { (line(text)) } }
                    @for text in warnings { p.warning { span.lose { "Warning: " } (line(text)) } }
                    @if *listed {
                        nav { @for one in sections { a href={ "#" (one.anchor) } { (one.title) } " " } }
                    }
                }
                main { @for one in &shown { (one) } }
                footer { "Made by forebay bench " (env!("CARGO_PKG_VERSION")) ", " (now()) }
            }
        }
    };
    Ok(page.into_string())
}

/// Returns a section as HTML, with an anchor for links. Fails if a plot cannot be drawn.
fn section(section: &Section) -> Result<Markup> {
    let parts: Result<Vec<Markup>> = section.parts.iter().map(part).collect();
    let parts = parts?;
    Ok(html! { section { h2 id=(section.anchor) { (section.title) } @for part in &parts { (part) } } })
}

/// Returns a part of a section as HTML. Fails if a plot cannot be drawn.
fn part(part: &Part) -> Result<Markup> {
    Ok(match part {
        Part::Text(text) => html! { p { (line(text)) } },
        Part::List(items) => html! { ul { @for item in items { li { (line(item)) } } } },
        Part::Table(one) | Part::Details(one) => table(one),
        Part::Plots(plots) => figures(plots)?,
    })
}

fn line(text: &[Span]) -> Markup {
    html! { @for one in text { (span(one)) } }
}

/// Returns a span of text as HTML. The text is escaped by `maud`.
fn span(span: &Span) -> Markup {
    match span {
        Span::Plain(text) => html! { (text) },
        Span::Strong(text) => html! { b { (text) } },
        Span::Code(text) => html! { code { (text) } },
        Span::Note(text) => html! { span.note { (text) } },
        Span::Link { to, text } => html! { a href={ "#" (to) } { (text) } },
        Span::Win(text) => html! { span.win { (text) } },
        Span::Even(text) => html! { span.even { (text) } },
        Span::Lose(text) => html! { span.lose { (text) } },
    }
}

/// Returns a table as HTML. The first columns may hold words, which are aligned to the left.
fn table(table: &Table) -> Markup {
    let class = if table.words > 1 { "table wordy" } else { "table" };
    let word = |column: usize| (column < table.words).then_some("word");
    html! {
        div class=(class) {
            table {
                thead { tr { @for (column, cell) in table.head.iter().enumerate() { th class=[word(column)] { (cell) } } } }
                tbody {
                    @for row in &table.rows {
                        tr { @for (column, cell) in row.iter().enumerate() { td class=[word(column)] { (span(cell)) } } }
                    }
                }
            }
        }
    }
}

/// Returns plots beside each other.
fn figures(plots: &[Plot]) -> Result<Markup> {
    let drawn: Result<Vec<String>> =
        plots.iter().map(|plot| plot::draw(std::slice::from_ref(plot), 1)).collect();
    let drawn = drawn?;
    Ok(html! {
        div.plots {
            @for (plot, svg) in plots.iter().zip(&drawn) {
                figure role="img" aria-label=(plot.title) { (PreEscaped(fluid(svg))) }
            }
        }
    })
}

/// Makes a drawing shrink with its column.
fn fluid(svg: &str) -> String {
    let (width, height) = plot::SIZE;
    svg.replacen(
        &format!("width=\"{width}\" height=\"{height}\""),
        &format!("viewBox=\"0 0 {width} {height}\""),
        1,
    )
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}
