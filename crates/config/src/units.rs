//! Sizes and durations in the form that people write.

use std::time::Duration;

const SIZES: [(&str, u64); 11] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

const TIMES: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
];

/// Splits `64MiB` into its number and its unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..digits].parse().ok()?;
    Some((number, text[digits..].trim_start()))
}

/// Parses a size in bytes: `4096`, `64KiB`, `1G`. `K`, `M`, `G`, `T` are powers of 1024; `MB` and `GB` are powers of
/// 1000.
///
/// # Errors
/// One sentence, if the text is not a whole number with one of these units, or exceeds 64 bits.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let parse = || {
        let (number, unit) = split(text)?;
        if unit.is_empty() {
            return Some(number);
        }
        let (_, factor) = SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
        number.checked_mul(*factor)
    };
    parse().ok_or_else(|| {
        format!("`{text}` is not a size; write a whole number with B, KiB, MiB, GiB or TiB, such as 64MiB")
    })
}

/// Parses a duration: `50us`, `20ms`, `30s`, `5m`, `2h`, `1d`; `0` needs no unit.
///
/// # Errors
/// One sentence, if the text is not a whole number with one of these units, or is longer than 584 years.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let parse = || {
        let (number, unit) = split(text)?;
        if number == 0 && unit.is_empty() {
            return Some(Duration::ZERO);
        }
        let (_, factor) = TIMES.iter().find(|(name, _)| *name == unit)?;
        number.checked_mul(*factor).map(Duration::from_nanos)
    };
    parse().ok_or_else(|| {
        format!("`{text}` is not a duration; write a whole number with us, ms, s, m, h or d, such as 30s")
    })
}

/// Formats a size with the largest unit that gives at least 1, with one decimal below 10: `1.5 GiB`, `64 MiB`, `12
/// B`.
pub fn format_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 9.95 && value.fract() != 0.0 {
        format!("{value:.1} {}", units[unit])
    } else {
        format!("{value:.0} {}", units[unit])
    }
}

/// Formats a size so that [`parse_size`] can parse it and gives the same number: with the largest unit that divides it,
/// such as `1536 MiB`.
pub fn format_size_exactly(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| format!("{bytes} B"), |(name, shift)| format!("{} {name}", bytes >> shift))
}

/// Formats a duration so that [`parse_duration`] can parse it: with the largest unit that divides it, such as `90s`.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0".to_owned();
    }
    let unit = TIMES.iter().rev().find(|(_, factor)| nanos.is_multiple_of(u128::from(*factor)));
    let (name, factor) = unit.unwrap_or(&TIMES[0]);
    format!("{}{name}", nanos / u128::from(*factor))
}
