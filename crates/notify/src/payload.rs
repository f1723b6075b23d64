//! The forms in which targets get an event.

use forebay_config::NotifyKind;
use forebay_control::{Event, Severity};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

/// The facility `daemon` of syslog (RFC 5424, table 1), as part of a priority.
const DAEMON: u32 = 3 << 3;

/// Returns the time of an event.
fn time(event: &Event) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(event.time_ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the level of syslog for a severity (RFC 5424, table 2).
fn level(severity: Severity) -> u32 {
    match severity {
        Severity::Error => 3,
        Severity::Warning => 4,
        Severity::Info => 6,
    }
}

/// Returns the severity as the label of Prometheus' alerts.
fn label(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "critical",
        Severity::Warning => "warning",
        Severity::Info => "info",
    }
}

/// Returns the event as one JSON object, for programs.
pub(crate) fn plain(event: &Event, host: &str) -> Value {
    json!({
        "host": host,
        "sequence": event.sequence,
        "time": time(event).to_string(),
        "time_ns": event.time_ns,
        "severity": event.severity,
        "kind": event.kind,
        "message": event.message,
        "fields": event.fields,
    })
}

/// Returns the body of a request to a webhook of this kind.
pub(crate) fn body(kind: NotifyKind, event: &Event, host: &str) -> Value {
    match kind {
        NotifyKind::Slack => slack(event, host),
        NotifyKind::Alertmanager => json!([alert(event, host)]),
        NotifyKind::Webhook => webhook(event, host),
        // The other kinds have no requests.
        NotifyKind::Program | NotifyKind::Syslog | NotifyKind::Journal => plain(event, host),
    }
}

/// Returns a message for an incoming webhook of Slack. Slack reads `&`, `<` and `>` as markup.
fn slack(event: &Event, host: &str) -> Value {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let (severity, kind) = (event.severity.as_str(), &event.kind);
    let text = format!("*{severity}* on {}: {} (`{kind}`)", escaped(host), escaped(&event.message));
    json!({ "text": text })
}

/// Returns `device-lost` as `ForebayDeviceLost`, a name as Prometheus' rules have it.
fn alert_name(kind: &str) -> String {
    let words = kind.split('-').filter_map(|word| {
        let mut letters = word.chars();
        Some(letters.next()?.to_ascii_uppercase().to_string() + letters.as_str())
    });
    std::iter::once("Forebay".to_owned()).chain(words).collect()
}

/// Returns an alert for the API of an Alertmanager (`POST /api/v2/alerts`). The label `event` keeps two events of a
/// kind apart: an Alertmanager takes alerts with equal labels for one alert.
fn alert(event: &Event, host: &str) -> Value {
    let mut annotations = serde_json::Map::new();
    for (name, value) in &event.fields {
        // Names of annotations have letters, digits and `_` only.
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        annotations.insert(format!("field_{name}"), value.clone().into());
    }
    annotations.insert("summary".to_owned(), event.message.clone().into());
    annotations.insert("description".to_owned(), format!("{}: {}", event.kind, event.message).into());
    json!({
        "labels": {
            "alertname": alert_name(&event.kind),
            "severity": label(event.severity),
            "instance": host,
            "job": "forebay",
            "event": event.sequence.to_string(),
        },
        "annotations": annotations,
        "startsAt": time(event).to_string(),
    })
}

/// Returns the message that an Alertmanager sends to a webhook (version 4), with one alert.
fn webhook(event: &Event, host: &str) -> Value {
    let mut alert = alert(event, host);
    let (labels, annotations) = (alert["labels"].clone(), alert["annotations"].clone());
    let name = labels["alertname"].clone();
    alert["status"] = "firing".into();
    // The zero time says that the alert has no known end.
    alert["endsAt"] = "0001-01-01T00:00:00Z".into();
    alert["generatorURL"] = "".into();
    alert["fingerprint"] = format!("{:016x}", event.sequence).into();
    json!({
        "version": "4",
        "groupKey": format!("{{}}:{{alertname={name}}}"),
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "forebay",
        "groupLabels": { "alertname": name },
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "alerts": [alert],
    })
}

/// Returns the event as a datagram for the socket of syslog, in the form of the C library's syslog(3).
pub(crate) fn syslog(event: &Event, process: u32) -> Vec<u8> {
    let at = time(event).to_zoned(TimeZone::system()).strftime("%b %e %H:%M:%S").to_string();
    let message: String = event.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let priority = DAEMON | level(event.severity);
    format!("<{priority}>{at} forebay[{process}]: {}: {message}", event.kind).into_bytes()
}

/// Returns the event as a datagram for the journal, in its native protocol (systemd's JOURNAL_NATIVE_PROTOCOL).
pub(crate) fn journal(event: &Event) -> Vec<u8> {
    let mut datagram = Vec::new();
    let mut add = |name: &str, value: &str| {
        datagram.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            datagram.push(b'\n');
            datagram.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            datagram.push(b'=');
        }
        datagram.extend_from_slice(value.as_bytes());
        datagram.push(b'\n');
    };
    add("MESSAGE", &event.message);
    add("PRIORITY", &level(event.severity).to_string());
    add("SYSLOG_IDENTIFIER", "forebay");
    add("SYSLOG_FACILITY", &(DAEMON >> 3).to_string());
    add("FOREBAY_KIND", &event.kind);
    add("FOREBAY_SEVERITY", event.severity.as_str());
    add("FOREBAY_SEQUENCE", &event.sequence.to_string());
    for (name, value) in &event.fields {
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .take(50)
            .collect();
        add(&format!("FOREBAY_FIELD_{name}"), value);
    }
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event {
            sequence: 42,
            time_ns: 1_700_000_000_500_000_000,
            severity: Severity::Error,
            kind: "device-lost".to_owned(),
            message: "a < b & \"c\"".to_owned(),
            fields: [("device name".to_owned(), "/dev/x\n1".to_owned())].into(),
        }
    }

    #[test]
    fn slack_gets_a_text_without_markup_of_its_own() {
        let body = body(NotifyKind::Slack, &event(), "nas<1>");
        assert_eq!(body["text"], "*error* on nas&lt;1&gt;: a &lt; b &amp; \"c\" (`device-lost`)");
    }

    #[test]
    fn an_alertmanager_gets_an_alert_with_labels_of_its_own() {
        let body = body(NotifyKind::Alertmanager, &event(), "nas");
        let alert = &body[0];
        assert_eq!(alert["labels"]["alertname"], "ForebayDeviceLost");
        assert_eq!(alert["labels"]["severity"], "critical");
        assert_eq!((&alert["labels"]["event"], &alert["labels"]["instance"]), (&json!("42"), &json!("nas")));
        assert_eq!(alert["annotations"]["field_device_name"], "/dev/x\n1");
        assert_eq!(alert["startsAt"], "2023-11-14T22:13:20.5Z");
    }

    #[test]
    fn a_webhook_gets_the_message_of_an_alertmanager() {
        let body = body(NotifyKind::Webhook, &event(), "nas");
        assert_eq!((&body["version"], &body["status"]), (&json!("4"), &json!("firing")));
        assert_eq!(body["alerts"][0]["annotations"]["summary"], event().message);
        assert_eq!(body["commonLabels"], body["alerts"][0]["labels"]);
    }

    #[test]
    fn the_logs_of_the_host_get_one_datagram() {
        let mut told = event();
        told.message.push('\n');
        let line = String::from_utf8(syslog(&told, 7)).unwrap();
        assert!(
            line.starts_with("<27>") && line.ends_with(" forebay[7]: device-lost: a < b & \"c\" "),
            "{line}"
        );
        let fields = journal(&event());
        let has = |part: &[u8]| fields.windows(part.len()).any(|window| window == part);
        assert!(has(b"MESSAGE=a < b & \"c\"\nPRIORITY=3\n") && has(b"\nFOREBAY_KIND=device-lost\n"));
        assert!(has(b"\nFOREBAY_FIELD_DEVICE_NAME\n\x08\0\0\0\0\0\0\0/dev/x\n1\n"));
    }
}
