//! One kind of axis for all plots: names at given places, linear or logarithmic.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis with its marks.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    range: Range<f64>,
    logarithmic: bool,
    marks: Vec<(f64, String)>,
}

/// Most intervals between marks on a linear axis.
const MARKS: f64 = 6.0;

/// Returns the smallest number that is 1, 2 or 5 times a power of ten and not below `least`.
fn nice_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * decade).find(|step| *step >= least).unwrap_or(decade)
}

impl Scale {
    /// Returns an axis with names at 0, 1, 2 and so on.
    pub(crate) fn names(names: impl IntoIterator<Item = String>) -> Self {
        let marks: Vec<_> = (0..).map(f64::from).zip(names).collect();
        Self { range: -0.25..marks.len() as f64 - 0.75, logarithmic: false, marks }
    }

    /// Returns a linear axis from zero to at least `most`.
    pub(crate) fn linear(most: f64, show: fn(f64) -> String) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = nice_step(most / MARKS);
        let count = (most / step).ceil().max(1.0);
        let marks = (0..=count as u32).map(|number| f64::from(number) * step);
        Self {
            range: 0.0..count * step,
            logarithmic: false,
            marks: marks.map(|mark| (mark, show(mark))).collect(),
        }
    }

    /// Returns a linear axis from zero to exactly `most`.
    pub(crate) fn up_to(most: f64, show: fn(f64) -> String) -> Self {
        let mut scale = Self::linear(most, show);
        scale.range.end = most.max(f64::MIN_POSITIVE);
        scale.marks.retain(|(mark, _)| *mark <= scale.range.end);
        scale
    }

    /// Returns a logarithmic axis of whole decades around positive values.
    pub(crate) fn logarithmic(least: f64, most: f64, show: fn(f64) -> String) -> Self {
        let (least, most) = (least.max(1e-9), most.max(1e-9));
        let low = least.log10().floor() as i32;
        let high = (most.log10().ceil() as i32).max(low + 1);
        let marks = (low..=high).map(|power| 10f64.powi(power));
        Self {
            range: 10f64.powi(low)..10f64.powi(high),
            logarithmic: true,
            marks: marks.map(|mark| (mark, show(mark))).collect(),
        }
    }

    /// Returns the number of marks.
    pub(crate) fn count(&self) -> usize {
        self.marks.len()
    }

    /// Returns the place of a value, from 0 to 1 over the axis.
    fn place(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        if self.logarithmic {
            (value.max(start) / start).ln() / (end / start).ln()
        } else {
            (value - start) / (end - start)
        }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        low + (self.place(*value) * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light lines between the marks are left out.
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.marks.iter().map(|(mark, _)| *mark).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        let mark = self.marks.iter().find(|(mark, _)| mark == value);
        mark.map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers() {
        let marks = |scale: &Scale| scale.marks.iter().map(|(mark, _)| *mark).collect::<Vec<_>>();
        let show = |value: f64| value.to_string();
        assert_eq!(marks(&Scale::linear(950.0, show)), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(marks(&Scale::linear(0.0, show)).len(), 6);
        assert_eq!(marks(&Scale::logarithmic(30.0, 4000.0, show)), [10.0, 100.0, 1000.0, 10000.0]);
        assert_eq!(marks(&Scale::names(["a", "b"].map(String::from))), [0.0, 1.0]);
    }

    #[test]
    fn places_follow_the_scale() {
        let scale = Scale::logarithmic(1.0, 100.0, |value| value.to_string());
        assert_eq!(scale.map(&10.0, (0, 200)), 100);
        assert_eq!(scale.map(&0.0, (0, 200)), 0, "what is not positive is at the edge");
        assert_eq!(Scale::linear(10.0, |value| value.to_string()).map(&5.0, (100, 0)), 50);
    }
}
