//! A server's figures in the text format of Prometheus, version 0.0.4, for the textfile collector of the node
//! exporter.

use std::fmt::{Display, Write};

use forebay_control::{
    ClientStateStatus, Health, OperationSample, ProcedureStatus, StatSample, Status, VolumeStatus,
};

/// Returns every figure. Counters count since the start of the server.
pub(crate) fn render(status: &Status, sample: &StatSample) -> String {
    let mut text = Text(String::new());
    text.metric("up", "gauge", "1 if the server answers.", &[("", &1)]);
    let degraded = u8::from(status.health != Health::Ok);
    text.metric("degraded", "gauge", "1 if the server is degraded: see the events.", &[("", &degraded)]);
    let info = format!("{{version={:?},mode=\"{}\"}}", status.version, status.effective_mode);
    text.metric("info", "gauge", "Version and mode in force.", &[(&info, &1)]);
    text.metric(
        "uptime_seconds",
        "gauge",
        "Seconds since the start.",
        &[("", &(status.uptime_ns as f64 / 1e9))],
    );
    operations(&mut text, sample);
    let bytes = [
        ("{kind=\"read\"}", &status.bytes_read as &dyn Display),
        ("{kind=\"write\"}", &status.bytes_written),
    ];
    text.metric("payload_bytes_total", "counter", "Payload of READ and WRITE.", &bytes);
    text.metric("connections", "gauge", "Open connections.", &[("", &status.connections)]);
    let encrypted = &status.encrypted;
    text.metric("connections_encrypted", "gauge", "Open connections with TLS.", &[("", encrypted)]);
    text.metric("requests_in_flight", "gauge", "Requests in flight.", &[("", &status.inflight)]);
    text.metric("syncs_total", "counter", "Syncs of the backing store.", &[("", &sample.sync_batches)]);
    text.metric("sync_failures_total", "counter", "Syncs that failed.", &[("", &sample.sync_failures)]);
    text.metric("resident_bytes", "gauge", "Memory of the process.", &[("", &status.memory.resident_bytes)]);
    let metadata = &status.metadata;
    text.metric("metadata_bytes", "gauge", "Names and attributes in memory.", &[("", &metadata.bytes)]);
    let listings = [
        ("{from=\"memory\"}", &metadata.listing_hits as &dyn Display),
        ("{from=\"directory\"}", &metadata.listing_misses),
    ];
    text.metric("listings_total", "counter", "READDIRPLUS answered.", &listings);
    text.metric(
        "known_files",
        "gauge",
        "Files not open whose attributes are kept.",
        &[("", &metadata.files)],
    );
    let looks = [
        ("{from=\"memory\"}", &metadata.file_hits as &dyn Display),
        ("{from=\"directory\"}", &metadata.file_misses),
    ];
    text.metric(
        "closed_looks_total",
        "counter",
        "GETATTR, LOOKUP and ACCESS of files that are not open.",
        &looks,
    );
    procedures(&mut text, status);
    if let Some(state) = &status.client_state {
        client_state(&mut text, state);
    }
    volumes(&mut text, &status.volumes);
    if let Some(pool) = &status.pool {
        let healthy = pool.devices.iter().filter(|device| device.state != "lost").count();
        text.metric("cache_devices", "gauge", "Cache devices in use.", &[("", &healthy)]);
        text.metric(
            "cache_clean_bytes",
            "gauge",
            "Clean data on the cache devices.",
            &[("", &pool.clean_bytes)],
        );
        text.metric(
            "cache_dirty_bytes",
            "gauge",
            "Data that only the cache has.",
            &[("", &pool.dirty_bytes)],
        );
        let age = pool.dirty_age_ns as f64 / 1e9;
        text.metric("cache_dirty_age_seconds", "gauge", "Age of the oldest dirty data.", &[("", &age)]);
        text.metric("cache_ram_bytes", "gauge", "Data in memory.", &[("", &pool.ram_bytes)]);
        text.metric("cache_index_bytes", "gauge", "Memory of the index.", &[("", &pool.index_bytes)]);
        for (name, value) in pool.counters.each() {
            let about = "See the counters of `forebay pool status --json`.";
            text.metric(&format!("cache_{name}_total"), "counter", about, &[("", &value)]);
        }
    }
    text.0
}

fn volumes(text: &mut Text, volumes: &[VolumeStatus]) {
    let mut of = |name: &str, kind: &str, about: &str, value: fn(&VolumeStatus) -> u64| {
        let label = |volume: &VolumeStatus| (format!("{{volume=\"{}\"}}", volume.name), value(volume));
        let values: Vec<_> = volumes.iter().map(label).collect();
        let values: Vec<_> =
            values.iter().map(|(label, value)| (label.as_str(), value as &dyn Display)).collect();
        if !values.is_empty() {
            text.metric(name, kind, about, &values);
        }
    };
    of("volume_size_bytes", "gauge", "Size of the volume.", |volume| volume.size_bytes);
    of("volume_dirty_bytes", "gauge", "Data that the backing device lacks.", |volume| volume.dirty_bytes);
    of("volume_serving", "gauge", "1 if the volume is served.", |volume| {
        u64::from(volume.state == "serving")
    });
    of("volume_read_bytes_total", "counter", "Bytes read.", |volume| volume.read_bytes);
    of("volume_written_bytes_total", "counter", "Bytes written.", |volume| volume.written_bytes);
    of("volume_flushes_total", "counter", "Flushes.", |volume| volume.flushes);
    of("volume_errors_total", "counter", "Requests that failed.", |volume| volume.errors);
}

fn operations(text: &mut Text, sample: &StatSample) {
    let kinds = [
        ("read", &sample.read),
        ("write", &sample.write),
        ("commit", &sample.commit),
        ("look", &sample.lookup),
        ("change", &sample.change),
    ];
    let mut of = |name: &str, about: &str, value: fn(&OperationSample) -> f64| {
        let values = kinds.map(|(kind, sample)| (format!("{{kind=\"{kind}\"}}"), value(sample)));
        let values: Vec<_> =
            values.iter().map(|(labels, value)| (labels.as_str(), value as &dyn Display)).collect();
        text.metric(name, "counter", about, &values);
    };
    of("operations_total", "Requests answered.", |sample| sample.latency.count() as f64);
    of("errors_total", "Requests answered with an error.", |sample| sample.errors as f64);
    of("seconds_total", "Time that answering took.", |sample| sample.latency.total_ns() as f64 / 1e9);
}

/// Appends the calls of each procedure of NFSv3 and of each operation of NFSv4.
fn procedures(text: &mut Text, status: &Status) {
    let mut of = |name: &str, about: &str, value: fn(&ProcedureStatus) -> u64| {
        let labelled = |one: &ProcedureStatus| (format!("{{procedure=\"{}\"}}", one.name), value(one));
        let values: Vec<_> = status.procedures.iter().map(labelled).collect();
        let values: Vec<_> =
            values.iter().map(|(labels, value)| (labels.as_str(), value as &dyn Display)).collect();
        text.metric(name, "counter", about, &values);
    };
    of("procedure_calls_total", "Calls of a procedure or operation.", |one| one.count);
    of("procedure_errors_total", "Calls answered with an error.", |one| one.errors);
}

/// Appends the state of clients.
fn client_state(text: &mut Text, state: &ClientStateStatus) {
    let held = [
        ("{kind=\"clients\"}", &state.clients as &dyn Display),
        ("{kind=\"sessions\"}", &state.sessions),
        ("{kind=\"opens\"}", &state.opens),
        ("{kind=\"delegations\"}", &state.delegations),
        ("{kind=\"locks\"}", &state.locks),
        ("{kind=\"blocked\"}", &state.blocked),
        ("{kind=\"nlm_hosts\"}", &state.hosts),
        ("{kind=\"nlm_shares\"}", &state.shares),
    ];
    text.metric("client_state", "gauge", "State that clients hold.", &held);
    let delegations =
        [("{what=\"recalled\"}", &state.recalls as &dyn Display), ("{what=\"revoked\"}", &state.revoked)];
    text.metric("delegations_total", "counter", "Delegations taken back.", &delegations);
    let ended = [
        ("{end=\"answered\"}", &state.callbacks as &dyn Display),
        ("{end=\"given_up\"}", &state.callbacks_given_up),
    ];
    text.metric("callbacks_total", "counter", "Call-backs of NFSv4 that ended.", &ended);
    let about = "Call-backs that wait for a connection or a slot.";
    text.metric("callbacks_waiting", "gauge", about, &[("", &state.callbacks_waiting)]);
}

struct Text(String);

impl Text {
    fn metric(&mut self, name: &str, kind: &str, about: &str, values: &[(&str, &dyn Display)]) {
        let _ = writeln!(self.0, "# HELP forebay_{name} {about}\n# TYPE forebay_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "forebay_{name}{labels} {value}");
        }
    }
}
