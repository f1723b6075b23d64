//! The comparisons that involve several figures: sync with async, one file for all clients, a parallel file system.

use super::figures::{find, times};
use super::published::{PARALLEL, Parallel};
use super::system::System;
use super::verdict::{peak, rate_at};
use crate::report::document::{Part, Section, Span, Table, text};
use crate::report::measured::{amount, grouped};
use crate::report::topic::Topic;

/// Returns the section that compares writes on an `async` export with durable writes.
pub(super) fn promise(topics: &[Topic<'_>]) -> Option<Section> {
    let (unsafe_writes, sync) = (find(topics, "random write, async")?, find(topics, "random write, sync")?);
    let rows = System::ALL.iter().filter_map(|system| {
        let (fast, safe) = (peak(unsafe_writes, *system)?, peak(sync, *system)?);
        let baseline = peak(unsafe_writes, System::Ganesha).map(|baseline| safe / baseline);
        Some(vec![
            Span::from(system.name()),
            Span::from(grouped(fast)),
            Span::from(grouped(safe)),
            times(Some(safe / fast)),
            times(baseline),
        ])
    });
    let head = [
        "random write 4 KiB",
        "async: no promise, /s",
        "sync: FILE_SYNC, /s",
        "sync / async",
        "sync / baseline's async",
    ];
    let writes = Table::new(&head, rows.collect());
    let names = [("create", "metadata/create"), ("remove", "metadata/remove")];
    let rows = names.iter().filter_map(|(name, phase)| {
        let topic = find(topics, phase)?;
        let (fast, safe) = (peak(topic, System::Ganesha)?, peak(topic, System::WriteBack)?);
        let cells = [
            Span::from(*name),
            Span::from("0.50 to 0.67"),
            Span::from(grouped(fast)),
            Span::from(grouped(safe)),
        ];
        Some(cells.into_iter().chain([times(Some(safe / fast))]).collect())
    });
    let head = [
        "names",
        "published: sync / async",
        "nfs-ganesha, not durable, /s",
        "write-back, durable, /s",
        "here: sync / async",
    ];
    let names = Table::new(&head, rows.collect());
    let parts = vec![
        Part::Text(text![
            "An export with async answers before anything is stable: published 111,000 random writes a second, against low \
             thousands with sync; a crash loses data. Here async is a client that asks for no promise (UNSTABLE, COMMIT \
             only at the end of the run): the same to the server, without the lie. The last column is the aim: the speed of \
             async with the safety of sync. A small amount of data, so that COMMIT does not decide."
        ]),
        Part::Table(writes),
        Part::Text(text![
            "CREATE and REMOVE cannot ask for less than a promise, but nfs-ganesha gives none: its rates are those of an async export. \
             Sequential writes and all reads were published as the same with both (2.5 against 2.6 GB/s, 3,450 MiB/s): the figures above stand for both."
        ]),
        Part::Table(names),
    ];
    Some(Section::new("Sync against async", parts))
}

/// Returns the section that compares one file for all clients with a file for each client.
pub(super) fn shared(topics: &[Topic<'_>]) -> Option<Section> {
    let pairs = [
        ("N-1 segmented write", "sequential write", "0.95 (19.3 of 20.4 GB/s)"),
        ("N-1 segmented read", "sequential read, warm", "1.02 (24.8 of 24.2 GB/s)"),
        ("N-1 strided write", "sequential write", "not given"),
        ("N-1 strided read", "sequential read, warm", "not given"),
    ];
    let rows: Vec<Vec<Span>> = pairs
        .iter()
        .filter_map(|(name, separate, published)| {
            Some((find(topics, name)?, find(topics, separate)?, name, published))
        })
        .flat_map(|(topic, separate, name, published)| {
            System::ALL.iter().filter_map(move |system| {
                let rate = peak(topic, *system)?;
                let clients = topic.clients().first().copied()?;
                let beside = rate_at(separate, *system, clients);
                Some(vec![
                    Span::from(*name),
                    Span::from(system.name()),
                    Span::from(clients.to_string()),
                    Span::from(grouped(rate)),
                    times(beside.map(|beside| rate / beside)),
                    Span::from(*published),
                ])
            })
        })
        .collect();
    let head =
        ["test", "system", "clients", "MiB/s", "against a file each", "published (parallel file system)"];
    (!rows.is_empty()).then(|| {
        let said = text![
            "Segmented: each client has one piece. Strided: records of 1 MiB alternate. The published ratio is that of a parallel file system; \
             on one server a shared file may neither gain nor lose."
        ];
        let mut table = Table::new(&head, rows);
        table.words = 2;
        Section::new("All clients in one file (N-1)", vec![Part::Text(said), Part::Table(table)])
    })
}

/// Returns the section with the peaks of a parallel file system beside those of one server.
pub(super) fn parallel(topics: &[Topic<'_>]) -> Option<Section> {
    let found = PARALLEL.iter().filter_map(|one| Some((one, find(topics, one.phase)?)));
    let rows = found.map(|(one, topic)| {
        let rate = |system: &System| {
            let rate = peak(topic, *system).map(|rate| amount(rate, topic.unit()));
            Span::from(rate.unwrap_or_else(|| "-".to_owned()))
        };
        [Span::from(one.name), Span::from(one.published)]
            .into_iter()
            .chain(System::ALL.iter().map(rate))
            .collect()
    });
    let rows: Vec<Vec<Span>> = rows.collect();
    if rows.is_empty() {
        return None;
    }
    let names = || System::ALL.iter().map(|system| system.name());
    let head: Vec<&str> = ["peak", "published"].into_iter().chain(names()).collect();
    let mut rates = Table::new(&head, rows);
    rates.words = 2;
    let related = PARALLEL.iter().filter_map(|one| {
        let (to, published) = one.against?;
        let (topic, other) =
            (find(topics, one.phase)?, find(topics, PARALLEL.iter().find(|known| known.name == to)?.phase)?);
        Some(relation(one, to, published, topic, other))
    });
    let head: Vec<&str> = ["ratio of peaks", "published"].into_iter().chain(names()).collect();
    let ratios = Table::new(&head, related.collect());
    let said = text![
        "Published for PixStor: 672 disks behind several servers, metadata on flash of its own, up to 1,024 threads on 16 nodes. One server on a \
         few disks does not compare in rates; they are here for the order of magnitude. How the rates of one system relate to \
         each other does compare: 4 KiB in a file against none, one file for all against a file each."
    ];
    Some(Section::new(
        "Beside a parallel file system",
        vec![Part::Text(said), Part::Table(rates), Part::Table(ratios)],
    ))
}

/// Returns a row of the table: the ratio of two peaks, as published and for each measured system.
fn relation(one: &Parallel, to: &str, published: f64, topic: &Topic<'_>, other: &Topic<'_>) -> Vec<Span> {
    let ratio = |system: &System| {
        times(peak(topic, *system).zip(peak(other, *system)).map(|(rate, other)| rate / other))
    };
    [Span::from(format!("{} / {to}", one.name)), times(Some(published))]
        .into_iter()
        .chain(System::ALL.iter().map(ratio))
        .collect()
}
