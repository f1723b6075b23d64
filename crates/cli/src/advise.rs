//! `forebay advise`: the miss-ratio curve, and the change that would bring most.

use forebay_config::format_size;
use forebay_control::{Advice, Curve};

use crate::advise_args::AdviseArgs;
use crate::output::{Align, HEAD, Table, count, paint};
use crate::{Exit, control, output};

/// Runs `forebay advise`.
pub(crate) fn advise(args: &AdviseArgs) -> anyhow::Result<Exit> {
    let advice = control::find(&args.target)?.advise()?;
    match args.json {
        true => output::json(&advice)?,
        false => output::result(&describe(&advice))?,
    }
    Ok(Exit::Done)
}

/// Returns the advice as text: the curve's tables if enough requests were sampled, then the advice, the facts, and
/// the size of the sample.
fn describe(advice: &Advice) -> String {
    let Advice { curve, best, facts, .. } = advice;
    let mut text = String::new();
    if curve.enough {
        text += &sizes(curve);
        text += &memory(curve);
        text += &volumes(curve);
    }
    text += &format!("{}\n", paint(HEAD, best));
    facts.iter().for_each(|fact| text += &format!("{fact}\n"));
    let lost = match curve.lost {
        0 => String::new(),
        lost => format!(", {} lost", count(lost)),
    };
    text += &format!(
        "\nSeen since the start: {} blocks read, {} written. Sampled: {} requests{lost}, one block in {:.0}.\n",
        count(curve.blocks_read),
        count(curve.blocks_written),
        count(curve.sampled),
        1.0 / curve.rate.max(1e-9)
    );
    text
}

/// Returns the table of hit ratios by the size of the cache devices, with the present size marked.
fn sizes(curve: &Curve) -> String {
    let columns = [
        ("CACHE DEVICES", Align::Right),
        ("HITS", Align::Right),
        ("COALESCING", Align::Right),
        ("FILLED", Align::Left),
        ("", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for point in &curve.points {
        let filled = if point.filled { "yes" } else { "no" };
        let now = if Some(point) == curve.present() { "now" } else { "" };
        table.row([
            format_size(point.cache_bytes),
            percent(point.hit_ratio),
            format!("{:.1}", point.coalescing),
            filled.to_owned(),
            now.to_owned(),
        ]);
    }
    table.render(0) + "\n"
}

/// Returns the table of hit ratios by the size of the cache's memory. The first row is the present size.
fn memory(curve: &Curve) -> String {
    let mut table =
        Table::new(&[("MEMORY", Align::Right), ("HITS IN MEMORY", Align::Right), ("", Align::Left)]);
    for (at, point) in curve.memory.iter().enumerate() {
        let now = if at == 0 { "now" } else { "" };
        table.row([format_size(point.memory_bytes), percent(point.hit_ratio), now.to_owned()]);
    }
    table.render(0) + "\n"
}

/// Returns the curves of the volumes: the served file systems and block volumes.
fn volumes(curve: &Curve) -> String {
    if curve.groups.len() < 2 {
        return String::new();
    }
    let present = curve.points.iter().position(|point| Some(point) == curve.present());
    let (last, most) = (curve.points.len().saturating_sub(1), curve.points.last());
    let mut table = Table::new(&[
        ("VOLUME", Align::Left),
        ("READS", Align::Right),
        ("WRITES", Align::Right),
        ("HITS NOW", Align::Right),
        ("HITS WITH MOST", Align::Right),
    ]);
    for group in &curve.groups {
        let at = |index: usize| group.hit_ratios.get(index).copied().map_or_else(|| "-".to_owned(), percent);
        let cells = [percent(group.reads), percent(group.writes), at(present.unwrap_or(0)), at(last)];
        table.row(std::iter::once(output::printable(&group.name)).chain(cells));
    }
    let most = most.map_or(0, |point| point.cache_bytes);
    format!("{}Most is {}.\n\n", table.render(0), format_size(most))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_control::{CurvePoint, GroupCurve, MemoryPoint};

    fn plain(advice: &Advice) -> String {
        anstream::adapter::strip_str(&describe(advice)).to_string()
    }

    #[test]
    fn the_curve_is_a_table_and_sentences() {
        let point = |gib: u64, hit_ratio| CurvePoint {
            cache_bytes: gib << 30,
            hit_ratio,
            coalescing: 4.2,
            filled: gib < 400,
        };
        let group = |group, name: &str| GroupCurve {
            group,
            name: name.to_owned(),
            reads: 0.5,
            writes: 0.25,
            hit_ratios: vec![0.1, 0.2],
            coalescing: vec![1.0, 1.0],
        };
        let curve = Curve {
            enough: true,
            sampled: 12_345,
            lost: 2,
            rate: 1.0 / 64.0,
            blocks_read: 1_000_000,
            blocks_written: 5,
            cache_bytes: 200 << 30,
            points: vec![point(200, 0.614), point(400, 0.83)],
            memory: vec![MemoryPoint { memory_bytes: 1 << 30, hit_ratio: 0.2 }],
            groups: vec![group(1, "/a\x1b"), group(2, "/b")],
            ..Curve::default()
        };
        let advice =
            Advice { curve, best: "Buy.".into(), facts: vec!["A fact.".into()], ..Advice::default() };
        assert_eq!(
            plain(&advice),
            "CACHE DEVICES  HITS  COALESCING  FILLED\n      200 GiB  61 %         4.2  yes     now\n      400 GiB  83 %         4.2  \
             no\n\nMEMORY  HITS IN MEMORY\n 1 GiB            20 %  now\n\nVOLUME  READS  WRITES  HITS NOW  HITS WITH MOST\n/a?      50 \
             %    25 %      10 %            20 %\n/b       50 %    25 %      10 %            20 %\nMost is 400 GiB.\n\nBuy.\nA \
             fact.\n\nSeen since the start: 1,000,000 blocks read, 5 written. Sampled: 12,345 requests, 2 lost, one block in 64.\n"
        );
    }

    #[test]
    fn without_enough_requests_there_is_no_table() {
        let advice = Advice { best: "Not enough requests seen yet.".into(), ..Advice::default() };
        assert!(plain(&advice).starts_with("Not enough requests seen yet.\n"), "{}", plain(&advice));
    }
}
