//! The report of a profile as an HTML page: one file, without scripts and without external resources.

use std::time::Duration;

use forebay_config::format_size;
use forebay_control::Activity;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::List;
use super::figures::{facts, findings, mean, mix, new_sizes, percent, share, sizes};
use super::text::name;
use crate::output::{count, date_time, span, time_of_day};

const STYLE: &str = include_str!("page.css");

/// A bar of a plot.
struct Bar {
    name: String,
    /// Parts of the bar in per cent of the longest possible bar, with their texts.
    parts: Vec<(f64, String)>,
}

/// Returns the whole page.
pub(super) fn page(activity: &Activity, lists: &[List<'_>]) -> String {
    let time = Duration::from_nanos(activity.time_ns.saturating_sub(activity.since_ns));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Forebay: profile of the applications" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "What the applications do" }
                    p { "Counted for " (span(time)) ", from " (date_time(activity.since_ns)) " to " (date_time(activity.time_ns)) "." }
                    @for finding in findings(activity) { p.finding { (finding) } }
                }
                main {
                    section {
                        h2 { "In all" }
                        dl { @for (name, value) in facts(activity) { div { dt { (name) } dd { (value) } } } }
                    }
                    div.plots {
                        (plot("Operations", &[], &operations(activity)))
                        (plot("Request sizes", &["READ", "WRITE"], &request_sizes(activity)))
                        (plot("Sizes of new files", &[], &new_files(activity)))
                        (plot("Working set of each hour", &[], &working_sets(activity)))
                    }
                    @for one in lists { (list(one)) }
                }
                footer { "Made by forebay profile " (env!("CARGO_PKG_VERSION")) "." }
            }
        }
    };
    page.into_string()
}

/// Returns the bars for the share of each kind of operation, the most frequent first.
fn operations(activity: &Activity) -> Vec<Bar> {
    let all = activity.total.total();
    let bar = |(kind, number): (forebay_control::Kind, u64)| {
        let text = format!("{} ({})", share(number, all), count(number));
        Bar { name: kind.name().to_owned(), parts: vec![(percent(number, all).unwrap_or(0.0), text)] }
    };
    mix(&activity.total).into_iter().map(bar).collect()
}

/// Returns the bars for the sizes of requests, each with the share among reads and among writes.
fn request_sizes(activity: &Activity) -> Vec<Bar> {
    let (reads, writes) = activity.total.sized();
    let part = |part, whole| (percent(part, whole).unwrap_or(0.0), share(part, whole));
    let bar = |(name, read, written)| Bar { name, parts: vec![part(read, reads), part(written, writes)] };
    sizes(&activity.total).into_iter().map(bar).collect()
}

/// Returns the bars for the sizes of new files: no bar if no file was made.
fn new_files(activity: &Activity) -> Vec<Bar> {
    let sizes = new_sizes(&activity.new_files);
    let sum: u64 = sizes.iter().map(|(_, count)| count).sum();
    let bar = |(name, number)| {
        let text = format!("{} ({})", share(number, sum), count(number));
        Bar { name, parts: vec![(percent(number, sum).unwrap_or(0.0), text)] }
    };
    if sum == 0 { Vec::new() } else { sizes.into_iter().map(bar).collect() }
}

/// Returns the bars for the working set of each hour, relative to the largest one.
fn working_sets(activity: &Activity) -> Vec<Bar> {
    let most = activity.working_sets.iter().map(|hour| hour.bytes).max().unwrap_or(0);
    let bar = |hour: &forebay_control::WorkingSetActivity| Bar {
        name: format!("{}{}", time_of_day(hour.begin_ns), if hour.complete { "" } else { ", goes on" }),
        parts: vec![(percent(hour.bytes, most).unwrap_or(0.0), format_size(hour.bytes))],
    };
    activity.working_sets.iter().filter(|hour| hour.bytes > 0).map(bar).collect()
}

/// Returns a plot of horizontal bars. A screen reader reads it as a table.
fn plot(title: &str, legend: &[&str], bars: &[Bar]) -> Markup {
    html! {
        section {
            h2 { (title) }
            @if bars.is_empty() { p.quiet { "Nothing was counted." } } @else {
                @if !legend.is_empty() {
                    p.legend { @for (number, name) in legend.iter().enumerate() { span class={ "key k" (number) } {} " " (name) " " } }
                }
                table.bars {
                    tbody {
                        @for bar in bars {
                            tr {
                                th scope="row" { (bar.name) }
                                td {
                                    @for (number, (percent, text)) in bar.parts.iter().enumerate() {
                                        div.line {
                                            div class={ "bar k" (number) } style={ "width:" (format!("{:.1}", percent * 0.7)) "%" } {}
                                            span { (text) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the section with the table of clients, exports, users, files or directories.
fn list(list: &List<'_>) -> Markup {
    let heads = [
        "Operations",
        "Read",
        "Written",
        "Mean READ",
        "Mean WRITE",
        "Sequential",
        "Synchronous",
        "Most frequent",
    ];
    let rows = list.entries.iter().map(|entry| (name(entry), &entry.counters));
    let others = list.others.map(|others| ("others".to_owned(), others));
    let title = list.of.to_lowercase();
    html! {
        section {
            h2 { "By " (title) }
            div.scroll tabindex="0" role="region" aria-label={ "By " (title) } {
                table {
                    thead { tr { th scope="col" { (title) } @for head in heads { th scope="col" { (head) } } } }
                    tbody {
                        @for (name, counters) in rows.chain(others) {
                            @let (reads, writes) = counters.sized();
                            tr {
                                th scope="row" { (name) }
                                td { (count(counters.total())) }
                                td { (format_size(counters.bytes_read)) }
                                td { (format_size(counters.bytes_written)) }
                                td { (mean(counters.bytes_read, reads)) }
                                td { (mean(counters.bytes_written, writes)) }
                                td { (share(counters.sequential_reads + counters.sequential_writes, reads + writes)) }
                                td { (share(counters.stable_writes, writes)) }
                                td.words {
                                    @for (kind, number) in mix(counters).into_iter().take(3) {
                                        (kind.name()) " " (share(number, counters.total())) " "
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_control::{ActivityEntry, Counters, Kind};

    use super::*;

    #[test]
    fn names_from_clients_are_text_and_the_page_needs_nothing_else() {
        let mut counters = Counters::default();
        counters.operations[Kind::Write as usize] = 4;
        counters.write_sizes[0] = 4;
        let entry = ActivityEntry {
            name: "<script>x</script>".into(),
            counters: counters.clone(),
            ..Default::default()
        };
        let activity = Activity { total: counters, ..Activity::default() };
        let page = page(&activity, &[List { of: "FILE", entries: vec![entry], others: None }]);
        assert!(page.contains("&lt;script&gt;x") && !page.contains("<script"), "{page}");
        assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
        assert!(page.contains("By file") && page.contains("100 % (4)"), "{page}");
    }
}
