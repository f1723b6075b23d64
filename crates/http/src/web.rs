//! The parts of HTTP that outlive a listener: sessions, the history, and the reason why nothing is served.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_common::named_file;
use forebay_config::Http;
use forebay_control::Figures;

use crate::access::Door;
use crate::gathered::Gathered;
use crate::sessions::Sessions;

/// Shortest token in bytes.
const SHORTEST_TOKEN: usize = 16;

/// Metrics and the page of a server.
#[derive(Debug)]
pub struct Web {
    pub(crate) settings: Option<Http>,
    pub(crate) sessions: Sessions,
    pub(crate) gathered: Gathered,
    pub(crate) figures: Arc<Figures>,
    /// The token that requests must bear; `None` if there is no `token_file`, or the listener has not read it yet.
    token: Arc<Mutex<Option<String>>>,
    state: Mutex<State>,
}

/// The state of the listener.
#[derive(Debug, Default)]
struct State {
    address: Option<SocketAddr>,
    trouble: Option<String>,
}

impl Web {
    /// Returns the parts of HTTP for a server with these settings and this history.
    pub fn new(settings: Option<Http>, figures: Arc<Figures>) -> Self {
        Web {
            settings,
            sessions: Sessions::default(),
            gathered: Gathered::default(),
            figures,
            token: Arc::default(),
            state: Mutex::default(),
        }
    }

    /// Returns the reason why the configured address is not served, with the remedy.
    pub fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    /// Returns a URL that opens the page with the rights of an administrator, once and within two minutes.
    ///
    /// # Errors
    /// No page is served; the error says how to have one.
    pub fn invite(&self, who: &str) -> Result<String, String> {
        if self.settings.is_none() {
            return Err(
                "this server serves no page; start it with --http, or add `[http]` to its configuration"
                    .into(),
            );
        }
        if let Some(trouble) = self.trouble() {
            return Err(trouble);
        }
        let Some(address) = self.state.lock().address else {
            return Err("the page is not served yet; ask again in a second".into());
        };
        // A browser cannot connect to a wildcard address.
        let shown = match (address.ip().is_unspecified(), address) {
            (false, address) => address.to_string(),
            (true, SocketAddr::V4(address)) => format!("127.0.0.1:{}", address.port()),
            (true, SocketAddr::V6(address)) => format!("[::1]:{}", address.port()),
        };
        Ok(format!("{}{shown}/enter?invitation={}", self.scheme(), self.sessions.invite(who)?))
    }

    /// Returns the beginning of URLs.
    pub(crate) fn scheme(&self) -> &'static str {
        let is_secured = self.settings.as_ref().is_some_and(|settings| settings.tls);
        if is_secured { "https://" } else { "http://" }
    }

    /// Records the result of an attempt to listen. Returns true if it differs from the last one.
    pub(crate) fn listening(&self, result: Result<SocketAddr, String>) -> bool {
        let mut state = self.state.lock();
        let (address, trouble) = match result {
            Ok(address) => (Some(address), None),
            Err(trouble) => (None, Some(trouble)),
        };
        let differs = (&state.address, &state.trouble) != (&address, &trouble);
        *state = State { address, trouble };
        differs
    }

    /// Returns the rules for requests to `address`.
    ///
    /// # Errors
    /// The token cannot be used; the error names its file and the remedy.
    pub(crate) fn door(&self, settings: &Http, address: SocketAddr) -> Result<Door, String> {
        let read = token(settings);
        *self.token.lock() = read.map_err(|reason| format!("HTTP is not served: {reason}"))?;
        let token = self.token.clone();
        let mut hosts = settings.hosts.clone();
        hosts.push(rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase());
        Ok(Door { address, token, hosts, scheme: self.scheme() })
    }

    /// Reads the token again if the new `settings` still name its file: another file counts from the next start on.
    /// Returns `None` if no token is read. A listener that waits for its address or its token reads the token itself.
    ///
    /// # Errors
    /// The token cannot be used; the error names its file and the remedy.
    pub fn new_token(&self, settings: Option<&Http>) -> Result<Option<String>, String> {
        let is_listening = self.state.lock().address.is_some();
        let file_of = |settings: Option<&Http>| settings.and_then(|settings| settings.token_file.clone());
        let file = file_of(self.settings.as_ref()).filter(|_| is_listening);
        file.filter(|file| file_of(settings).as_ref() == Some(file)).as_deref().map(read_token).transpose()
    }

    /// Has all further requests bear this token. Returns true if it differs from the one before.
    pub fn set_token(&self, new: String) -> bool {
        let mut token = self.token.lock();
        let differs = token.as_ref() != Some(&new);
        *token = Some(new);
        differs
    }
}

/// Returns the token that requests must bear; `None` if the settings name no file with one.
///
/// # Errors
/// The token cannot be used; the error names its file and the remedy.
pub fn token(settings: &Http) -> Result<Option<String>, String> {
    settings.token_file.as_deref().map(read_token).transpose()
}

/// Reads a token.
fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let failed = |error: std::io::Error| {
        format!(
            "the token_file {shown} cannot be read: {error}; correct `token_file` under [http], or the rights of the file"
        )
    };
    let mode = named_file::open(path).and_then(|file| file.metadata()).map_err(failed)?.permissions().mode();
    if mode & 0o007 != 0 {
        return Err(format!(
            "every user of this host has access to the token_file {shown}; run `chmod o= {shown}`"
        ));
    }
    let text = named_file::read_text(path).map_err(failed)?;
    let token = text.trim();
    if token.len() < SHORTEST_TOKEN || token.len() > 1024 || token.contains(char::is_whitespace) {
        return Err(format!(
            "the token_file {shown} does not hold one word of {SHORTEST_TOKEN} to 1024 characters; make one with \
             `openssl rand -hex 32`"
        ));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn a_token_is_one_long_word_that_not_everybody_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let held = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            read_token(&path)
        };
        assert_eq!(held("0123456789abcdef\n", 0o640), Ok("0123456789abcdef".into()));
        assert!(held("0123456789abcdef\n", 0o644).unwrap_err().contains("chmod o="));
        assert!(held("short", 0o600).unwrap_err().contains("openssl"));
        assert!(held("0123456789 0123456789", 0o600).is_err());
        assert!(read_token(&dir.path().join("none")).unwrap_err().contains("cannot be read"));
        // The rights of a device are not the administrator's to change.
        let told = read_token(Path::new("/dev/null")).unwrap_err();
        assert!(told.contains("it is a device") && !told.contains("chmod"), "{told}");
    }

    #[test]
    fn an_invitation_needs_a_page() {
        let figures = Arc::new(Figures::new(Path::new("/nonexistent")));
        assert!(Web::new(None, figures.clone()).invite("jo").unwrap_err().contains("[http]"));
        let listen = "0.0.0.0:0".parse().unwrap();
        let web = Web::new(Some(Http { listen, token_file: None, hosts: Vec::new(), tls: false }), figures);
        assert!(web.invite("jo").unwrap_err().contains("not served yet"));
        assert!(web.listening(Err("busy".into())) && !web.listening(Err("busy".into())));
        assert_eq!((web.invite("jo"), web.trouble()), (Err("busy".into()), Some("busy".into())));
        assert!(web.listening(Ok("0.0.0.0:9049".parse().unwrap())));
        assert!(web.invite("jo").unwrap().starts_with("http://127.0.0.1:9049/enter?invitation="));
    }
}
