//! Requests, their latencies, and the state that clients hold.

use std::fmt::Error;

use forebay_control::{ClientStateStatus, ProcedureStatus, RateLimitStatus, Snapshot, StatSample, Status};
use prometheus_client::registry::Unit;

use crate::encode::{Labels, Out, label, seconds};

/// The first bound of histograms is 2^13 ns (8 us), and the last but one 2^34 ns (17 s). Each bound is twice the bound
/// before.
const BOUNDS: std::ops::RangeInclusive<u32> = 13..=34;

/// Writes the figures of requests: counts, errors, latencies, queues, rejections, syncs and the reply cache. The
/// state of NFSv4 and NLM clients follows.
pub(super) fn encode(out: &mut Out<'_>, status: &Status, sample: &StatSample) -> Result<(), Error> {
    let kinds = [
        ("read", &sample.read),
        ("write", &sample.write),
        ("commit", &sample.commit),
        ("look", &sample.lookup),
        ("change", &sample.change),
    ];
    let values = kinds.map(|(kind, sample)| (label("kind", kind), sample.latency.count()));
    out.counters("operations", "Requests answered.", None, values)?;
    let values = kinds.map(|(kind, sample)| (label("kind", kind), sample.errors));
    out.counters("errors", "Requests answered with an error.", None, values)?;
    let values = [(label("kind", "read"), status.bytes_read), (label("kind", "write"), status.bytes_written)];
    out.counters("payload", "Payload of READ and WRITE.", Some(Unit::Bytes), values)?;
    procedures(out, status)?;
    out.gauge("connections", "Open connections.", None, status.connections)?;
    out.gauge("connections_limit", "Most open connections.", None, status.connections_limit)?;
    out.gauge("connections_encrypted", "Open connections with TLS.", None, status.encrypted)?;
    let about = "Open connections with TLS that the kernel encrypts.";
    out.gauge("connections_encrypted_in_kernel", about, None, status.encrypted_in_kernel)?;
    out.gauge("requests_in_flight", "Requests in flight.", None, status.inflight)?;
    let about = "Waits of connections whose address had too many requests in flight beside a less busy one.";
    out.counter("connections_held_back", about, None, status.held_back)?;
    out.gauge("workers", "Threads for requests that wait for a disk.", None, status.workers.threads)?;
    out.gauge("workers_busy", "Workers that are busy.", None, status.workers.busy)?;
    out.gauge("requests_queued", "Requests that wait for a worker.", None, status.workers.queued)?;
    let about = "Requests rejected because the queue was full.";
    out.counter("requests_rejected", about, None, status.workers.rejected)?;
    refused(out, status)?;
    rate_limits(out, status)?;
    out.counter("syncs", "Syncs of the backing store.", None, sample.sync_batches)?;
    out.counter("sync_operations", "Operations that waited for a sync.", None, sample.sync_operations)?;
    out.counter("sync_failures", "Syncs that failed.", None, sample.sync_failures)?;
    let about = "Retransmissions answered from the reply cache.";
    out.counter("reply_cache_hits", about, None, sample.reply_cache_hits)?;
    let about = "Memory of the reply cache.";
    out.gauge("reply_cache", about, Some(Unit::Bytes), status.reply_cache.bytes)?;
    status.client_state.as_ref().map_or(Ok(()), |state| client_state(out, state))
}

/// Adds the procedures of NFSv3 and the operations of NFSv4. There are less than a hundred of them.
fn procedures(out: &mut Out<'_>, status: &Status) -> Result<(), Error> {
    let of = |one: &ProcedureStatus| -> Labels { label("procedure", &one.name) };
    let values = status.procedures.iter().map(|one| (of(one), one.errors));
    out.counters("procedure_errors", "Calls answered with an error.", None, values)?;
    let values = status.procedures.iter().map(|one| (of(one), histogram(&one.latencies)));
    out.histograms("procedure_duration", "Time from the complete request to the reply.", values)
}

/// Returns the sum of latencies in seconds, and the count for each bound.
fn histogram(latencies: &Snapshot) -> (f64, Vec<(f64, u64)>) {
    // A latency of exactly a bound counts above the bound: that is one nanosecond.
    let bounds: Vec<u64> = BOUNDS.map(|power| (1 << power) - 1).collect();
    let counts = latencies.between(&bounds);
    let bounds = BOUNDS.map(|power| seconds(1 << power)).chain([f64::INFINITY]);
    (seconds(latencies.total_ns()), bounds.zip(counts).collect())
}

/// Writes the refused connections and requests by the reason of the refusal.
fn refused(out: &mut Out<'_>, status: &Status) -> Result<(), Error> {
    let refused = &status.refused;
    let reasons = [
        ("strangers", refused.strangers),
        ("crowded", refused.crowded),
        ("full", refused.full),
        ("exports", refused.exports),
        ("ports", refused.ports),
        ("auth", refused.auth),
        ("tls", refused.tls),
    ];
    let values = reasons.map(|(reason, count)| (label("reason", reason), count));
    out.counters("refused", "Connections and requests refused.", None, values)
}

/// Adds the limits on rates. The configuration has at most 64 of them.
fn rate_limits(out: &mut Out<'_>, status: &Status) -> Result<(), Error> {
    let of = |limit: &RateLimitStatus| -> Labels { label("limit", &limit.name) };
    let values = status.rate_limits.iter().map(|limit| (of(limit), limit.delays));
    out.counters("rate_limit_delays", "Delays of connections beyond their rate.", None, values)?;
    let values = status.rate_limits.iter().map(|limit| (of(limit), seconds(limit.delayed_ns)));
    out.counters("rate_limit_delayed", "Sum of the delays.", Some(Unit::Seconds), values)
}

/// Writes the state that clients hold by kind, and the counts of recalled delegations and call-backs.
fn client_state(out: &mut Out<'_>, state: &ClientStateStatus) -> Result<(), Error> {
    let held = [
        ("clients", state.clients),
        ("sessions", state.sessions),
        ("opens", state.opens),
        ("delegations", state.delegations),
        ("locks", state.locks),
        ("blocked", state.blocked),
        ("copies", state.copies),
        ("nlm_hosts", state.hosts),
        ("nlm_shares", state.shares),
    ];
    let values = held.map(|(kind, count)| (label("kind", kind), count));
    out.gauges("client_state", "State that clients hold.", None, values)?;
    let values = [(label("what", "recalled"), state.recalls), (label("what", "revoked"), state.revoked)];
    out.counters("delegations", "Delegations taken back.", None, values)?;
    let values =
        [(label("end", "answered"), state.callbacks), (label("end", "given_up"), state.callbacks_given_up)];
    out.counters("callbacks", "Call-backs of NFSv4 that ended.", None, values)?;
    let about = "Call-backs that wait for a connection or a slot.";
    out.gauge("callbacks_waiting", about, None, state.callbacks_waiting)
}
