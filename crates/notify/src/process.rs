//! The process that sends notifications: it takes orders on one side, and has a thread for each target on the other.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use forebay_common::lock::{Condvar, Mutex};
use forebay_config::Notify;
use forebay_control::{Delivery, Event, Severity};

use crate::deliver;
use crate::message::{Order, Report};
use crate::target::{Policy, Shared, Target};

/// Carries out orders until their end, and sends the last notifications as long as the policy allows. If the orders end
/// without [`Order::Stop`], the server has died, and the targets are notified of that. `server` is its process id.
///
/// # Errors
/// An order is not understood, or cannot be read. The last notifications are sent nevertheless.
pub fn run(
    orders: impl Read,
    reports: impl Write + Send + 'static,
    policy: Policy,
    server: u32,
) -> io::Result<()> {
    let reports = Mutex::new(reports);
    let report = move |report: Report| {
        let Ok(mut line) = serde_json::to_vec(&report) else { return };
        line.push(b'\n');
        // Without the server nobody reads reports.
        let _ = reports.lock().write_all(&line);
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let shared = Arc::new(Shared { policy, host, report: Box::new(report) });
    let ended = Arc::new(Ended::default());
    let mut targets = Targets { shared, ended, all: BTreeMap::new() };
    let mut has_stopped = false;
    let mut taken = Ok(());
    for line in BufReader::new(orders).lines() {
        let order = line.and_then(|line| serde_json::from_str(&line).map_err(io::Error::from));
        match order {
            Ok(Order::Stop) => has_stopped = true,
            Ok(order) => targets.carry_out(order),
            Err(error) => {
                taken = Err(error);
                break;
            }
        }
    }
    if !has_stopped {
        targets.offer(&death(server));
    }
    targets.finish();
    taken
}

/// Returns the event that the server has died.
fn death(server: u32) -> Event {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Event {
        sequence: 0,
        time_ns: now.as_nanos() as u64,
        severity: Severity::Error,
        kind: "server-died".to_owned(),
        message: format!(
            "the server (process {server}) has ended without a stop: clients wait until it runs again; see its log"
        ),
        fields: BTreeMap::new(),
    }
}

/// Returns the event of a test.
fn test_event(host: &str) -> Event {
    let message = format!("this is a test of the notifications of Forebay on {host}; nothing has happened");
    let kind = "notify-test".to_owned();
    Event { severity: Severity::Info, kind, message, ..death(0) }
}

/// The number of threads of targets, and a signal for the end of each.
#[derive(Default)]
struct Ended {
    running: Mutex<usize>,
    changed: Condvar,
}

struct Targets {
    shared: Arc<Shared>,
    ended: Arc<Ended>,
    all: BTreeMap<String, Arc<Target>>,
}

impl Targets {
    /// Carries out an order of the server.
    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Targets { targets } => self.set(targets),
            Order::Event(event) => self.offer(&event),
            Order::Missed { count } => self.all.values().for_each(|target| target.miss(count)),
            Order::Test { number, target } => self.test(number, target.as_deref()),
            Order::Stop => {}
        }
    }

    fn offer(&self, event: &Event) {
        self.all.values().for_each(|target| target.offer(event));
    }

    /// Puts the targets in force: removes, changes and adds.
    fn set(&mut self, targets: Vec<Notify>) {
        let names: Vec<_> = targets.iter().map(|target| target.name.clone()).collect();
        self.all.retain(|name, target| {
            let stays = names.contains(name);
            if !stays {
                target.remove();
            }
            stays
        });
        for settings in targets {
            match self.all.get(&settings.name) {
                Some(target) => target.set(settings),
                None => self.add(settings),
            }
        }
    }

    /// Starts the thread of a new target.
    fn add(&mut self, settings: Notify) {
        let name = settings.name.clone();
        let target = Arc::new(Target::new(settings, &self.shared));
        let (running, ended) = (target.clone(), self.ended.clone());
        *ended.running.lock() += 1;
        let run = move || {
            running.run();
            *ended.running.lock() -= 1;
            ended.changed.notify_all();
        };
        match std::thread::Builder::new().name(format!("to-{name}")).spawn(run) {
            Ok(_) => drop(self.all.insert(name, target)),
            Err(error) => {
                *self.ended.running.lock() -= 1;
                let message = format!("notifications to {name} are not sent: no thread: {error}");
                let (severity, kind) = (Severity::Warning, "notify-failed".to_owned());
                (self.shared.report)(Report::Happened { severity, kind, message, target: name });
            }
        }
    }

    /// Tests targets side by side, without delaying other orders.
    fn test(&self, number: u64, wanted: Option<&str>) {
        let chosen = self.all.iter().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == *name));
        let chosen: Vec<_> = chosen.map(|(_, target)| target.settings()).collect();
        let shared = self.shared.clone();
        let test = move || {
            // All begin before the first is waited for.
            let started: Vec<_> =
                chosen.into_iter().filter_map(|target| start_test(target, &shared)).collect();
            let deliveries = started.into_iter().filter_map(|one| one.join().ok()).collect();
            (shared.report)(Report::Tested { number, deliveries });
        };
        if std::thread::Builder::new().name("test".to_owned()).spawn(test).is_err() {
            (self.shared.report)(Report::Tested { number, deliveries: Vec::new() });
        }
    }

    /// Waits until every target has sent what waits, or the time is over.
    fn finish(self) {
        self.all.values().for_each(|target| target.finish());
        let running = self.ended.running.lock();
        drop(self.ended.changed.wait_while_for(running, self.shared.policy.last, |running| *running > 0));
    }
}

/// Starts one attempt. Returns `None` if the system refuses a thread.
fn start_test(target: Arc<Notify>, shared: &Arc<Shared>) -> Option<JoinHandle<Delivery>> {
    let shared = shared.clone();
    let test = move || {
        let begun = Instant::now();
        let tried = deliver::attempt(&target, &test_event(&shared.host), &shared.host);
        Delivery {
            target: target.name.clone(),
            kind: target.kind.to_string(),
            elapsed_ns: begun.elapsed().as_nanos() as u64,
            error: tried.err().map(|trouble| trouble.message),
        }
    };
    std::thread::Builder::new().name("test-one".to_owned()).spawn(test).ok()
}
