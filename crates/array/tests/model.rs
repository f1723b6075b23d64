//! Tests of the models in virtual time. They check ratios between loads, because these do not depend on the machine.

use forebay_array::model::{CacheKind, Model};
use forebay_array::workload::{Load, Order, Rate, run};

const SIZE: u64 = 8 << 30;

fn load(write: bool, order: Order, length: u64, depth: u64) -> Load {
    Load { write, order, length, depth, warm_up: 6.0, seconds: 12.0 }
}

fn random(model: &Model, write: bool, depth: u64) -> Rate {
    run(model, SIZE, &load(write, Order::Random, 4096, depth))
}

fn stream(model: &Model, write: bool, depth: u64) -> Rate {
    run(model, SIZE, &load(write, Order::Sequential(1), 1 << 20, depth))
}

fn assert_between(what: &str, value: f64, low: f64, high: f64) {
    assert!((low..high).contains(&value), "{what} is {value:.3}, not between {low} and {high}");
}

#[test]
fn shipped_models_reach_their_goals() {
    for name in ["nl-sas-8", "nl-sas-48"] {
        let m = Model::load(name).unwrap();
        let g = &m.goals;
        let reads = random(&m, false, g.random_read_depth.into()).iops;
        assert_between(&format!("{name} random reads"), reads / g.random_read_iops, 0.93, 1.1);
        let writes = random(&m, true, g.random_write_depth.into()).iops;
        assert_between(&format!("{name} random writes"), writes / g.random_write_iops, 0.93, 1.1);
        let reading = stream(&m, false, 8).mib_s;
        assert_between(&format!("{name} stream read"), reading / g.sequential_read_mib_s, 0.95, 1.1);
        let writing = stream(&m, true, 8).mib_s;
        assert_between(&format!("{name} stream write"), writing / g.sequential_write_mib_s, 0.95, 1.4);
    }
}

#[test]
fn the_same_load_gives_the_same_figures() {
    let m = Model::load("nl-sas-48").unwrap();
    assert_eq!(random(&m, true, 32), random(&m, true, 32));
}

#[test]
fn random_reads_grow_with_depth_until_the_disks_are_busy() {
    let m = Model::load("nl-sas-8").unwrap();
    let rate = |depth| random(&m, false, depth).iops;
    let (one, eight, many) = (rate(1), rate(8), rate(64));
    // Eight random requests on eight disks: some disks get several requests and some none.
    assert_between("depth 8 to depth 1", eight / one, 4.0, 8.0);
    assert_between("depth 64 to depth 8", many / eight, 1.5, 4.0);
    let latency = |depth| random(&m, false, depth).mean_ms;
    assert_between("latency at depth 1, in revolutions", latency(1) / (60e3 / 7200.0), 1.2, 2.0);
    assert!(latency(64) > 3.0 * latency(1), "latency comes from queues");
}

#[test]
fn a_small_write_pays_for_its_parities() {
    let m = Model::load("nl-sas-8").unwrap();
    let (read, write) = (random(&m, false, 1), random(&m, true, 1));
    // The write reads old data and parity, and the blocks come round again one revolution later.
    let extra = (write.mean_ms - read.mean_ms) / (60e3 / 7200.0);
    assert_between("extra revolutions of a write", extra, 1.0, 1.8);
    let many = random(&m, false, 128).iops / random(&m, true, 128).iops;
    assert_between("reads to writes with busy disks", many, 4.0, 7.0);
}

#[test]
fn a_sequential_stream_is_far_ahead_of_random_requests_of_its_size() {
    let m = Model::load("nl-sas-8").unwrap();
    let small = run(&m, SIZE, &load(false, Order::Sequential(1), 4096, 1)).iops;
    assert!(small > 40.0 * random(&m, false, 1).iops, "{small}");
    let full = stream(&m, true, 8).mib_s;
    let scattered = run(&m, SIZE, &load(true, Order::Random, 1 << 20, 8)).mib_s;
    assert!(full > 2.0 * scattered, "{full} against {scattered}");
}

#[test]
fn streams_share_the_array_and_lose_little_to_each_other() {
    for name in ["nl-sas-8", "nl-sas-48"] {
        let m = Model::load(name).unwrap();
        let one = stream(&m, false, 8).mib_s;
        let sixteen = run(&m, SIZE, &load(false, Order::Sequential(16), 1 << 20, 16)).mib_s;
        assert_between(&format!("{name}: 16 streams to one"), sixteen / one, 0.7, 1.05);
    }
}

#[test]
fn a_write_cache_hides_latency_until_it_is_full() {
    let mut m = Model::load("nl-sas-8").unwrap();
    let through = random(&m, true, 1);
    m.cache.kind = CacheKind::Battery;
    let short = Load { warm_up: 0.0, seconds: 0.1, ..load(true, Order::Random, 4096, 1) };
    let burst = run(&m, SIZE, &short);
    assert!(burst.iops > 50.0 * through.iops, "{burst:?}");
    let steady = random(&m, true, 32);
    let bare = Model::load("nl-sas-8").unwrap();
    assert_between("full cache to none", steady.iops / random(&bare, true, 32).iops, 0.3, 3.0);
}

#[test]
fn more_disks_give_more_random_reads() {
    let small = Model::load("nl-sas-8").unwrap();
    let mut large = small.clone();
    large.raid.spans = 4;
    let ratio = random(&large, false, 128).iops / random(&small, false, 32).iops;
    assert_between("four spans at four times the depth", ratio, 3.5, 4.5);
}
