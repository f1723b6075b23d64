//! The clients that a rule names: networks and certificates, as the configuration writes them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A certificate that a client may have shown. An authority of the server has signed it in every case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// Any certificate.
    Any,
    /// A certificate for this host name or IP address.
    Name(String),
    /// The certificate whose DER form has this SHA-256 digest.
    Fingerprint([u8; 32]),
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("tls:*"),
            Self::Name(name) => write!(f, "tls:{name}"),
            Self::Fingerprint(digest) => {
                f.write_str("tls:sha256:")?;
                digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// The clients that one entry of a rule names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    /// The clients of networks.
    Networks(Vec<IpNet>),
    /// The clients with a certificate.
    Certificate(Certificate),
}

/// Returns the loopback networks, `127.0.0.0/8` and `::1`. They may use an export without client rules.
pub fn loopback() -> Vec<IpNet> {
    vec![v4(Ipv4Addr::new(127, 0, 0, 0), 8), v6(Ipv6Addr::LOCALHOST, 128)]
}

/// Returns the networks that contain every address, written `*`.
pub fn anyone() -> Vec<IpNet> {
    vec![v4(Ipv4Addr::UNSPECIFIED, 0), v6(Ipv6Addr::UNSPECIFIED, 0)]
}

fn v4(address: Ipv4Addr, prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(address, prefix))
}

fn v6(address: Ipv6Addr, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(address, prefix))
}

/// Parses an entry of a client rule: a network as [`parse_networks`] takes it, or a certificate. A certificate is
/// `tls:NAME` for a host name or an address, `tls:sha256:HEX` for a fingerprint, or `tls:*` for every certificate.
///
/// # Errors
/// One sentence, if the text has none of these forms.
pub fn parse_clients(text: &str) -> Result<Clients, String> {
    let Some(certificate) = text.strip_prefix("tls:") else {
        return parse_networks(text).map(Clients::Networks);
    };
    let certificate = match certificate.strip_prefix("sha256:") {
        Some(hex) => Certificate::Fingerprint(parse_fingerprint(hex).ok_or_else(|| {
            format!("`{text}` has no SHA-256 fingerprint; write tls:sha256: and 64 hexadecimal digits")
        })?),
        None if certificate == "*" => Certificate::Any,
        None if is_host_name(certificate) || certificate.parse::<IpAddr>().is_ok() => {
            Certificate::Name(certificate.to_ascii_lowercase())
        }
        None => {
            return Err(format!(
                "`{text}` names no certificate; write tls:host.example.org, tls:sha256:..., or tls:* for every certificate"
            ));
        }
    };
    Ok(Clients::Certificate(certificate))
}

/// Parses 64 hexadecimal digits, with or without colons between the bytes, as openssl prints them.
fn parse_fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits = text.bytes().filter(|byte| *byte != b':').map(|byte| (byte as char).to_digit(16));
    let digits: Vec<u8> = digits.map(|digit| digit.map(|digit| digit as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

/// Returns true if the text has the form of a host name (RFC 1123), underscores included.
pub(crate) fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let valid = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        valid && (1..=63).contains(&label.len())
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Parses a network: `192.168.0.0/24`, `fd00::/8`, a single address, or `*` for every address.
///
/// # Errors
/// One sentence, if the text has none of these forms or has bits set right of its prefix, which is likely a mistake.
pub fn parse_networks(text: &str) -> Result<Vec<IpNet>, String> {
    if text == "*" {
        return Ok(anyone());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(vec![IpNet::from(address.to_canonical())]);
    }
    let network = text.parse::<IpNet>().map_err(|_| {
        format!("`{text}` is not a network; write 192.168.0.0/24, fd00::/8, a single address, or *")
    })?;
    if network.trunc() != network {
        return Err(format!("`{text}` has bits right of its prefix; write {}", network.trunc()));
    }
    Ok(vec![network])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_rules_are_networks_or_certificates() {
        let digest = "00:11".repeat(16);
        for (text, shown) in [
            ("tls:*", "tls:*".to_owned()),
            ("tls:Client.Example.org", "tls:client.example.org".to_owned()),
            ("tls:192.0.2.7", "tls:192.0.2.7".to_owned()),
            (&format!("tls:sha256:{digest}"), format!("tls:sha256:{}", "0011".repeat(16))),
        ] {
            match parse_clients(text).unwrap() {
                Clients::Certificate(certificate) => assert_eq!(certificate.to_string(), shown),
                clients => panic!("{clients:?}"),
            }
            assert_eq!(parse_clients(&shown), parse_clients(text), "what is shown can be written");
        }
        assert_eq!(parse_clients("192.0.2.0/24"), parse_networks("192.0.2.0/24").map(Clients::Networks));
        for text in ["tls:", "tls:*.example.org", "tls:a b", "tls:sha256:", "tls:sha256:00", "tls:sha256:zz"]
        {
            assert!(parse_clients(text).is_err(), "{text}");
        }
        assert!(parse_clients(&format!("tls:sha256:{}", "0".repeat(65))).is_err());
    }
}
