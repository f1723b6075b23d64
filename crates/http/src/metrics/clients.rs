//! The busiest clients. All other clients are summed under the address `other`.

use std::fmt::Error;

use forebay_control::{ClientStatus, Status};
use prometheus_client::registry::Unit;

use crate::encode::{Labels, Out, label};

/// The largest number of clients with series of their own.
pub(super) const MOST: usize = 20;

/// The traffic of a client, or of several clients.
#[derive(Default)]
struct Traffic {
    labels: Labels,
    connections: u64,
    operations: u64,
    read: u64,
    written: u64,
}

impl Traffic {
    /// Adds a client's figures to the row, which may be the sum of several clients.
    fn add(mut self, client: &ClientStatus) -> Self {
        self.connections += client.connections;
        self.operations += client.operations;
        self.read += client.bytes_read;
        self.written += client.bytes_written;
        self
    }
}

/// Writes a row for each of the busiest clients, and one row for the sum of all other clients. So the number of rows
/// is bounded.
pub(super) fn encode(out: &mut Out<'_>, status: &Status) -> Result<(), Error> {
    // The status has the busiest clients first.
    let (shown, others) = status.clients.split_at(status.clients.len().min(MOST));
    let named = |name: String| Traffic { labels: label("client", name), ..Traffic::default() };
    let mut rows: Vec<_> = shown.iter().map(|client| named(client.address.to_string()).add(client)).collect();
    if !others.is_empty() {
        rows.push(others.iter().fold(named("other".into()), Traffic::add));
    }
    let about = "Requests of a client; `other` may fall when a client joins the busiest.";
    out.counters(
        "client_operations",
        about,
        None,
        rows.iter().map(|row| (row.labels.clone(), row.operations)),
    )?;
    let values = rows.iter().map(|row| (row.labels.clone(), row.read));
    out.counters("client_read", "Payload that a client has read.", Some(Unit::Bytes), values)?;
    let values = rows.iter().map(|row| (row.labels.clone(), row.written));
    out.counters("client_written", "Payload that a client has written.", Some(Unit::Bytes), values)?;
    let values = rows.iter().map(|row| (row.labels.clone(), row.connections));
    out.gauges("client_connections", "Open connections of a client.", None, values)
}
