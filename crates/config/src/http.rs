//! The settings of HTTP: metrics and the page.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::file::absolute_path;
use crate::listen::{is_loopback, overlap};
use crate::problem::{Collector, Origin};
use crate::table::{Located, TableReader};

/// The port of HTTP if none is given.
pub const HTTP_PORT: u16 = 9049;

/// Metrics and the page over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Address to listen on. Port 0 asks the system for a free port.
    pub listen: SocketAddr,
    /// File with the token that every request must bear. An address that other hosts reach needs one.
    pub token_file: Option<PathBuf>,
    /// Names of this host in URLs, besides its addresses, `localhost` and its own name.
    pub hosts: Vec<String>,
    /// True if only HTTPS is served, with the certificate of `[tls]`.
    pub tls: bool,
}

/// The settings of HTTP that the file and the flags gave so far.
#[derive(Default)]
pub(crate) struct DraftHttp {
    pub(crate) listen: Option<Located<SocketAddr>>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) hosts: Vec<String>,
    pub(crate) tls: Option<Located<bool>>,
}

/// Reads the table `[http]`.
pub(crate) fn read(mut table: TableReader<'_, '_>, problems: &mut Collector<'_>) -> DraftHttp {
    let listen = table.parsed("listen", problems, parse_http);
    let token_file = table.parsed("token_file", problems, absolute_path).map(|path| path.value);
    let hosts = table.list("hosts", problems, parse_host).into_iter().flat_map(|list| list.value);
    let hosts = hosts.map(|host| host.value).collect();
    let tls = table.boolean("tls", problems);
    table.finish(problems);
    DraftHttp { listen, token_file, hosts, tls }
}

/// Completes the draft. `nfs` are the addresses of NFS. `certified` is true if the server has a certificate.
pub(crate) fn complete(
    draft: DraftHttp,
    nfs: &[Located<SocketAddr>],
    certified: bool,
    problems: &mut Collector<'_>,
) -> Http {
    let default = || Located::flag(SocketAddr::from((Ipv4Addr::LOCALHOST, HTTP_PORT)), "--http");
    let Located { value: listen, origin } = draft.listen.unwrap_or_else(default);
    if nfs.iter().any(|nfs| overlap(&nfs.value, &listen)) {
        let message =
            format!("NFS listens on {listen}, too; give HTTP a port of its own, such as {HTTP_PORT}");
        problems.add(&origin, message);
    }
    if !is_loopback(&listen) && draft.token_file.is_none() {
        problems.add(&origin, unprotected(&listen));
    }
    let tls = draft.tls.filter(|tls| tls.value);
    if let Some(tls) = tls.as_ref().filter(|_| !certified) {
        let message = "HTTPS needs a certificate; name `certificate` and `key` of the server under [tls]";
        problems.add(&tls.origin, message);
    }
    Http { listen, token_file: draft.token_file, hosts: draft.hosts, tls: tls.is_some() }
}

/// Returns the message about an address that other hosts reach without a token.
fn unprotected(listen: &SocketAddr) -> String {
    format!(
        "other hosts reach {listen}, and every user there could read the page; name a file with a token by \
         `token_file` under [http], or listen on 127.0.0.1:{HTTP_PORT}"
    )
}

/// Parses `ADDR:PORT`, or `ADDR` alone for port 9049.
///
/// # Errors
/// One sentence, if the text is not a numeric address.
pub fn parse_http(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().map(|address| SocketAddr::new(address, HTTP_PORT));
    address.or_else(|_| text.parse()).map_err(|_| {
        format!("`{text}` is not an address for HTTP; write ADDR:PORT, such as 127.0.0.1:{HTTP_PORT}")
    })
}

/// Parses the name of a host for `hosts` under `[http]`, and returns it in lower case.
fn parse_host(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        !part.is_empty() && part.chars().all(|one| one.is_ascii_alphanumeric() || one == '-' || one == '_')
    };
    match text.split('.').all(is_part) {
        true => Ok(text.to_ascii_lowercase()),
        false => {
            Err(format!("`{text}` is no name of a host; write one such as nas.example.org, without a port"))
        }
    }
}

impl DraftHttp {
    /// Returns a draft for the address of a flag.
    pub(crate) fn listening(mut self, text: &str, problems: &mut Collector<'_>) -> Self {
        match parse_http(text) {
            Ok(address) => self.listen = Some(Located::flag(address, "--http")),
            Err(message) => problems.add(&Origin::flag("--http"), message),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use crate::{Flags, resolve};

    /// Returns the settings of a file with this text about HTTP, or its mistakes.
    fn resolved(text: &str) -> Result<Option<super::Http>, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("forebay.toml");
        std::fs::write(&file, text).unwrap();
        let flags = Flags { dir: Some(dir.path().to_owned()), config: Some(file), ..Flags::default() };
        resolve(&flags).map(|resolved| resolved.settings.http).map_err(|problems| problems.to_string())
    }

    #[test]
    fn http_is_off_unless_its_table_or_its_flag_is_there() {
        assert_eq!(resolved("").unwrap(), None);
        let http = resolved("[http]").unwrap().unwrap();
        assert_eq!(http.listen.to_string(), "127.0.0.1:9049");
        let http = resolved("[http]\nlisten = \"::1\"\nhosts = [\"NAS.example.org\"]").unwrap().unwrap();
        assert_eq!(
            (http.listen.to_string(), &http.hosts[..]),
            ("[::1]:9049".into(), &["nas.example.org".into()][..])
        );
        let dir = tempfile::tempdir().unwrap();
        let flags =
            Flags { dir: Some(dir.path().to_owned()), http: Some("127.0.0.1:80".into()), ..Flags::default() };
        assert_eq!(resolve(&flags).unwrap().settings.http.unwrap().listen.port(), 80);
    }

    #[test]
    fn an_address_for_other_hosts_needs_a_token() {
        let told = resolved("[http]\nlisten = \"0.0.0.0:9049\"").unwrap_err();
        assert!(told.contains("forebay.toml:2:") && told.contains("token_file"), "{told}");
        let with_token = "[http]\nlisten = \"0.0.0.0:9049\"\ntoken_file = \"/etc/forebay/token\"";
        assert!(resolved(with_token).unwrap().is_some());
        let told = resolved("[http]\ntls = true").unwrap_err();
        assert!(told.contains("needs a certificate"), "{told}");
        let tls = "[tls]\ncertificate = \"/c\"\nkey = \"/k\"\n[http]\ntls = ";
        assert!(resolved(&format!("{tls}true")).unwrap().unwrap().tls);
        assert!(!resolved(&format!("{tls}false")).unwrap().unwrap().tls);
        let told = resolved("[http]\nlisten = \"127.0.0.1:2049\"").unwrap_err();
        assert!(told.contains("NFS listens"), "{told}");
        let told = resolved("[http]\nlisten = \"nas\"\nhosts = [\"a b\"]\nport = 1").unwrap_err();
        assert_eq!(told.lines().count(), 3, "{told}");
    }
}
