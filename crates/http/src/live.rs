//! Server-sent events: the figures of each second, the status every other second, and events as they happen.

use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::channel::Channel;
use crate::response::FIELDS;
use crate::routes::{point_values, shown_status};
use crate::server::Served;

/// Longest time of one stream. A browser then connects again.
const LONGEST: Duration = Duration::from_secs(3600);
/// Longest wait for the next figures.
const WAIT: Duration = Duration::from_millis(1500);

/// Sends events until the client or the server ends.
pub(crate) fn follow(channel: &mut Channel<'_>, served: &Served) -> io::Result<()> {
    channel.send(format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{FIELDS}\r\n").as_bytes())?;
    let until = Instant::now() + LONGEST;
    let events = served.handler.events();
    let (mut figures, mut event, mut round) = (0, events.newest(), 0_u32);
    while Instant::now() < until && !served.is_stopping() {
        // A comment shows that the connection is alive.
        let mut text = ":\n\n".to_owned();
        if let Some((number, point)) = served.web.figures.after(figures, WAIT) {
            figures = number;
            push(&mut text, "figures", &json!(point_values(&point)));
        }
        if round.is_multiple_of(2) {
            push(&mut text, "status", &shown_status(served));
        }
        for one in events.after(event, Duration::ZERO) {
            event = one.sequence;
            push(&mut text, "happened", &json!(one));
        }
        channel.send(text.as_bytes())?;
        round = round.wrapping_add(1);
    }
    Ok(())
}

/// Adds an event to the text. JSON has no line breaks, so one line of data is enough.
fn push(text: &mut String, name: &str, data: &Value) {
    text.push_str(&format!("event: {name}\ndata: {data}\n\n"));
}
