//! Who is ahead, and by how much.

use maud::{Markup, html};

use super::system::System;
use crate::report::topic::Topic;

/// Closer than this to the baseline counts as even.
const EVEN: f64 = 0.05;

/// A mode of Forebay against the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    Win(System, f64),
    Even(System, f64),
    Lose(System, f64),
    /// One of the two is not there.
    Unknown,
}

/// The rate of a system with `clients`, the median of its repeats.
pub(crate) fn rate_at(topic: &Topic<'_>, system: System, clients: u32) -> Option<f64> {
    let unit = topic.unit();
    let series = topic.series.iter().find(|series| series.label == system.name())?;
    let cell = series.cells.iter().find(|cell| cell.clients == clients)?;
    Some(cell.spread(|run| unit.rate(run)).0)
}

/// The highest rate of a system over all numbers of clients.
pub(crate) fn peak(topic: &Topic<'_>, system: System) -> Option<f64> {
    topic.clients().into_iter().filter_map(|clients| rate_at(topic, system, clients)).reduce(f64::max)
}

/// The peak of a system divided by that of the baseline.
pub(crate) fn ratio(topic: &Topic<'_>, system: System) -> Option<f64> {
    let baseline = peak(topic, System::Ganesha).filter(|rate| *rate > 0.0)?;
    Some(peak(topic, system)? / baseline)
}

/// Judges write-back; pass-through where there is no cache.
pub(crate) fn verdict(topic: &Topic<'_>) -> Verdict {
    let judged = [System::WriteBack, System::PassThrough];
    let found = judged.into_iter().find_map(|system| Some((system, ratio(topic, system)?)));
    match found {
        None => Verdict::Unknown,
        Some((system, ratio)) if ratio > 1.0 + EVEN => Verdict::Win(system, ratio),
        Some((system, ratio)) if ratio < 1.0 - EVEN => Verdict::Lose(system, ratio),
        Some((system, ratio)) => Verdict::Even(system, ratio),
    }
}

/// A ratio, with as many digits as mean something.
pub(crate) fn shown(ratio: f64) -> String {
    let digits = match ratio {
        large if large >= 20.0 => 0,
        middle if middle >= 0.1 => 2,
        _ => 4,
    };
    format!("{ratio:.digits$} ×")
}

impl Verdict {
    /// In a few words.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Win(system, ratio) | Self::Even(system, ratio) | Self::Lose(system, ratio) => {
                format!("{} {}", system.name(), shown(*ratio))
            }
            Self::Unknown => "not known".to_owned(),
        }
    }

    /// For a table.
    pub(crate) fn show(&self) -> Markup {
        match self {
            Self::Win(..) => html! { span.win { "win" } },
            Self::Even(..) => html! { span.even { "even" } },
            Self::Lose(..) => html! { span.lose { "lose" } },
            Self::Unknown => html! { span.even { "-" } },
        }
    }

    /// In a sentence, beside the published ratio.
    pub(crate) fn sentence(&self, published: Option<f64>) -> Markup {
        let (Self::Win(system, ratio) | Self::Even(system, ratio) | Self::Lose(system, ratio)) = self else {
            return html! { "not known: the baseline or Forebay was not measured." };
        };
        let beside = published.map(|published| {
            let word = if *ratio >= published { "better than" } else { "short of" };
            format!(", {word} the published {}", shown(published))
        });
        html! { (system.name()) " has " b { (shown(*ratio)) } " the baseline" (beside.unwrap_or_default()) ": " (self.show()) "." }
    }
}
