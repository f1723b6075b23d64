//! The rights of a request.
//!
//! | request | rights |
//! |---|---|
//! | with the token of `token_file` | look |
//! | without, and no token is configured | look, if its host is one of this server |
//! | with the cookie of a session | look, and act as its administrator |
//!
//! A page of another site can make a browser send requests here. So an action needs the key of the session in a header
//! field, and the origin of this server. A name of another site may lead to this address (DNS rebinding), so the host
//! of a request must be an address or a name of this server.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use forebay_common::lock::Mutex;

use crate::request::Request;
use crate::response::Response;
use crate::sessions::{Administrator, Sessions, is_equal};

/// The rules by which requests have rights.
#[derive(Debug)]
pub(crate) struct Door {
    /// The address that the server listens on.
    pub(crate) address: SocketAddr,
    /// The token of `token_file`. A reload replaces it.
    pub(crate) token: Arc<Mutex<Option<String>>>,
    /// Names of this host, in lower case.
    pub(crate) hosts: Vec<String>,
    /// The beginning of URLs: `http://` or `https://`.
    pub(crate) scheme: &'static str,
}

/// The rights of a request.
#[derive(Debug)]
pub(crate) enum Rights {
    /// It may read everything.
    Look,
    /// It may read everything, and act as this administrator.
    Act(Administrator),
}

impl Door {
    /// Returns the name of the cookie. Servers on other ports of this host get each other's cookies.
    pub(crate) fn cookie(&self) -> String {
        format!("forebay_{}", self.address.port())
    }

    /// Returns the rights of a request, or the refusal.
    pub(crate) fn rights(&self, request: &Request, sessions: &Sessions) -> Result<Rights, Response> {
        if self.bears_token(request) {
            return Ok(Rights::Look);
        }
        self.check_host(request)?;
        if let Some(administrator) = request.cookie(&self.cookie()).and_then(|secret| sessions.of(secret)) {
            return Ok(Rights::Act(administrator));
        }
        match self.token.lock().is_some() {
            true => {
                let message = "the page needs a token: run `forebay web` on the server and open its URL, or send \
                               `Authorization: Bearer TOKEN` with the token of token_file";
                Err(Response::error(401, message).with("WWW-Authenticate", "Bearer"))
            }
            false => Ok(Rights::Look),
        }
    }

    /// Refuses a request for a host that is not this one.
    pub(crate) fn check_host(&self, request: &Request) -> Result<(), Response> {
        let host = request.field("host").unwrap_or_default();
        match self.is_own(host) {
            true => Ok(()),
            false => {
                let message = format!(
                    "this server is not known as {host:?}; use an address, or add the name to `hosts` under [http]"
                );
                Err(Response::error(421, message))
            }
        }
    }

    /// Refuses an action that does not come from the page of this server, with the key of its administrator.
    pub(crate) fn check_action(
        &self,
        request: &Request,
        administrator: &Administrator,
    ) -> Result<(), Response> {
        let origin = request.field("origin").and_then(|origin| origin.strip_prefix(self.scheme));
        let is_own = origin.is_some() && origin == request.field("host");
        let key = request.field("x-forebay-key").unwrap_or_default();
        if is_own && is_equal(key, &administrator.key) {
            return Ok(());
        }
        Err(Response::error(
            403,
            "the action does not come from the page of this server; open the page again",
        ))
    }

    /// Returns true if the request has the token of a monitoring program.
    fn bears_token(&self, request: &Request) -> bool {
        let bearer = request.field("authorization").and_then(|field| field.strip_prefix("Bearer "));
        bearer.zip(self.token.lock().as_deref()).is_some_and(|(given, token)| is_equal(given.trim(), token))
    }

    /// Returns true if the host of a request, with or without a port, names this server.
    fn is_own(&self, host: &str) -> bool {
        let has_port = |rest: &str| {
            rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
        };
        if let Some((address, rest)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            return address.parse::<IpAddr>().is_ok() && has_port(rest);
        }
        let (name, port) = host.find(':').map_or((host, ""), |at| host.split_at(at));
        // An address is no name that another site could have.
        let is_known = name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        is_known && has_port(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;

    fn door(token: Option<&str>) -> Door {
        let address = "127.0.0.1:9049".parse().unwrap();
        let hosts = vec!["nas.example.org".into()];
        Door { address, token: Arc::new(Mutex::new(token.map(str::to_owned))), hosts, scheme: "http://" }
    }

    fn get(fields: &str) -> Request {
        request(&format!("GET / HTTP/1.1\r\n{fields}\r\n"))
    }

    #[test]
    fn the_host_must_be_this_one() {
        for host in
            ["127.0.0.1:9049", "localhost:9049", "LOCALHOST", "[::1]:9049", "10.1.2.3", "NAS.example.org:80"]
        {
            assert!(door(None).check_host(&get(&format!("Host: {host}\r\n"))).is_ok(), "{host}");
        }
        for host in
            ["evil.example:9049", "127.0.0.1.evil.example", "localhost:x", "[::1", "nas.example.org.evil"]
        {
            let refused = door(None).check_host(&get(&format!("Host: {host}\r\n"))).unwrap_err();
            assert_eq!(refused.status, 421, "{host}");
        }
        assert!(door(None).check_host(&get("")).is_err());
    }

    #[test]
    fn a_configured_token_is_needed_by_all_but_sessions() {
        let (door, sessions) = (door(Some("secret-of-16-chars")), Sessions::default());
        let status = |fields: &str| {
            door.rights(&get(fields), &sessions).map_or_else(|refused| refused.status, |_| 200)
        };
        assert_eq!(status("Host: localhost\r\n"), 401);
        assert_eq!(status("Host: localhost\r\nAuthorization: Bearer secret-of-16-charx\r\n"), 401);
        assert_eq!(status("Host: other\r\nAuthorization: Bearer secret-of-16-chars\r\n"), 200);
        let session = sessions.enter(&sessions.invite("jo").unwrap()).unwrap();
        assert_eq!(status(&format!("Host: localhost\r\nCookie: forebay_9049={session}\r\n")), 200);
        assert_eq!(status(&format!("Host: evil.example\r\nCookie: forebay_9049={session}\r\n")), 421);
    }

    #[test]
    fn an_action_needs_the_key_and_the_origin() {
        let administrator = Administrator { who: "jo".into(), key: "k".repeat(64) };
        let key = &administrator.key;
        let check = |fields: &str| door(None).check_action(&get(fields), &administrator).is_ok();
        assert!(check(&format!(
            "Host: localhost:9049\r\nOrigin: http://localhost:9049\r\nX-Forebay-Key: {key}\r\n"
        )));
        assert!(!check(&format!(
            "Host: localhost:9049\r\nOrigin: http://localhost:8000\r\nX-Forebay-Key: {key}\r\n"
        )));
        assert!(!check(&format!("Host: localhost:9049\r\nOrigin: null\r\nX-Forebay-Key: {key}\r\n")));
        assert!(!check(&format!("Host: localhost:9049\r\nX-Forebay-Key: {key}\r\n")));
        assert!(!check("Host: localhost:9049\r\nOrigin: http://localhost:9049\r\n"));
        let secured = Door { scheme: "https://", ..door(None) };
        let from = |scheme: &str| {
            format!("Host: localhost:9049\r\nOrigin: {scheme}localhost:9049\r\nX-Forebay-Key: {key}\r\n")
        };
        assert!(secured.check_action(&get(&from("https://")), &administrator).is_ok());
        assert!(secured.check_action(&get(&from("http://")), &administrator).is_err());
    }
}
