//! The published figures one by one: the published values, the measured values, and a verdict.

use super::published::{FIGURES, Figure, OTHERS};
use super::system::System;
use super::verdict::{Verdict, peak, rate_at, shown, verdict};
use crate::report::charts;
use crate::report::document::{Part, Section, Span, Table, anchor, text};
use crate::report::measured::{amount, grouped, numbers};
use crate::report::topic::Topic;

/// Returns the topic of a phase, if the phase was measured.
pub(super) fn find<'t, 'a>(topics: &'t [Topic<'a>], name: &str) -> Option<&'t Topic<'a>> {
    topics.iter().find(|topic| topic.name == name)
}

/// Returns a ratio as text, or a dash if there is none.
pub(super) fn times(ratio: Option<f64>) -> Span {
    Span::from(ratio.map_or_else(|| "-".to_owned(), shown))
}

fn title(figure: &Figure) -> String {
    format!("Figure {}: {}", figure.number, figure.name())
}

/// Returns the section with all figures in one table, and lists of those won, lost and even.
pub(super) fn summary(topics: &[Topic<'_>]) -> Section {
    let ours = |topic: &Topic<'_>| {
        let ratio = |system| times(super::verdict::ratio(topic, system));
        let baseline = peak(topic, System::Ganesha);
        let baseline = baseline.map(|rate| amount(rate, topic.unit()));
        [
            Span::from(baseline.unwrap_or_else(|| "-".to_owned())),
            ratio(System::PassThrough),
            ratio(System::WriteBack),
            ratio(System::WriteThrough),
            verdict(topic).show(),
        ]
    };
    let figures = FIGURES.iter().filter_map(|figure| Some((figure, find(topics, figure.phase)?)));
    let rows = figures.map(|(figure, topic)| {
        let link = Span::Link { to: anchor(&title(figure)), text: figure.name().to_owned() };
        let published = [
            Span::from(figure.number),
            link,
            Span::from(figure.baseline),
            Span::from(figure.write_back),
            times(figure.ratio),
        ];
        published.into_iter().chain(ours(topic)).collect()
    });
    let mut published = Table::new(
        &[
            "figure",
            "test",
            "published: baseline",
            "published: write-back",
            "published: ratio",
            "here: baseline",
            "here: pass-through",
            "here: write-back",
            "here: write-through",
            "verdict",
        ],
        rows.collect(),
    );
    published.words = 4;
    let others = || OTHERS.iter().filter_map(|name| find(topics, name));
    let rows =
        others().map(|topic| std::iter::once(Span::from(topic.name.as_str())).chain(ours(topic)).collect());
    let beside = Table::new(
        &["further tests", "baseline", "pass-through", "write-back", "write-through", "verdict"],
        rows.collect(),
    );
    let judged: Vec<(&str, Verdict)> = FIGURES
        .iter()
        .filter_map(|figure| find(topics, figure.phase))
        .chain(others())
        .map(|topic| (topic.name.as_str(), verdict(topic)))
        .collect();
    let list = |wanted: fn(&Verdict) -> bool| {
        let names: Vec<String> = judged
            .iter()
            .filter(|(_, verdict)| wanted(verdict))
            .map(|(name, verdict)| format!("{name} ({})", verdict.words()))
            .collect();
        if names.is_empty() { " nothing.".to_owned() } else { format!(" {}.", names.join("; ")) }
    };
    let parts = vec![
        Part::Text(text![
            "Peaks over the numbers of clients; for Forebay divided by the baseline's peak. The verdict is about write-back, or about \
             pass-through where write-back was not measured; within 5 % (10 % without repeats) counts as even."
        ]),
        Part::Table(published),
        Part::Table(beside),
        Part::Text(text![
            "Creating and removing: the baseline answers before anything is durable, Forebay after. Both make the same promise under ",
            Span::Link { to: anchor(DURABLE), text: "small files, durable on both".to_owned() },
            ".",
        ]),
        Part::List(vec![
            text![
                Span::Win("Ahead of the baseline:".into()),
                list(|verdict| matches!(verdict, Verdict::Win(..)))
            ],
            text![Span::Lose("Behind it:".into()), list(|verdict| matches!(verdict, Verdict::Lose(..)))],
            text![Span::Even("Even:".into()), list(|verdict| matches!(verdict, Verdict::Even(..)))],
        ]),
    ];
    Section::new("Where we win, where we lose", parts)
}

/// Returns one section for each figure.
pub(super) fn sections(topics: &[Topic<'_>]) -> Vec<Section> {
    let figures = FIGURES.iter().filter_map(|figure| Some((figure, find(topics, figure.phase)?)));
    let section = |(figure, topic): (&Figure, &Topic<'_>)| {
        let mut said = text![format!(
            "Published: baseline {}; write-back {}; write-through {}. Here: ",
            figure.baseline, figure.write_back, figure.write_through
        )];
        said.extend(verdict(topic).sentence(figure.ratio));
        let mut parts = vec![Part::Text(text![figure.note]), Part::Text(said)];
        parts.extend(measured(topic));
        Section::new(&title(figure), parts)
    };
    figures.map(section).collect()
}

const DURABLE: &str = "Small files, durable on both";

/// Returns the section about small files that both servers make durable before they answer.
pub(super) fn durable(topics: &[Topic<'_>]) -> Option<Section> {
    let topic = find(topics, "durable small file")?;
    let mut said = text![
        "CREATE, then 4 KiB written FILE_SYNC: here nfs-ganesha, too, has to wait for stable storage, so this is a fairer \
         comparison than figure 9. It still waits once for each file, Forebay twice: CREATE is durable by itself. Here: "
    ];
    said.extend(verdict(topic).sentence(None));
    let mut parts = vec![Part::Text(said)];
    parts.extend(measured(topic));
    Some(Section::new(DURABLE, parts))
}

/// Returns the plots, the rates by number of clients, and all numbers.
fn measured(topic: &Topic<'_>) -> [Part; 3] {
    let mut plots = charts::plots(topic);
    plots.truncate(4);
    [Part::Plots(plots), Part::Table(rates(topic)), Part::Details(numbers(topic))]
}

/// Returns the table of rates by number of clients, with the systems side by side and the range of the repeats.
fn rates(topic: &Topic<'_>) -> Table {
    let unit = topic.unit();
    let systems: Vec<System> =
        System::ALL.into_iter().filter(|system| peak(topic, *system).is_some()).collect();
    let cell = |system: System, clients: u32| {
        let series = topic.series.iter().find(|series| series.label == system.name())?;
        let cell = series.cells.iter().find(|cell| cell.clients == clients)?;
        let (middle, low, high) = cell.spread(|run| unit.rate(run));
        let range = format!(" [{} to {}]", grouped(low), grouped(high));
        Some(grouped(middle) + if cell.phase.runs.len() > 1 { &range } else { "" })
    };
    let rows = topic.clients().into_iter().map(|clients| {
        let rates =
            systems.iter().map(|system| Span::from(cell(*system, clients).unwrap_or_else(|| "-".into())));
        let ratio =
            || Some(rate_at(topic, System::WriteBack, clients)? / rate_at(topic, System::Ganesha, clients)?);
        std::iter::once(Span::from(clients.to_string())).chain(rates).chain([times(ratio())]).collect()
    });
    let clients = format!("clients ({})", unit.name());
    let names = systems.iter().map(|system| system.name());
    let head: Vec<&str> =
        std::iter::once(clients.as_str()).chain(names).chain(["write-back / nfs-ganesha"]).collect();
    Table::new(&head, rows.collect())
}
