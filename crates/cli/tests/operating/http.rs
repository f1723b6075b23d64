//! Tests of metrics and the page over HTTP, with real servers under the strict filter of system calls.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::authority::Authority;
use crate::common::{Serving, forebay, text};

/// The answer to a request.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns a header field.
    fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Waits until a condition holds.
#[track_caller]
fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < until, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server with HTTP, and its address there.
struct Watched {
    server: Serving,
    address: String,
}

impl Watched {
    fn start(flags: &[&str]) -> Self {
        Self::of(Serving::start(&[flags, &["--http=127.0.0.1:0"]].concat()))
    }

    fn of(server: Serving) -> Self {
        let address = invitation(&server).split('/').nth(2).unwrap().to_owned();
        Self { server, address }
    }

    /// Sends bytes, and returns the answer. `Connection: close` ends it.
    fn send(&self, bytes: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // The server may answer before it has read everything.
        let _ = stream.write_all(bytes.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn ask(&self, method: &str, path: &str, fields: &str, body: &str) -> Answer {
        let (host, length) = (&self.address, body.len());
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        ))
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "")
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.server.ask(&["status", "--json"]).stdout).unwrap()
    }
}

/// Returns a URL of `forebay web`, once the page is served.
fn invitation(server: &Serving) -> String {
    wait_for(|| {
        let output = server.ask(&["web"]);
        output.status.success().then(|| text(&output.stdout).trim().to_owned())
    })
}

#[test]
fn metrics_and_the_page_are_served_to_this_host() {
    let watched = Watched::start(&[]);
    let metrics = watched.get("/metrics");
    assert_eq!(
        (metrics.status, metrics.field("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8"))
    );
    assert!(metrics.body.lines().any(|line| line == "forebay_up 1"), "{}", metrics.body);
    let open = watched.ask(
        "GET",
        "/metrics",
        "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n",
        "",
    );
    assert!(open.field("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.body.ends_with("# EOF\n"));
    let page = watched.get("/");
    assert!(
        page.body.starts_with("<!doctype html>")
            && page.field("content-security-policy").unwrap().contains("default-src 'self'")
    );
    for path in ["/app.js", "/charts.js", "/views.js", "/curve.js", "/format.js", "/style.css", "/icon.svg"] {
        let file = watched.get(path);
        assert!(file.status == 200 && file.body.len() > 100 && !file.body.contains("//cdn"), "{path}");
    }
    assert_eq!(watched.get("/api/status").json()["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(watched.get("/api/session").json()["administrator"], Value::Null);
    assert_eq!(watched.get("/api/events?last=1").json().as_array().unwrap().len(), 1);
    assert_eq!([watched.get("/none").status, watched.ask("POST", "/", "", "").status], [404, 405]);
    let head = watched.ask("HEAD", "/metrics", "", "");
    assert!(head.status == 200 && head.body.is_empty());
    let shown = text(&watched.server.ask(&["status", "--prometheus"]).stdout);
    assert!(shown.contains("forebay_build_info{version="), "{shown}");
}

#[test]
fn requests_that_are_wrong_or_of_other_sites_are_refused() {
    let watched = Watched::start(&[]);
    for (request, status) in [
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), 421),
        ("GET /metrics HTTP/1.1\r\n\r\n".to_owned(), 421),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(9000)), 431),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n".to_owned(), 413),
        ("nonsense\r\n\r\n".to_owned(), 400),
    ] {
        let answer = watched.send(&request);
        assert_eq!(answer.status, status, "{request:.40}: {}", answer.head);
        assert!(answer.json()["error"].as_str().unwrap().len() > 10);
    }
    let origin = format!("Origin: http://{}\r\n", watched.address);
    assert_eq!(watched.ask("POST", "/api/act", &origin, r#"{"action":"flush"}"#).status, 403);
    // Clients that send nothing take no place for ever, and do not keep others out.
    let idle: Vec<_> = (0..40).map(|_| TcpStream::connect(&watched.address).unwrap()).collect();
    assert_eq!(watched.get("/metrics").status, 200);
    drop(idle);
}

#[test]
fn an_invitation_gives_the_rights_of_an_administrator_once() {
    let watched = Watched::start(&[]);
    let url = invitation(&watched.server);
    let path = url.split_once(&watched.address).unwrap().1;
    let entered = watched.get(path);
    let cookie = entered.field("set-cookie").unwrap();
    assert!(
        entered.status == 303 && cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    assert_eq!(watched.get(path).status, 403);
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    let session = watched.ask("GET", "/api/session", &cookie, "").json();
    let key = session["key"].as_str().unwrap();
    let origin = format!("Origin: http://{}\r\n", watched.address);
    let act = |fields: &str, body: &str| watched.ask("POST", "/api/act", &format!("{cookie}{fields}"), body);
    let whole = format!("{origin}X-Forebay-Key: {key}\r\n");
    // Each of the two alone is what another site could send.
    assert_eq!(act(&origin, r#"{"action":"flush"}"#).status, 403);
    assert_eq!(
        act(&format!("X-Forebay-Key: {key}\r\nOrigin: http://evil.example\r\n"), r#"{"action":"flush"}"#)
            .status,
        403
    );
    assert_eq!(act(&whole, r#"{"action":"format"}"#).status, 400);
    let refused = act(&whole, r#"{"action":"mode","mode":"write-back"}"#);
    assert!(refused.status == 409 && refused.body.contains("needs a cache"), "{}", refused.body);
    assert_eq!(act(&whole, r#"{"action":"flush"}"#).status, 200);
    let events = text(&watched.server.ask(&["events", "--json"]).stdout);
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let actions: Vec<_> = events.filter(|event| event["kind"] == "web-action").collect();
    let told = |at: usize, name: &str| actions[at]["fields"][name].as_str().unwrap().to_owned();
    assert_eq!([told(0, "action"), told(1, "action")], ["mode write-back", "flush"]);
    assert_eq!(
        (told(1, "who"), &*told(1, "from")),
        (session["administrator"].as_str().unwrap().to_owned(), "127.0.0.1")
    );
    assert_eq!(watched.ask("POST", "/api/leave", &format!("{cookie}{whole}"), "").status, 200);
    assert_eq!(act(&whole, r#"{"action":"flush"}"#).status, 403);
}

#[test]
fn a_port_in_use_stops_no_server_and_is_taken_when_it_is_free() {
    let first = Watched::start(&[]);
    let second = Serving::start(&[&format!("--http={}", first.address)]);
    let status = || serde_json::from_slice::<Value>(&second.ask(&["status", "--json"]).stdout).unwrap();
    let health = wait_for(|| Some(status()["health"].clone()).filter(|health| health["state"] == "DEGRADED"));
    assert!(health["reasons"][0].as_str().unwrap().contains("in use"), "{health}");
    let refused = second.ask(&["web"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("in use"));
    assert!(text(&second.ask(&["events"]).stdout).contains("HTTP is not served"));
    let Watched { server, address } = first;
    server.running.end(Signal::TERM);
    assert!(invitation(&second).contains(&address));
    assert_eq!(status()["health"]["state"], "OK");
}

#[test]
fn without_http_there_is_no_page() {
    let refused = Serving::start(&[]).ask(&["web"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("[http]"));
}

#[test]
fn a_token_is_asked_for_and_a_bad_one_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (config, token) = (dir.path().join("forebay.toml"), dir.path().join("token"));
    std::fs::write(&config, format!("[http]\nlisten = \"127.0.0.1:0\"\ntoken_file = {token:?}\n")).unwrap();
    let config = config.to_str().unwrap();
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let watched = Watched::of(Serving::start(&["--config", config]));
    assert_eq!(watched.get("/metrics").status, 401);
    let bearer = |token: &str| {
        watched.ask("GET", "/metrics", &format!("Authorization: Bearer {token}\r\n"), "").status
    };
    assert_eq!(
        [bearer("0123456789abcdef0123456789abcdef"), bearer("0123456789abcdef0123456789abcdee")],
        [200, 401]
    );
    let path = invitation(&watched.server).split_once(&watched.address).unwrap().1.to_owned();
    let cookie = watched.get(&path).field("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(watched.ask("GET", "/", &format!("Cookie: {cookie}\r\n"), "").status, 200);
    std::fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    let open = Serving::start(&["--config", config]);
    wait_for(|| text(&open.ask(&["status"]).stdout).contains("chmod o=").then_some(()));
    std::fs::write(dir.path().join("outside.toml"), "[http]\nlisten = \"0.0.0.0:9049\"\n").unwrap();
    let outside = dir.path().join("outside.toml");
    let refused = forebay(&[
        "serve",
        dir.path().to_str().unwrap(),
        "--check-config",
        "--config",
        outside.to_str().unwrap(),
    ]);
    assert!(refused.status.code() == Some(2) && text(&refused.stderr).contains("token_file"));
}

#[test]
fn a_reload_reads_the_token_again_and_keeps_the_old_one_if_it_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let (config, token) = (dir.path().join("forebay.toml"), dir.path().join("token"));
    std::fs::write(&config, format!("[http]\nlisten = \"127.0.0.1:0\"\ntoken_file = {token:?}\n")).unwrap();
    let write = |word: &str| {
        std::fs::write(&token, word).unwrap();
        std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    };
    let [first, second] = ["0123456789abcdef", "fedcba9876543210"];
    write(first);
    let watched = Watched::of(Serving::start(&["--config", config.to_str().unwrap()]));
    let statuses = || {
        [first, second].map(|token| {
            watched.ask("GET", "/metrics", &format!("Authorization: Bearer {token}\r\n"), "").status
        })
    };
    let reload = || {
        let output = watched.server.ask(&["reload"]);
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(statuses(), [200, 401]);
    write(second);
    assert_eq!(statuses(), [200, 401], "only a reload reads it");
    assert_eq!(reload(), (Some(0), "In force now: the token of [http].\n".to_owned()));
    assert_eq!(statuses(), [401, 200]);
    // A token that cannot be used changes nothing.
    std::fs::set_permissions(&token, Permissions::from_mode(0o604)).unwrap();
    let (code, told) = reload();
    assert!(
        code == Some(2) && told.contains("chmod o=") && told.ends_with("Nothing has changed.\n"),
        "{told}"
    );
    std::fs::remove_file(&token).unwrap();
    let (code, told) = reload();
    assert!(code == Some(2) && told.contains("cannot be read") && !told.contains("not served"), "{told}");
    // Another file counts from the next start on, and the old one may be gone.
    std::fs::write(&config, "[http]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"/nonexistent/token\"\n")
        .unwrap();
    let (code, told) = reload();
    assert!(code == Some(0) && told.contains("At the next start: [http] token_file"), "{told}");
    assert_eq!(statuses(), [401, 200]);
    assert_eq!(watched.status()["health"]["state"], "OK");
}

#[test]
fn the_history_survives_a_kill_and_the_page_gets_it_live() {
    let watched = Watched::start(&[]);
    let mut stream = TcpStream::connect(&watched.address).unwrap();
    write!(stream, "GET /api/live HTTP/1.1\r\nHost: {}\r\n\r\n", watched.address).unwrap();
    let mut seen = std::collections::HashSet::new();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        seen.extend(line.strip_prefix("event: ").map(str::to_owned));
        if seen.len() == 2 {
            break;
        }
    }
    assert!(seen.contains("figures") && seen.contains("status"), "{seen:?}");
    let history = |watched: &Watched| watched.get("/api/history?span=600&points=600").json();
    // One thread adds the points and writes them to the file: the first one is there when the second is shown.
    let before =
        wait_for(|| Some(history(&watched)).filter(|shown| shown["points"].as_array().unwrap().len() > 1));
    let time = |history: &Value| history["points"][0][0].as_u64();
    assert_eq!(before["columns"][0], "time_ms");
    assert_eq!(before["points"][0].as_array().unwrap().len(), before["columns"].as_array().unwrap().len());
    let first = time(&before).unwrap();
    let watched = Watched::of(watched.server.restart(Signal::KILL));
    wait_for(|| (time(&history(&watched)) == Some(first)).then_some(()));
    // A state directory without room, or with a damaged file, harms no server.
    let figures = watched.server.state().join("figures.1");
    std::fs::write(&figures, vec![0xa5; 300_000]).unwrap();
    let watched = Watched::of(watched.server.restart(Signal::KILL));
    wait_for(|| time(&history(&watched)).filter(|time| *time > first));
    assert_eq!(watched.status()["health"]["state"], "OK");
}

/// Runs curl with a URL of the server. Returns what it printed, and its messages.
fn curl(args: &[&str]) -> (String, String) {
    let output =
        std::process::Command::new("curl").args(["-sS", "--max-time", "30"]).args(args).output().unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn https_has_the_certificate_in_force_and_plain_http_is_told_so() {
    let authority = Authority::new();
    let server = authority.issue("server", &["localhost"]);
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key, file] = ["c.pem", "k.pem", "f.toml"].map(|name| dir.path().join(name));
    let install = |pair: &crate::authority::Pair| {
        std::fs::copy(&pair.certificate, &certificate).unwrap();
        std::fs::copy(&pair.key, &key).unwrap();
        std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    };
    install(&server);
    let toml = format!(
        "[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n[http]\nlisten = \"127.0.0.1:0\"\ntls = true\n"
    );
    std::fs::write(&file, toml).unwrap();
    let serving = Serving::start(&["--config", file.to_str().unwrap()]);
    let invited = invitation(&serving);
    assert!(invited.starts_with("https://127.0.0.1:"), "{invited}");
    let watched = Watched::of(serving);
    let port = watched.address.rsplit(':').next().unwrap().to_owned();
    let url = format!("https://localhost:{port}");
    let ca = authority.file();
    let ca = ca.to_str().unwrap();
    let (metrics, told) = curl(&["--cacert", ca, &format!("{url}/metrics")]);
    assert!(metrics.lines().any(|line| line == "forebay_up 1"), "{metrics} {told}");
    let (page, told) = curl(&["--cacert", ca, "--http1.1", "-i", &invited.replace("127.0.0.1", "localhost")]);
    assert!(page.contains("303 See Other") && page.contains("; Secure"), "{page} {told}");
    let (_, told) = curl(&[&format!("{url}/metrics")]);
    assert!(told.contains("certificate"), "{told}");
    let plain = watched.get("/metrics");
    assert!(plain.status == 400 && plain.body.contains("https://"), "{}", plain.body);
    // Bytes that are no handshake end their own connection only.
    assert_eq!(watched.send("\u{16}\u{3}\u{1}\u{0}\u{5}hello").status, 0);
    // A reload puts a renewed certificate in force.
    install(&authority.issue("renewed", &["renewed.example"]));
    assert!(watched.server.ask(&["reload"]).status.success());
    let renewed = format!("renewed.example:{port}");
    let resolve = format!("{renewed}:127.0.0.1");
    let fields = ["--cacert", ca, "-H", "Host: localhost", "--resolve", &resolve];
    let (metrics, told) = curl(&[&fields[..], &[&format!("https://{renewed}/metrics")]].concat());
    assert!(metrics.contains("forebay_up 1"), "{metrics} {told}");
}
