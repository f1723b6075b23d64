//! Paths and their answers.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_control::{ActivityGroup, COLUMNS, Past, Point};
use serde_json::{Value, json};

use crate::access::{Door, Rights};
use crate::actions::act;
use crate::metrics::{Format, render};
use crate::request::Request;
use crate::response::Response;
use crate::server::Served;

/// The largest number of clients on the page.
const MOST_CLIENTS: usize = 100;
/// The largest number of points of a series.
const MOST_POINTS: u64 = 2000;
/// The largest number of events at once.
const MOST_EVENTS: u64 = 1000;

/// The files of the page: path, type, contents.
const FILES: [(&str, &str, &str); 8] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("page/app.js")),
    ("/charts.js", "text/javascript; charset=utf-8", include_str!("page/charts.js")),
    ("/curve.js", "text/javascript; charset=utf-8", include_str!("page/curve.js")),
    ("/views.js", "text/javascript; charset=utf-8", include_str!("page/views.js")),
    ("/format.js", "text/javascript; charset=utf-8", include_str!("page/format.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// An answer, or the stream of events.
pub(crate) enum Answer {
    Whole(Response),
    Live,
}

/// Returns the answer to a request.
pub(crate) fn answer(request: &Request, from: SocketAddr, door: &Door, served: &Served) -> Answer {
    route(request, from, door, served).unwrap_or_else(Answer::Whole)
}

/// Checks the rights of the request and carries it out. Returns the response of a refusal as the error. Only `/enter`
/// needs no rights, because its invitation gives them.
fn route(request: &Request, from: SocketAddr, door: &Door, served: &Served) -> Result<Answer, Response> {
    let is_reading = matches!(&*request.method, "GET" | "HEAD");
    if request.path == "/enter" && is_reading {
        door.check_host(request)?;
        return Ok(Answer::Whole(enter(request, door, served)));
    }
    let rights = door.rights(request, &served.web.sessions)?;
    let whole = match (&*request.path, is_reading) {
        ("/api/act", false) => return action(request, &rights, from, door, served).map(Answer::Whole),
        ("/api/leave", false) => leave(request, &rights, door, served)?,
        (_, false) => {
            return Err(Response::error(405, "only GET and HEAD are served here").with("Allow", "GET, HEAD"));
        }
        ("/api/live", true) => return Ok(Answer::Live),
        ("/metrics", true) => metrics(request, served),
        ("/api/status", true) => Response::json(&shown_status(served)),
        ("/api/advice", true) => advice(served),
        ("/api/activity", true) => Response::json(&shown_activity(&rights, served)),
        ("/api/session", true) => session(&rights),
        ("/api/history", true) => history(request, served),
        ("/api/events", true) => events(request, served),
        (path, true) => match FILES.iter().find(|(name, ..)| *name == path) {
            Some((_, content_type, text)) => Response::ok(content_type, text.as_bytes()),
            None => return Err(Response::error(404, format!("there is no {path}; the page is at /"))),
        },
    };
    Ok(Answer::Whole(whole))
}

/// Uses an invitation, and leads to the page.
fn enter(request: &Request, door: &Door, served: &Served) -> Response {
    let session = request.query("invitation").and_then(|invitation| served.web.sessions.enter(invitation));
    let Some(session) = session else {
        return Response::error(
            403,
            "the invitation was used or is older than two minutes; run `forebay web` again",
        );
    };
    let secure = if door.scheme == "https://" { "; Secure" } else { "" };
    let cookie = format!("{}={session}; HttpOnly; SameSite=Strict; Path=/{secure}", door.cookie());
    Response::ok("text/plain", &b""[..]).status(303).with("Location", "/").with("Set-Cookie", cookie)
}

/// Ends the administrator's session, if the request belongs to one. A reader without a session gets the answer of
/// success as well.
fn leave(request: &Request, rights: &Rights, door: &Door, served: &Served) -> Result<Response, Response> {
    if let Rights::Act(administrator) = rights {
        door.check_action(request, administrator)?;
        request.cookie(&door.cookie()).iter().for_each(|secret| served.web.sessions.leave(secret));
    }
    Ok(Response::json(&json!({ "message": "The rights of an administrator are given up." })))
}

/// Carries out an action of an administrator. Fails with 403 without a session, or if the request may come from a
/// page of another site.
fn action(
    request: &Request,
    rights: &Rights,
    from: SocketAddr,
    door: &Door,
    served: &Served,
) -> Result<Response, Response> {
    let Rights::Act(administrator) = rights else {
        let message = "only an administrator may do that; run `forebay web` on the server, and open its URL";
        return Err(Response::error(403, message));
    };
    door.check_action(request, administrator)?;
    Ok(act(request, administrator, from.ip(), served))
}

/// Returns the administrator's name and the key that actions must send, or null for a reader.
fn session(rights: &Rights) -> Response {
    match rights {
        Rights::Look => Response::json(&json!({ "administrator": null })),
        Rights::Act(one) => Response::json(&json!({ "administrator": one.who, "key": one.key })),
    }
}

/// Returns the miss-ratio curve and what follows from it, or the reason why there is none.
fn advice(served: &Served) -> Response {
    match served.handler.advise() {
        Ok(advice) => Response::json(&json!(advice)),
        Err(message) => Response::json(&json!({ "none": message })),
    }
}

/// Returns the metrics in the format that the client accepts. The figures may be a second old, because several
/// readers share a gathering.
fn metrics(request: &Request, served: &Served) -> Response {
    let accepts = request.field("accept").unwrap_or_default();
    let format = match accepts.contains("application/openmetrics-text") {
        true => Format::OpenMetrics,
        false => Format::Text,
    };
    let gathering = served.web.gathered.get(served.handler.as_ref());
    Response::ok(format.content_type(), render(&gathering, format).into_bytes())
}

/// Returns the figures of the last `span` seconds, in at most `points` points. By default that is an hour in 600
/// points.
fn history(request: &Request, served: &Served) -> Response {
    let span = Duration::from_secs(request.number("span").unwrap_or(3600).min(366 * 86_400));
    let most = request.number("points").unwrap_or(600).clamp(1, MOST_POINTS) as usize;
    let now = served.web.gathered.get(served.handler.as_ref()).sample.time_ns / 1_000_000;
    // The last gathering may be a second old.
    let series = served.web.figures.last(span, most, now + 1000);
    let points: Vec<_> = series.points.iter().map(point_values).collect();
    let columns: Vec<_> = std::iter::once("time_ms").chain(COLUMNS.iter().copied()).collect();
    Response::json(&json!({ "step_ms": series.step_ms, "columns": columns, "points": points }))
}

/// Returns the last events as JSON: 200, or as many as the request asks for, at most `MOST_EVENTS`.
fn events(request: &Request, served: &Served) -> Response {
    let last = request.number("last").unwrap_or(200).min(MOST_EVENTS) as usize;
    Response::json(&served.handler.events().past(Past { last: Some(last), since_ns: None }))
}

/// Returns a point as the page gets it: its time, and its figures in the order of [`COLUMNS`].
pub(crate) fn point_values(point: &Point) -> Vec<Value> {
    let figures = point.values().into_iter().map(|value| json!(rounded(value)));
    std::iter::once(json!(point.time_ms)).chain(figures).collect()
}

/// Returns a figure with four digits, which are all that a chart shows.
fn rounded(value: f32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let value = f64::from(value);
    let digits = 3 - value.abs().log10().floor() as i32;
    match 10_f64.powi(digits.abs()) {
        scale if digits >= 0 => (value * scale).round() / scale,
        scale => (value / scale).round() * scale,
    }
}

/// Returns the status for the page, with the busiest clients only.
pub(crate) fn shown_status(served: &Served) -> Value {
    let mut status = served.web.gathered.get(served.handler.as_ref()).status.clone();
    let clients = status.clients.len();
    status.clients.truncate(MOST_CLIENTS);
    let mut value = json!(status);
    value["clients_known"] = json!(clients);
    value
}

/// Returns what clients do, for the page. Every user of this host may look at the page, and may not know the names of
/// files: only an administrator gets them.
fn shown_activity(rights: &Rights, served: &Served) -> Value {
    let mut activity = served.web.gathered.get(served.handler.as_ref()).activity.clone();
    if matches!(rights, Rights::Look) {
        activity.files = ActivityGroup::default();
    }
    json!(activity)
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn figures_have_four_digits() {
        let shown = [0.0, 123_456.0, 0.001_234_56, -98.768, f32::NAN].map(rounded);
        assert_eq!(shown, [0.0, 123_500.0, 0.001_235, -98.77, 0.0]);
    }
}
