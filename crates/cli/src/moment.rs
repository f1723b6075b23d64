//! Moments in the forms that people write.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

/// A moment, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) u64);

/// Parses a moment: RFC 3339, a date, a date and time, a time of today in local time, or a span before now.
///
/// # Errors
/// One sentence that lists the forms.
pub(crate) fn parse(text: &str) -> Result<Moment, String> {
    parse_at(text.trim(), &Timestamp::now().to_zoned(TimeZone::system()))
}

/// Parses a moment of the past, in local time unless the text has an offset. `now` is the end of a span such as `2h`.
fn parse_at(text: &str, now: &Zoned) -> Result<Moment, String> {
    let local =
        |moment: DateTime| moment.to_zoned(now.time_zone().clone()).ok().map(|zoned| zoned.timestamp());
    let before_now = || {
        let span: Span = text.strip_suffix("ago").unwrap_or(text).trim().parse().ok()?;
        now.checked_sub(span.abs()).ok().map(|zoned| zoned.timestamp())
    };
    let found = None
        .or_else(|| text.parse::<Timestamp>().ok())
        .or_else(|| text.parse::<DateTime>().ok().and_then(local))
        .or_else(|| text.parse::<Date>().ok().and_then(|date| local(date.at(0, 0, 0, 0))))
        // A time needs a colon, because a number alone could be a span.
        .or_else(|| {
            text.contains(':')
                .then(|| text.parse::<Time>().ok())
                .flatten()
                .and_then(|time| local(now.date().to_datetime(time)))
        })
        .or_else(before_now);
    let nanos = found.and_then(|moment| u64::try_from(moment.as_nanosecond()).ok());
    nanos.map(Moment).ok_or_else(|| {
        "write a date (2026-03-01), a date and time (2026-03-01T08:00), a time of today (08:00), or a span (2h)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_people_write_them() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let now = "2026-03-01T12:00:00Z".parse::<Timestamp>().unwrap().to_zoned(zone);
        for (text, moment) in [
            ("2026-03-01T08:00:00Z", "2026-03-01T08:00:00Z"),
            ("2026-03-01T08:00", "2026-03-01T06:00:00Z"),
            ("2026-03-01 08:00", "2026-03-01T06:00:00Z"),
            ("2026-02-28", "2026-02-27T22:00:00Z"),
            ("08:00", "2026-03-01T06:00:00Z"),
            ("2 hours ago", "2026-03-01T10:00:00Z"),
            ("90 min ago", "2026-03-01T10:30:00Z"),
            ("1d", "2026-02-28T12:00:00Z"),
        ] {
            let wanted = moment.parse::<Timestamp>().unwrap().as_nanosecond();
            assert_eq!(parse_at(text, &now).map(|found| i128::from(found.0)), Ok(wanted), "{text}");
        }
        for text in ["", "yesterday-ish", "12", "1969-01-01"] {
            assert!(parse_at(text, &now).is_err(), "{text}");
        }
    }
}
