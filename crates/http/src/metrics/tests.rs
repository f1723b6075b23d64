use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_common::metrics::Recorder;
use forebay_control::{
    Activity, ActivityEntry, ActivityGroup, ClientStateStatus, ClientStatus, Counters, Curve, CurvePoint,
    DeviceActivity, DeviceWear, ExportStatus, Kind, PoolDevice, PoolStatus, ProcedureStatus,
};

use super::*;

/// Returns a gathering with a value of every kind, and with names that need escaping.
fn full() -> Arc<Gathering> {
    let mut status: Status = serde_json::from_value(serde_json::json!({
        "version": "1.2.3", "pid": 1, "started_ns": 0, "uptime_ns": 1_500_000_000_u64, "mode": "write-back",
        "health": {"state": "DEGRADED", "reasons": ["a", "b"]}, "write_verifier": "", "listen": [],
        "state_dir": "/s", "handles": "kernel", "exports": [], "clients": [], "procedures": [],
        "bytes_read": 7, "bytes_written": 8, "connections": 1, "connections_limit": 2, "inflight": 3,
        "memory": {"used_bytes": 1, "limit_bytes": 2, "resident_bytes": 3},
        "workers": {"threads": 1, "busy": 1, "queued": 0, "queue_limit": 1, "rejected": 0},
        "durability": {"batches": 1, "operations": 2, "failures": 0, "latency": LatencyJson::default()},
        "reply_cache": {"entries": 0, "bytes": 0, "hits": 0, "in_progress_hits": 0},
    }))
    .unwrap();
    let recorder = Recorder::default();
    [5, 9_000, 20_000_000_000].map(Duration::from_nanos).iter().for_each(|one| recorder.record(*one));
    let latencies = recorder.snapshot();
    status.procedures =
        vec![ProcedureStatus { name: "READ".into(), count: 3, latencies, ..ProcedureStatus::default() }];
    status.clients = (0..MOST_CLIENTS + 5).map(client).collect();
    status.exports = vec![ExportStatus {
        name: "/a\"b\\c".into(),
        aliases: Vec::new(),
        path: "/a".into(),
        id: 1,
        fs_type: "xfs".into(),
        ordered: true,
        total_bytes: 1 << 60,
        free_bytes: 1 << 59,
        total_inodes: 2,
        free_inodes: 1,
        silent_ns: 0,
    }];
    status.client_state = Some(ClientStateStatus::default());
    let wear = DeviceWear {
        life_used_percent: Some(101),
        spare_percent: Some(99),
        media_errors: Some(2),
        warnings: Some(0),
    };
    let device = PoolDevice {
        path: "/dev/nvme0n1p4".into(),
        stable_path: None,
        serial: None,
        uuid: None,
        size_bytes: 1 << 30,
        state: "healthy".into(),
        wear: Some(wear),
    };
    status.pool = Some(PoolStatus { configured: true, devices: vec![device], ..PoolStatus::default() });
    let point = CurvePoint { cache_bytes: 1 << 30, hit_ratio: 0.75, coalescing: 4.5, filled: true };
    let curve = Curve { enough: true, sampled: 9000, lost: 1, points: vec![point], ..Curve::default() };
    let sample = StatSample { cpu_ns: 2_500_000_000, ..StatSample::default() };
    Arc::new(Gathering { status, sample, curve: Some(curve), activity: active() })
}

/// Returns what clients do: the busiest client reads only, and there are more clients than series.
fn active() -> Activity {
    let entry = |number: usize| {
        let mut counters = Counters::default();
        counters.operations[Kind::Read as usize] = 100 - number as u64;
        let name = format!("10.0.0.{number}");
        ActivityEntry { name, counters, ..ActivityEntry::default() }
    };
    let mut clients =
        ActivityGroup { entries: (0..MOST_ACTIVE).map(entry).collect(), ..ActivityGroup::default() };
    clients.others.operations[Kind::Rename as usize] = 3;
    let mut exports = clients.clone();
    exports.entries.truncate(1);
    exports.entries[0].name = "/a\"b".into();
    exports.entries[0].counters.bytes_read = 77;
    let total = Counters { sequential_reads: 5, read_sizes: [1; 12], ..Counters::default() };
    let device =
        DeviceActivity { name: "/dev/nvme0n1p4".into(), bytes_written: 9, ..DeviceActivity::default() };
    Activity { enabled: true, total, clients, exports, devices: vec![device], ..Activity::default() }
}

use super::activity::MOST as MOST_ACTIVE;
use super::clients::MOST as MOST_CLIENTS;
type LatencyJson = forebay_control::LatencySummary;

fn client(number: usize) -> ClientStatus {
    let operations = 1000 - number as u64;
    let address = std::net::IpAddr::from([10, 0, 0, number as u8]);
    ClientStatus { address, connections: 1, operations, bytes_read: 2, bytes_written: 3, last_seen_ns: 0 }
}

#[test]
fn names_units_and_values_follow_the_conventions() {
    let text = render(&full(), Format::OpenMetrics);
    for line in [
        "# TYPE forebay_payload_bytes counter",
        "# UNIT forebay_payload_bytes bytes",
        "forebay_payload_bytes_total{kind=\"read\"} 7",
        "forebay_degraded 1",
        "forebay_miss_ratio_curve{size_bytes=\"1073741824\"} 0.25",
        "forebay_coalescing_curve{size_bytes=\"1073741824\"} 4.5",
        "forebay_miss_ratio_samples_total 9000",
        "forebay_degraded_reasons 2",
        "forebay_uptime_seconds 1.5",
        "forebay_cpu_seconds_total 2.5",
        "forebay_build_info{version=\"1.2.3\"} 1",
        "forebay_configured_mode{mode=\"write-back\"} 1",
        "forebay_export_size_bytes{export=\"/a\\\"b\\\\c\"} 1152921504606846976",
        "forebay_cache_device_life_used_ratio{device=\"/dev/nvme0n1p4\"} 1.01",
        "forebay_cache_device_media_errors_total{device=\"/dev/nvme0n1p4\"} 2",
        "forebay_cache_device_state{device=\"/dev/nvme0n1p4\",state=\"healthy\"} 1",
        "forebay_cache_direct_bytes_total 0",
        "forebay_procedure_duration_seconds_count{procedure=\"READ\"} 3",
        "forebay_procedure_duration_seconds_sum{procedure=\"READ\"} 20.000009005",
        "forebay_procedure_duration_seconds_bucket{le=\"0.000008192\",procedure=\"READ\"} 1",
        "forebay_procedure_duration_seconds_bucket{le=\"0.000016384\",procedure=\"READ\"} 2",
        "forebay_procedure_duration_seconds_bucket{le=\"17.179869184\",procedure=\"READ\"} 2",
        "forebay_procedure_duration_seconds_bucket{le=\"+Inf\",procedure=\"READ\"} 3",
        "forebay_client_kind_operations_total{client=\"10.0.0.0\",kind=\"read\"} 100",
        "forebay_client_kind_operations_total{client=\"10.0.0.0\",kind=\"change\"} 0",
        "forebay_client_kind_operations_total{client=\"other\",kind=\"change\"} 3",
        "forebay_export_kind_operations_total{export=\"/a\\\"b\",kind=\"read\"} 100",
        "forebay_export_read_bytes_total{export=\"/a\\\"b\"} 77",
        "forebay_pattern_requests_total{kind=\"read\",pattern=\"random\"} 7",
        "forebay_cache_device_written_bytes_total{device=\"/dev/nvme0n1p4\"} 9",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
}

#[test]
fn clients_beyond_the_busiest_are_summed() {
    let text = render(&full(), Format::Text);
    let clients: Vec<_> =
        text.lines().filter(|line| line.starts_with("forebay_client_operations_total{")).collect();
    assert_eq!(clients.len(), MOST_CLIENTS + 1);
    assert_eq!(clients[0], "forebay_client_operations_total{client=\"10.0.0.0\"} 1000");
    let others: usize = (MOST_CLIENTS..MOST_CLIENTS + 5).map(|number| 1000 - number).sum();
    assert_eq!(
        clients[MOST_CLIENTS],
        format!("forebay_client_operations_total{{client=\"other\"}} {others}")
    );
    assert!(text.contains("forebay_client_connections{client=\"other\"} 5"));
}

#[test]
fn without_a_profile_only_devices_have_an_activity() {
    let gathering = full();
    let activity = Activity { enabled: false, ..gathering.activity.clone() };
    let (status, sample) = (gathering.status.clone(), gathering.sample.clone());
    let text = render(&Arc::new(Gathering { status, sample, curve: None, activity }), Format::Text);
    assert!(text.contains("forebay_cache_device_written_bytes_total") && !text.contains("kind_operations"));
}

#[test]
fn promtool_finds_no_fault() {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut promtool) = command.spawn() else {
        eprintln!("not run: it needs promtool (`cargo x setup`)");
        return;
    };
    promtool.stdin.take().unwrap().write_all(render(&full(), Format::Text).as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
