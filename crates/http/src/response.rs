//! Responses of HTTP/1.1. Each ends its connection.

use std::borrow::Cow;
use std::io;

use crate::channel::Channel;

/// Fields of every response. The page loads nothing from other hosts, is in no frame, and stays out of caches.
pub(crate) const FIELDS: &str = "\
Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
X-Content-Type-Options: nosniff\r\n\
Referrer-Policy: no-referrer\r\n\
Cross-Origin-Resource-Policy: same-origin\r\n\
Cache-Control: no-store\r\n\
Connection: close\r\n";

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    content_type: &'static str,
    fields: Vec<(&'static str, String)>,
    body: Cow<'static, [u8]>,
}

impl Response {
    /// Returns a response of status 200.
    pub(crate) fn ok(content_type: &'static str, body: impl Into<Cow<'static, [u8]>>) -> Self {
        Response { status: 200, content_type, fields: Vec::new(), body: body.into() }
    }

    /// Returns a response with a value as JSON.
    pub(crate) fn json(value: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Response::ok("application/json", body),
            Err(error) => Response::error(500, format!("the answer cannot be written as JSON: {error}")),
        }
    }

    /// Returns a response with a sentence for a person or a script.
    pub(crate) fn error(status: u16, message: impl Into<String>) -> Self {
        let body = serde_json::json!({ "error": message.into() }).to_string().into_bytes();
        Response { status, ..Response::ok("application/json", body) }
    }

    /// Adds a header field.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Changes the status.
    pub(crate) fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sends the response. Without `body`, sends the head only.
    pub(crate) fn send(&self, channel: &mut Channel<'_>, body: bool) -> io::Result<()> {
        let mut bytes = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{FIELDS}",
            self.status,
            reason(self.status),
            self.content_type,
            self.body.len()
        );
        for (name, value) in &self.fields {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        bytes.push_str("\r\n");
        let mut bytes = bytes.into_bytes();
        if body {
            bytes.extend_from_slice(&self.body);
        }
        channel.send(&bytes)
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}
