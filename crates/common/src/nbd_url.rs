//! URLs of NBD exports, which name cache devices and backing devices in place of paths (`doc/uri.md` of
//! NetworkBlockDevice/nbd).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The port of servers whose URL names none.
const DEFAULT_PORT: u16 = 10809;
/// The longest name of an export in bytes.
const LONGEST_NAME: usize = 4096;
/// The longest path of a Unix socket in bytes.
const LONGEST_SOCKET: usize = 107;

/// The place of an NBD server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NbdServer {
    /// A host by its name or address, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The URL of an export of an NBD server.
#[derive(Debug, Clone)]
pub struct NbdUrl {
    text: String,
    server: NbdServer,
    export: String,
}

/// Two URLs are equal if they lead to one export.
impl PartialEq for NbdUrl {
    fn eq(&self, other: &Self) -> bool {
        (&self.server, &self.export) == (&other.server, &other.export)
    }
}

impl Eq for NbdUrl {}

impl NbdUrl {
    /// Returns true if `path` is written as the URL of an NBD export, perhaps a wrong one.
    pub fn is_meant(path: &Path) -> bool {
        let Some((scheme, _)) = path.to_str().and_then(|text| text.split_once("://")) else { return false };
        ["nbd", "nbds", "nbd+unix", "nbds+unix", "nbd+vsock", "nbds+vsock"].contains(&scheme)
    }

    /// Returns the URL that `path` is; `None` if `path` is no URL of an NBD export.
    pub fn of(path: &Path) -> Option<Self> {
        if Self::is_meant(path) { Self::parse(path.to_str()?).ok() } else { None }
    }

    /// Parses `nbd://HOST[:PORT][/NAME]` or `nbd+unix:///[NAME]?socket=PATH`. `%XX` stands for a byte.
    ///
    /// # Errors
    /// A sentence that names the URL and the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!("`{text}` {what}; write nbd://HOST[:PORT]/NAME or nbd+unix:///NAME?socket=PATH")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("is no URL"))?;
        let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
        let (authority, name) = place.split_once('/').unwrap_or((place, ""));
        if name.len() > LONGEST_NAME || text.chars().any(|c| c.is_control() || c == ' ' || c == '#') {
            return Err(wrong("has a character that a URL cannot have, or is too long"));
        }
        let export = decoded(name).ok_or_else(|| wrong("has a name that is not valid text"))?;
        let server = match (scheme, query) {
            ("nbd", None) => tcp(authority).ok_or_else(|| wrong("names no host or no port that exists"))?,
            ("nbd", Some(_)) => return Err(wrong("has parameters, which a URL of TCP does not have")),
            ("nbd+unix", Some(query)) if authority.is_empty() => {
                unix(query).ok_or_else(|| wrong("names no absolute path of a socket of at most 107 bytes"))?
            }
            ("nbd+unix", _) => return Err(wrong("names no socket")),
            _ => return Err(wrong("asks for a transport other than TCP and Unix sockets without TLS")),
        };
        Ok(NbdUrl { text: text.to_owned(), server, export })
    }

    /// Returns the URL as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the server.
    pub fn server(&self) -> &NbdServer {
        &self.server
    }

    /// Returns the name of the export; empty for the server's default export.
    pub fn export(&self) -> &str {
        &self.export
    }
}

impl NbdUrl {
    /// Returns true if the server is one of this host that listens at these addresses or sockets. The name of a host is
    /// not looked up, except `localhost`.
    pub fn is_at(&self, listen: &[SocketAddr], sockets: &[PathBuf]) -> bool {
        let (host, port) = match &self.server {
            NbdServer::Unix(socket) => return sockets.contains(socket),
            NbdServer::Tcp(host, port) => (host.as_str(), *port),
        };
        let own =
            if host == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { host.parse::<IpAddr>().ok() };
        let is_it = |own: IpAddr, at: &SocketAddr| {
            at.port() == port && (at.ip() == own || (own.is_loopback() && at.ip().is_unspecified()))
        };
        own.is_some_and(|own| listen.iter().any(|at| is_it(own, at)))
    }
}

impl std::fmt::Display for NbdUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`. A user or password is refused.
fn tcp(authority: &str) -> Option<NbdServer> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    let port = match port {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
        None => DEFAULT_PORT,
    };
    let is_good = !host.is_empty() && port > 0 && host.bytes().all(is_plain);
    is_good.then(|| NbdServer::Tcp(host.to_owned(), port))
}

/// Reads the path of a Unix socket from the query of a URL. `None` unless the path is absolute and short enough for a
/// socket.
fn unix(query: &str) -> Option<NbdServer> {
    let socket = decoded(query.strip_prefix("socket=")?)?;
    let is_good = socket.starts_with('/') && socket.len() <= LONGEST_SOCKET && !socket.contains('&');
    is_good.then(|| NbdServer::Unix(socket.into()))
}

/// Replaces each `%XX` by its byte. Returns `None` if the result is not valid text, or has a NUL character.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&byte, more)) = rest.split_first() {
        rest = more;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        rest = more;
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (NbdServer, String) {
        let url = NbdUrl::parse(text).unwrap();
        assert_eq!(url.as_str(), text);
        (url.server().clone(), url.export().to_owned())
    }

    #[test]
    fn a_url_names_a_server_and_an_export() {
        let tcp = |host: &str, port| NbdServer::Tcp(host.to_owned(), port);
        assert_eq!(parts("nbd://ssd1"), (tcp("ssd1", 10809), String::new()));
        assert_eq!(parts("nbd://10.0.0.1:7/leg"), (tcp("10.0.0.1", 7), "leg".to_owned()));
        assert_eq!(parts("nbd://[fe80::1]:7/a/b%20c"), (tcp("fe80::1", 7), "a/b c".to_owned()));
        assert_eq!(parts("nbd://[::1]"), (tcp("::1", 10809), String::new()));
        let socket = NbdServer::Unix("/run/a b.sock".into());
        assert_eq!(parts("nbd+unix:///leg?socket=/run/a%20b.sock"), (socket.clone(), "leg".to_owned()));
        assert_eq!(parts("nbd+unix://?socket=/run/a%20b.sock"), (socket, String::new()));
    }

    #[test]
    fn a_wrong_url_is_refused_with_the_right_form() {
        for text in [
            "nbd://",
            "nbd://:7/x",
            "nbd://h:0/x",
            "nbd://h:70000",
            "nbd://h:+7",
            "nbd://user:secret@h/x",
            "nbd://[::1/x",
            "nbd://[h]/x",
            "nbd://h/a%zz",
            "nbd://h/%ff",
            "nbd://h/%00",
            "nbd://h/a b",
            "nbd://h/x?socket=/s",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=relative",
            "nbd+unix://h/x?socket=/s",
            "nbd+unix:///x?socket=/s&tls=1",
            "nbds://h/x",
            "http://h/x",
            "/dev/sda",
        ] {
            let told = NbdUrl::parse(text).unwrap_err();
            assert!(told.contains("write nbd://HOST") && told.starts_with(&format!("`{text}`")), "{told}");
        }
        let long = format!("nbd+unix:///x?socket=/{}", "a".repeat(107));
        assert!(NbdUrl::parse(&long).is_err());
    }

    #[test]
    fn a_server_of_this_host_is_known() {
        let listen = ["127.0.0.1:7", "[::]:8"].map(|at| at.parse().unwrap());
        let is_own = |text: &str| NbdUrl::parse(text).unwrap().is_at(&listen, &["/run/a".into()]);
        for own in
            ["nbd://127.0.0.1:7/x", "nbd://localhost:7", "nbd://[::1]:8", "nbd+unix:///x?socket=/run/a"]
        {
            assert!(is_own(own), "{own}");
        }
        for other in
            ["nbd://127.0.0.1:9/x", "nbd://10.0.0.1:7", "nbd://host:8", "nbd+unix:///x?socket=/run/b"]
        {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn only_urls_of_exports_are_meant() {
        assert!(NbdUrl::is_meant(Path::new("nbd://h/x")) && NbdUrl::is_meant(Path::new("nbds://")));
        for path in ["/dev/nbd0", "nbd", "nbd:/h/x", "http://h", "./nbd://h"] {
            assert!(!NbdUrl::is_meant(Path::new(path)), "{path}");
        }
        assert!(NbdUrl::of(Path::new("nbd://")).is_none());
        let (one, other) =
            (NbdUrl::parse("nbd://h/a%62").unwrap(), NbdUrl::parse("nbd://h:10809/ab").unwrap());
        assert!(one == other && one != NbdUrl::parse("nbd://h/a").unwrap());
    }
}
