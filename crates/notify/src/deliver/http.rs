//! A request to a webhook.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use forebay_common::named_file;
use forebay_config::{Notify, check_webhook_url, format_duration};
use forebay_control::Event;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error};

use super::{Trouble, secret};
use crate::payload;

/// The files in which distributions have the authorities that a host trusts.
const AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The number of bytes of an answer that an error repeats.
const REPEATED: u64 = 200;

/// The parts of a request that only this process may know.
struct Secrets {
    url: String,
    token: Option<String>,
}

impl Secrets {
    /// Returns the URL and the token of a target, read from their files.
    fn of(target: &Notify) -> Result<Self, Trouble> {
        let url = match target.url.starts_with('/') {
            true => secret(Path::new(&target.url))?,
            false => target.url.clone(),
        };
        let token = target.token_file.as_deref().map(secret).transpose()?;
        check_webhook_url(&url, token.is_some()).map_err(Trouble::lasting)?;
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Trouble::lasting(
                "the token has other characters than letters, digits and signs; correct it",
            ));
        }
        Ok(Secrets { url, token })
    }

    /// Returns text without the secrets, and without control characters.
    fn hidden_in(&self, text: &str) -> String {
        let path = self.url.splitn(4, '/').nth(3).unwrap_or_default();
        let secrets = [Some(self.url.as_str()), self.token.as_deref(), Some(path)];
        let mut text = text.to_owned();
        // A short path such as `hook` is no secret, and may be a part of other words.
        for secret in secrets.into_iter().flatten().filter(|secret| secret.len() > 8) {
            text = text.replace(secret, "...");
        }
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// Finds out whether the files of the target can be used.
pub(super) fn check(target: &Notify) -> Result<(), Trouble> {
    let secrets = Secrets::of(target)?;
    if secrets.url.starts_with("https://") { authorities(target).map(drop) } else { Ok(()) }
}

/// Posts the event and waits for the answer.
pub(super) fn post(target: &Notify, event: &Event, host: &str) -> Result<(), Trouble> {
    let secrets = Secrets::of(target)?;
    let agent = agent(target, secrets.url.starts_with("https://"))?;
    let mut request = agent.post(&secrets.url).header("Content-Type", "application/json");
    if let Some(token) = &secrets.token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let body = payload::body(target.kind, event, host).to_string();
    let mut answer = request.send(&body[..]).map_err(|error| failed(target, &secrets, &error))?;
    let status = answer.status().as_u16();
    if (200..300).contains(&status) {
        return Ok(());
    }
    let mut text = Vec::new();
    // Without a text the status alone has to do.
    let _ = answer.body_mut().as_reader().take(REPEATED).read_to_end(&mut text);
    let text = secrets.hidden_in(String::from_utf8_lossy(&text).trim());
    let text = if text.is_empty() { text } else { format!(": {text}") };
    let message = format!("the webhook answered with status {status}{text}");
    // 408 and 429 ask for another attempt (RFC 9110 section 15.5.9, RFC 6585 section 4).
    match status {
        408 | 429 | 500.. => Err(Trouble::passing(message)),
        _ => Err(Trouble::lasting(message)),
    }
}

/// Returns an HTTP client for a target. It follows no redirect and uses no proxy.
fn agent(target: &Notify, is_secure: bool) -> Result<Agent, Trouble> {
    // Without any authority no certificate is trusted.
    let roots = if is_secure { authorities(target)? } else { Vec::new() };
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = Agent::config_builder()
        .timeout_global(Some(target.timeout))
        // A webhook that has moved is the administrator's to correct: the token is for this URL only.
        .max_redirects(0)
        .http_status_as_error(false)
        .proxy(None)
        .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .build();
    Ok(config.new_agent())
}

/// Returns the certificates of the authorities for the webhook's certificate.
fn authorities(target: &Notify) -> Result<Vec<Certificate<'static>>, Trouble> {
    let pem = match &target.ca_file {
        Some(file) => named_file::read(file).map_err(|error| {
            Trouble::passing(format!("{} cannot be read: {error}; correct `ca_file`", file.display()))
        })?,
        None => AUTHORITIES.iter().find_map(|file| fs::read(file).ok()).unwrap_or_default(),
    };
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        let message = match &target.ca_file {
            Some(file) => format!("{} has no certificate in PEM form; correct `ca_file`", file.display()),
            None => "this host has no certificates of authorities; install ca-certificates, or set `ca_file`"
                .into(),
        };
        return Err(Trouble::lasting(message));
    }
    Ok(certificates)
}

/// Describes a failed delivery without the secrets of the target.
fn failed(target: &Notify, secrets: &Secrets, error: &Error) -> Trouble {
    let limit = format_duration(target.timeout);
    if let Some(error) = tls_error(error) {
        let why = secrets.hidden_in(&error.to_string());
        return Trouble::passing(format!(
            "TLS with the webhook failed: {why}; see `ca_file` for a private authority"
        ));
    }
    Trouble::passing(match error {
        Error::Timeout(_) => format!("the webhook did not answer within {limit}"),
        Error::HostNotFound => {
            "the name of the webhook's host is not known; correct `url` or the name service".into()
        }
        Error::Io(error) => {
            format!("the connection to the webhook failed: {}", secrets.hidden_in(&error.to_string()))
        }
        other => format!("the request to the webhook failed: {}", secrets.hidden_in(&other.to_string())),
    })
}

/// Returns the error of TLS in an error. During a handshake it arrives as an error of the connection.
fn tls_error(error: &Error) -> Option<&rustls::Error> {
    match error {
        Error::Rustls(error) => Some(error),
        Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_no_secret() {
        let url = "https://hooks.example.org/services/T0A1/B2C3/very-secret-part".to_owned();
        let secrets = Secrets { url, token: Some("very-secret-token".into()) };
        let told = secrets.hidden_in("no very-secret-token at services/T0A1/B2C3/very-secret-part\n");
        assert_eq!(told, "no ... at ... ");
    }
}
