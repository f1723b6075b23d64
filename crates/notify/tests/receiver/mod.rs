//! A real HTTP server that a test sees each request of.

// Each test binary uses only some of the helpers.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Queue, Sender, channel};
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// One request.
pub struct Request {
    pub path: String,
    fields: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    fn read(stream: &mut impl Read) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut fields = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.split_once(':') else { break };
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = fields.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some(Request { path, fields, body: String::from_utf8(body).unwrap() })
    }

    /// Answers with a status. The body repeats the request's secrets, as a careless server may do.
    fn answer(&self, stream: &mut impl Write, status: &str) {
        let token = self.field("authorization").unwrap_or_default();
        let body = format!("{} {token}", self.path);
        let head =
            format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let _ = stream.write_all((head + &body).as_bytes());
        let _ = stream.flush();
    }
}

/// A server on a free port of the loopback address.
pub struct Receiver {
    scheme: &'static str,
    port: u16,
    requests: Queue<Request>,
}

impl Receiver {
    /// Answers each request with the next status, and all further ones with the last. Without any, nothing listens.
    pub fn answering(statuses: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = channel();
        if !statuses.is_empty() {
            std::thread::spawn(move || serve(&listener, statuses, &sender));
        }
        Receiver { scheme: "http", port, requests }
    }

    /// Takes connections and never answers.
    pub fn hanging() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (_, requests) = channel();
        std::thread::spawn(move || listener.incoming().flatten().collect::<Vec<_>>());
        Receiver { scheme: "http", port, requests }
    }

    /// Answers requests over TLS. Returns the certificate of its authority in PEM form as well.
    pub fn over_tls() -> (Self, String) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config =
            config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = ServerConnection::new(config.clone()).unwrap();
                take(StreamOwned::new(connection, stream), "200", &sender);
            }
        });
        (Receiver { scheme: "https", port, requests }, made.cert.pem())
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", self.scheme, self.port)
    }

    /// Returns the next request.
    #[track_caller]
    pub fn next(&self) -> Request {
        self.requests.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// Returns true if there is no request that `next` has not returned.
    pub fn is_idle(&self) -> bool {
        self.requests.try_recv().is_err()
    }
}

fn serve(listener: &TcpListener, statuses: &[&str], requests: &Sender<Request>) {
    let mut next = statuses.iter().chain(statuses.last().into_iter().cycle());
    for stream in listener.incoming().flatten() {
        take::<TcpStream>(stream, next.next().unwrap(), requests);
    }
}

fn take<S: Read + Write>(mut stream: S, status: &str, requests: &Sender<Request>) {
    if let Some(request) = Request::read(&mut stream) {
        request.answer(&mut stream, status);
        let _ = requests.send(request);
    }
}
