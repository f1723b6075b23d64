//! Limits on what each client, or all clients of an export, do in a second: `[[rate_limit]]`.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::clients::parse_networks;
use crate::problem::{Collector, Origin};
use crate::table::{Located, TableReader};
use crate::units::{format_duration, format_size_exactly, parse_duration, parse_size};
use crate::volume;

/// The largest number of limits. Each is a label of metrics.
const MOST: usize = 64;
/// The bounds of a limit on requests per second.
const REQUESTS: (u64, u64) = (1, 10_000_000);
/// The bounds of a limit on bytes per second.
const BYTES: (u64, u64) = (64 << 10, 1 << 40);
/// The bounds of the burst.
const BURST: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// A limit on the rate of each client address in some networks, or of all clients of an export together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Name, unique among limits.
    pub name: String,
    /// Networks of the clients. The first limit that has a network with the client's address counts. Empty for a limit
    /// of an export.
    pub networks: Vec<IpNet>,
    /// The name of the export whose clients share the rate.
    pub export: Option<String>,
    /// Requests per second; `None` limits only bytes.
    pub requests: Option<u64>,
    /// Bytes per second of requests and replies together; `None` limits only requests.
    pub bytes: Option<u64>,
    /// The time whose requests and bytes may come at once.
    pub burst: Duration,
}

impl RateLimit {
    /// Returns true if the limit is for the client at `address`.
    pub fn is_for(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// Reads one `[[rate_limit]]`. Returns `None` if it has no name.
pub(crate) fn read_rate_limit(
    table: Located<TableReader<'_, '_>>,
    problems: &mut Collector<'_>,
) -> Option<(Origin, RateLimit)> {
    let Located { value: mut table, origin } = table;
    let name = table.parsed("name", problems, check_name).map(|name| name.value);
    let networks = table.list("networks", problems, parse_networks).map_or(Vec::new(), |list| list.value);
    let export = table.parsed("export", problems, |text| Ok(text.to_owned())).map(|export| export.value);
    let requests = table.parsed("requests_per_second", problems, parse_requests).map(|rate| rate.value);
    let bytes = table.parsed("bytes_per_second", problems, parse_bytes).map(|rate| rate.value);
    let burst = table.parsed("burst", problems, parse_burst).map(|burst| burst.value);
    if !table.has("name") {
        problems.add(&origin, "[[rate_limit]] has no `name`; add name = \"desktops\"");
    }
    match (table.has("networks"), table.has("export")) {
        (false, false) => {
            let message =
                "[[rate_limit]] has no `networks`; add networks = [\"10.1.0.0/16\"], or export = \"/data\"";
            problems.add(&origin, message);
        }
        (true, true) => {
            let message = "[[rate_limit]] has `networks` and `export`; make two limits of it";
            problems.add(&origin, message);
        }
        _ => {}
    }
    if !table.has("requests_per_second") && !table.has("bytes_per_second") {
        let message =
            "[[rate_limit]] limits nothing; add requests_per_second = 1000 or bytes_per_second = \"100MiB\"";
        problems.add(&origin, message);
    }
    table.finish(problems);
    let networks = networks.into_iter().flat_map(|networks| networks.value).collect();
    let burst = burst.unwrap_or(Duration::from_secs(1));
    Some((origin, RateLimit { name: name?, networks, export, requests, bytes, burst }))
}

/// Checks that names are unique, that there are not too many limits, and that each limit of an export is for another
/// one of the names that `exports` have.
pub(crate) fn check_rate_limits(
    limits: &[(Origin, RateLimit)],
    exports: &[&str],
    problems: &mut Collector<'_>,
) {
    for (at, (origin, limit)) in limits.iter().enumerate() {
        if let Some(export) = &limit.export {
            if !exports.contains(&export.as_str()) {
                let message =
                    format!("there is no export {export}; its limit can name {}", exports.join(", "));
                problems.add(origin, message);
            }
            if limits[..at].iter().any(|(_, other)| other.export.as_ref() == Some(export)) {
                problems.add(origin, format!("the export {export} has two [[rate_limit]]; keep one of them"));
            }
        }
        if limits[..at].iter().any(|(_, other)| other.name == limit.name) {
            let message = format!("there are two [[rate_limit]] {}; give each its own name", limit.name);
            problems.add(origin, message);
        }
        if at == MOST {
            let message = format!("there are more than {MOST} [[rate_limit]]; join those with equal rates");
            problems.add(origin, message);
        }
    }
}

/// Returns the name of a limit if it has a valid form, which is that of a volume's name.
fn check_name(text: &str) -> Result<String, String> {
    volume::check_name("limit", text).map(|()| text.to_owned())
}

/// Parses a rate in requests per second, within `REQUESTS`.
fn parse_requests(text: &str) -> Result<u64, String> {
    let (low, high) = REQUESTS;
    let rate = text.parse().ok().filter(|rate| (low..=high).contains(rate));
    rate.ok_or_else(|| format!("`{text}` is no rate; write a whole number from {low} to {high}"))
}

/// Parses a rate in bytes per second, within `BYTES`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let (rate, (low, high)) = (parse_size(text)?, BYTES);
    match (low..=high).contains(&rate) {
        true => Ok(rate),
        false => Err(format!(
            "{} per second is out of range; write a size from {} to {}",
            format_size_exactly(rate),
            format_size_exactly(low),
            format_size_exactly(high)
        )),
    }
}

/// Parses the time whose worth of requests may come at once, within `BURST`.
fn parse_burst(text: &str) -> Result<Duration, String> {
    let (burst, (low, high)) = (parse_duration(text)?, BURST);
    match (low..=high).contains(&burst) {
        true => Ok(burst),
        false => Err(format!(
            "{} is out of range; write a time from {} to {}",
            format_duration(burst),
            format_duration(low),
            format_duration(high)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::resolved_from;

    /// Returns the limits of a file with this text, or its mistakes.
    fn resolved(text: &str) -> Result<Vec<RateLimit>, String> {
        resolved_from(text).map(|settings| settings.rate_limits)
    }

    #[test]
    fn a_limit_is_for_the_addresses_of_its_networks() {
        let text = "[[rate_limit]]\nname = \"a\"\nnetworks = [\"10.1.0.0/16\", \"fd00::/8\"]\nbytes_per_second = \"1MiB\"\n";
        let limit = resolved(text).unwrap().remove(0);
        assert_eq!((limit.requests, limit.bytes, limit.burst), (None, Some(1 << 20), Duration::from_secs(1)));
        for (address, is_for) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("fd12::1", true),
            ("10.2.0.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(limit.is_for(address.parse().unwrap()), is_for, "{address}");
        }
        assert_eq!(resolved("").unwrap(), []);
    }

    #[test]
    fn a_limit_of_an_export_is_for_no_address() {
        let text = "[[rate_limit]]\nname = \"a\"\nexport = \"/\"\nrequests_per_second = 7\n";
        let limit = resolved(text).unwrap().remove(0);
        assert_eq!((limit.export.as_deref(), limit.requests), (Some("/"), Some(7)));
        assert!(!limit.is_for([10, 1, 2, 3].into()));
    }

    #[test]
    fn mistakes_in_limits_name_the_remedy() {
        let limit = |keys: &str| format!("[[rate_limit]]\nname = \"a\"\nnetworks = [\"*\"]\n{keys}\n");
        let of_export = |export: &str, name: &str| {
            format!("[[rate_limit]]\nname = {name:?}\nexport = {export:?}\nrequests_per_second = 1\n")
        };
        assert!(resolved(&limit("requests_per_second = 1")).is_ok());
        for (text, told) in [
            (limit(""), "limits nothing"),
            (limit("requests_per_second = 0"), "no rate"),
            (limit("bytes_per_second = \"1K\""), "out of range; write a size from 64 KiB"),
            (limit("requests_per_second = 1\nburst = \"1h\""), "out of range; write a time from 10ms to 1m"),
            (limit("requests_per_second = 1\nops = 1"), "ops"),
            ("[[rate_limit]]\nrequests_per_second = 1\n".to_owned(), "has no `networks`"),
            (limit("requests_per_second = 1\nexport = \"/\""), "has `networks` and `export`"),
            (of_export("/nowhere", "a"), "there is no export /nowhere; its limit can name /"),
            (of_export("/", "a") + &of_export("/", "b"), "the export / has two"),
            (limit("requests_per_second = 1").replace("\"a\"", "\"a b\""), "`a b` is no name of a limit"),
            (limit("requests_per_second = 1").repeat(2), "two [[rate_limit]] a"),
            (
                (0..65)
                    .map(|n| limit("requests_per_second = 1").replace("\"a\"", &format!("\"a{n}\"")))
                    .collect(),
                "more than 64",
            ),
        ] {
            let problems = resolved(&text).unwrap_err();
            assert!(problems.contains(told), "{told}: {problems}");
        }
    }
}
