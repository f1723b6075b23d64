//! Families of metrics, on top of `prometheus-client`.

use std::fmt::Error;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The labels of one value.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// The value of a counter or a gauge.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Number::Whole(value)
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Number::Real(value)
    }
}

/// Returns a single label.
pub(crate) fn label(name: &'static str, value: impl ToString) -> Labels {
    vec![(name, value.to_string())]
}

/// Returns nanoseconds as seconds.
pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A text of metrics in progress.
pub(crate) struct Out<'a>(pub(crate) DescriptorEncoder<'a>);

impl Out<'_> {
    /// Adds a counter without labels.
    pub(crate) fn counter(
        &mut self,
        name: &str,
        about: &str,
        unit: Option<Unit>,
        value: impl Into<Number>,
    ) -> Result<(), Error> {
        self.counters(name, about, unit, [(Labels::new(), value)])
    }

    /// Adds a gauge without labels.
    pub(crate) fn gauge(
        &mut self,
        name: &str,
        about: &str,
        unit: Option<Unit>,
        value: impl Into<Number>,
    ) -> Result<(), Error> {
        self.gauges(name, about, unit, [(Labels::new(), value)])
    }

    /// Adds a family of counters. The encoder adds `_total` to the name. Without values, adds nothing.
    pub(crate) fn counters<V: Into<Number>>(
        &mut self,
        name: &str,
        about: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, V)>,
    ) -> Result<(), Error> {
        self.family(MetricType::Counter, name, about, unit, values, |metric, value| match value.into() {
            Number::Whole(value) => metric.encode_counter::<NoLabelSet, u64, f64>(&value, None),
            Number::Real(value) => metric.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        })
    }

    /// Adds a family of gauges. Without values, adds nothing.
    pub(crate) fn gauges<V: Into<Number>>(
        &mut self,
        name: &str,
        about: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, V)>,
    ) -> Result<(), Error> {
        self.family(MetricType::Gauge, name, about, unit, values, |metric, value| match value.into() {
            Number::Whole(value) => metric.encode_gauge(&value),
            Number::Real(value) => metric.encode_gauge(&value),
        })
    }

    /// Adds a family of histograms of seconds: sum, and the count up to each bound. The last bound is infinite.
    pub(crate) fn histograms(
        &mut self,
        name: &str,
        about: &str,
        values: impl IntoIterator<Item = (Labels, (f64, Vec<(f64, u64)>))>,
    ) -> Result<(), Error> {
        let unit = Some(Unit::Seconds);
        self.family(MetricType::Histogram, name, about, unit, values, |metric, (sum, buckets)| {
            let count = buckets.iter().map(|(_, count)| count).sum();
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }

    /// Writes one family of metrics: its description, and a line for each value. Writes nothing if there are no
    /// values, since a description alone tells a reader nothing.
    fn family<V>(
        &mut self,
        kind: MetricType,
        name: &str,
        about: &str,
        unit: Option<Unit>,
        values: impl IntoIterator<Item = (Labels, V)>,
        encode: impl Fn(&mut MetricEncoder<'_>, V) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut metric = self.0.encode_descriptor(name, about, unit.as_ref(), kind)?;
        for (labels, value) in values {
            match labels.is_empty() {
                true => encode(&mut metric, value)?,
                false => encode(&mut metric.encode_family(&labels)?, value)?,
            }
        }
        Ok(())
    }
}
