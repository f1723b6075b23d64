//! One request of HTTP/1.1: read with a deadline, and with bounded sizes.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::response::Response;

/// Longest head of a request in bytes.
const LONGEST_HEAD: usize = 8 << 10;
/// Most header fields of a request.
const MOST_FIELDS: usize = 64;
/// Longest body of a request in bytes.
const LONGEST_BODY: usize = 16 << 10;
/// Longest time from the connection to the end of the request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path without the query, as sent.
    pub(crate) path: String,
    query: String,
    /// Fields with names in lower case.
    fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads a request. The error is the answer; `None` if the client sent nothing that can be answered.
    pub(crate) fn read(channel: &mut Channel<'_>) -> Result<Request, Option<Response>> {
        let until = Instant::now() + PATIENCE;
        let mut bytes = Vec::with_capacity(1024);
        let (mut request, head, length) = loop {
            if let Some(parsed) = parse(&bytes)? {
                break parsed;
            }
            if bytes.len() >= LONGEST_HEAD {
                return Err(refused(
                    431,
                    format!("the head of the request is longer than {LONGEST_HEAD} bytes"),
                ));
            }
            receive(channel, until, &mut bytes)?;
        };
        while bytes.len() < head + length {
            receive(channel, until, &mut bytes)?;
        }
        request.body = bytes[head..head + length].to_vec();
        Ok(request)
    }

    /// Returns the value of a header field; the name is in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| &**value)
    }

    /// Returns a number in the query.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.query(name)?.parse().ok()
    }

    /// Returns a value in the query, as sent: values of this server need no escapes.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Returns the value of a cookie.
    pub(crate) fn cookie(&self, name: &str) -> Option<&str> {
        let cookies =
            self.fields.iter().filter(|(field, _)| field == "cookie").flat_map(|(_, value)| value.split(';'));
        cookies
            .filter_map(|cookie| cookie.trim().split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }
}

fn refused(status: u16, message: impl Into<String>) -> Option<Response> {
    Some(Response::error(status, message))
}

/// Receives more bytes of a request.
fn receive(channel: &mut Channel<'_>, until: Instant, bytes: &mut Vec<u8>) -> Result<(), Option<Response>> {
    match channel.receive(until, bytes) {
        Ok(0) => Err(None),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            Err(refused(408, "the request did not arrive in time; send it again"))
        }
        Err(_) => Err(None),
    }
}

/// Parses the head of a request. Returns the request, the length of the head, and the length of the body; `None` if
/// the head is not complete.
fn parse(bytes: &[u8]) -> Result<Option<(Request, usize, usize)>, Option<Response>> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let head = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(refused(431, "the request has too many header fields"));
        }
        Err(error) => return Err(refused(400, format!("the request is not HTTP/1.1: {error}"))),
    };
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let text = |value: &[u8]| {
        String::from_utf8(value.to_vec()).map_err(|_| refused(400, "a header field is not text"))
    };
    let mut request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    };
    for field in parsed.headers.iter() {
        request.fields.push((field.name.to_ascii_lowercase(), text(field.value)?));
    }
    // Two of these could be understood in two ways, by a proxy and by this server.
    for name in ["host", "content-length", "authorization", "origin"] {
        if request.fields.iter().filter(|(field, _)| field == name).count() > 1 {
            return Err(refused(400, format!("the request has the header field {name} twice")));
        }
    }
    if request.field("transfer-encoding").is_some() {
        return Err(refused(501, "the request has a transfer encoding; send the length of its body"));
    }
    let length = match request.field("content-length").map(str::parse::<usize>) {
        None => 0,
        Some(Ok(length)) if length <= LONGEST_BODY => length,
        Some(Ok(_)) => return Err(refused(413, format!("the body is longer than {LONGEST_BODY} bytes"))),
        Some(Err(_)) => return Err(refused(400, "the length of the body is no number")),
    };
    Ok(Some((request, head, length)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a request from its text.
    pub(crate) fn request(text: &str) -> Request {
        parse(text.as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn heads_are_parsed_and_ambiguous_ones_are_refused() {
        let request =
            request("GET /a?b=1&c=x HTTP/1.1\r\nHost: h\r\nCookie: one=1; two=2\r\nCookie: three=3\r\n\r\n");
        assert_eq!((&*request.method, &*request.path, request.number("b")), ("GET", "/a", Some(1)));
        assert_eq!(
            (request.query("c"), request.query("d"), request.field("host")),
            (Some("x"), None, Some("h"))
        );
        assert_eq!(
            ["one", "two", "three", "four"].map(|name| request.cookie(name)),
            [Some("1"), Some("2"), Some("3"), None]
        );
        for (text, status) in [
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
            ("\u{16}\u{3}\u{1}\u{2}", 400),
        ] {
            let refused = parse(text.as_bytes()).err().flatten();
            assert_eq!(refused.map(|response| response.status), Some(status), "{text:?}");
        }
        assert!(parse(b"GET / HTTP/1.1\r\nHost: a\r\n").unwrap().is_none());
    }
}
