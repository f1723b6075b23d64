//! The judge of a guest's load: it knows the values that every file and block may have.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

/// Device number of `/dev/nbd0`.
const NBD: &str = "43:0";
/// The processes of the load. The name of a file or block begins with the one that writes it.
const WORKERS: [&str; 6] = ["b0", "b1", "b2", "f0", "f1", "f2"];
/// Changes that every process makes after a kill.
const CHANGES: u64 = 3;
/// The kernel's client reports these when the server goes away. Requests are sent again.
const CLIENT: [&str; 9] = [
    "Receive control failed",
    "Receive data failed",
    "Send control failed",
    "Send data failed",
    "Send reply failed",
    "Request send failed, requeueing",
    "Connection timed out, retrying",
    "Dead connection, failed to find a fallback",
    "Suspicious stuck request",
];

/// The kernel reports these when the emulation gets no processor for a while.
const EMULATION: [&str; 2] = ["clocksource: ", "hrtimer: interrupt took"];

/// The judge of one guest.
#[derive(Default)]
pub(crate) struct Judge {
    /// The permitted values of each file and block; `-` permits its absence.
    ledger: BTreeMap<String, Vec<String>>,
    progress: Progress,
    /// Times at which the kernel got new connections.
    linked: u64,
    root: String,
    /// The names that the second boot has found.
    found: BTreeSet<String>,
    wrong: Vec<String>,
}

/// The work that the guest has done.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    /// Durable changes of each process.
    durable: BTreeMap<String, u64>,
    /// Times at which programs were read from the root.
    ran: u64,
}

impl Judge {
    /// Takes a line of the guest into account.
    pub(crate) fn take(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let change = rest.split_once(' ');
        match (word, change) {
            ("TRY", Some((name, value))) => self.may(name).push(value.into()),
            ("DURABLE", Some((name, value))) => self.durable(name, value),
            ("FOUND", Some((name, value))) => self.found(name, value),
            ("RAN", None) => self.progress.ran += 1,
            ("LINKED", None) => self.linked += 1,
            ("ROOT", None) => self.root = rest.into(),
            ("KERNEL", _) if is_usual(rest) => {}
            ("KERNEL" | "WRONG", _) => self.wrong(line.into()),
            _ => eprintln!("{line}"),
        }
    }

    /// Returns the values that a file or block may have. One without changes may be absent.
    fn may(&mut self, name: &str) -> &mut Vec<String> {
        self.ledger.entry(name.into()).or_insert_with(|| vec!["-".into()])
    }

    fn durable(&mut self, name: &str, value: &str) {
        *self.may(name) = vec![value.into()];
        let worker = name.split('/').next().unwrap_or_default();
        *self.progress.durable.entry(worker.into()).or_default() += 1;
    }

    fn found(&mut self, name: &str, value: &str) {
        let may = self.ledger.get(name);
        if may.is_none_or(|may| !may.iter().any(|permitted| permitted == value)) {
            let may = may.map_or("nothing".into(), |may| may.join(" or "));
            self.wrong(format!("{name} has {value} in place of {may}"));
        }
        self.found.insert(name.into());
    }

    fn wrong(&mut self, what: String) {
        eprintln!("! {what}");
        self.wrong.push(what);
    }

    /// Returns the number of times at which the kernel got new connections.
    pub(crate) fn linked(&self) -> u64 {
        self.linked
    }

    /// Returns true if the guest has begun a change that is not yet durable.
    pub(crate) fn is_under_load(&self) -> bool {
        self.ledger.values().any(|may| may.len() > 1)
    }

    /// Returns the work that was done until now.
    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Returns true if every process has made further changes since then, and programs were read from the root.
    pub(crate) fn has_gone_on(&self, before: &Progress) -> bool {
        let done = |progress: &Progress, worker: &str| progress.durable.get(worker).copied().unwrap_or(0);
        // Programs may have begun to be read before.
        self.progress.ran >= before.ran + 2
            && WORKERS.iter().all(|worker| done(&self.progress, worker) >= done(before, worker) + CHANGES)
    }

    /// Returns the work in words.
    pub(crate) fn summary(&self) -> String {
        let Progress { durable, ran } = &self.progress;
        let in_progress = self.ledger.values().filter(|may| may.len() > 1).count();
        let durable: u64 = durable.values().sum();
        format!("{durable} durable changes, {in_progress} in progress, programs read {ran} times")
    }

    /// Begins the comparison with what the second boot finds.
    pub(crate) fn begin_check(&mut self) {
        self.root.clear();
        self.found.clear();
    }

    /// Ends the comparison: files and blocks that were not found are absent.
    pub(crate) fn end_check(&mut self) {
        let absent = |(name, may): &(&String, &Vec<String>)| {
            !self.found.contains(*name) && !may.iter().any(|value| value == "-")
        };
        let absent = self.ledger.iter().filter(absent);
        let absent: Vec<_> =
            absent.map(|(name, may)| format!("{name} is absent in place of {}", may.join(" or "))).collect();
        absent.into_iter().for_each(|what| self.wrong(what));
        eprintln!("# {} files and blocks were found", self.found.len());
    }

    /// Returns an error if something was wrong.
    pub(crate) fn verdict(&self) -> Result<()> {
        if let Some(first) = self.wrong.first() {
            bail!("{} findings, the first: {first}", self.wrong.len());
        }
        if self.root != NBD {
            bail!("the root of the guest was the device {:?}, not {NBD}", self.root);
        }
        Ok(())
    }
}

/// Returns true if a line of the kernel's log tells that the client of NBD has lost a connection and goes on, or that
/// the emulation is slow.
fn is_usual(line: &str) -> bool {
    let begins = |text: &str, known: &[&str]| known.iter().any(|known| text.starts_with(known));
    // The kernel writes few lines of a kind for each second, and then the number of those that it left out.
    let is_count = line.ends_with(" callbacks suppressed");
    is_count
        || begins(line, &EMULATION)
        || line.strip_prefix("block nbd0: ").is_some_and(|text| begins(text, &CLIENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &[&str]) -> Judge {
        let mut judge = Judge::default();
        lines.iter().for_each(|line| judge.take(line.as_bytes()));
        judge.take(b"ROOT 43:0\n");
        judge
    }

    /// Returns the findings after a second boot with these lines.
    fn checked(before: &[&str], after: &[&str]) -> Vec<String> {
        let mut judge = judged(before);
        judge.begin_check();
        after.iter().for_each(|line| judge.take(line.as_bytes()));
        judge.end_check();
        judge.wrong
    }

    #[test]
    fn a_durable_value_must_be_found() {
        let before = ["TRY f0/1 aa", "DURABLE f0/1 aa"];
        assert!(checked(&before, &["FOUND f0/1 aa"]).is_empty());
        assert_eq!(checked(&before, &["FOUND f0/1 bb"]), ["f0/1 has bb in place of aa"]);
        assert_eq!(checked(&before, &[]), ["f0/1 is absent in place of aa"]);
    }

    #[test]
    fn a_change_in_progress_may_be_found_or_not() {
        let before = ["TRY f0/1 aa", "DURABLE f0/1 aa", "TRY f0/1 -", "TRY f0/2 aa"];
        for after in [&["FOUND f0/1 aa"][..], &["FOUND f0/2 aa"], &["FOUND f0/1 aa", "FOUND f0/2 aa"]] {
            assert!(checked(&before, after).is_empty(), "{after:?}");
        }
        assert_eq!(checked(&before, &["FOUND f0/2 cc"]), ["f0/2 has cc in place of - or aa"]);
    }

    #[test]
    fn a_file_that_was_removed_must_not_be_found() {
        let before = ["TRY f0/1 aa", "DURABLE f0/1 aa", "TRY f0/1 -", "DURABLE f0/1 -"];
        assert_eq!(checked(&before, &["FOUND f0/1 aa"]), ["f0/1 has aa in place of -"]);
        assert_eq!(checked(&before, &["FOUND f0/9 aa"]), ["f0/9 has aa in place of nothing"]);
    }

    #[test]
    fn only_lost_connections_may_be_in_the_kernels_log() {
        for line in [
            "KERNEL block nbd0: Connection timed out, retrying (0/4 alive)",
            "KERNEL nbd_xmit_timeout: 4 callbacks suppressed",
        ] {
            assert!(judged(&[line]).verdict().is_ok(), "{line}");
        }
        for line in [
            "KERNEL block nbd0: Connection timed out",
            "KERNEL block nbd0: Other side returned error (5)",
            "KERNEL I/O error, dev nbd0, sector 8 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2",
            "KERNEL EXT4-fs (nbd0): Remounting filesystem read-only",
        ] {
            assert!(judged(&[line]).verdict().is_err(), "{line}");
        }
    }

    #[test]
    fn every_process_has_to_go_on() {
        let mut judge = judged(&[]);
        let before = judge.progress();
        let changes = |judge: &mut Judge, worker: &str| {
            (0..CHANGES).for_each(|value| judge.take(format!("DURABLE {worker}/1 {value}").as_bytes()));
        };
        WORKERS[1..].iter().for_each(|worker| changes(&mut judge, worker));
        judge.take(b"RAN");
        judge.take(b"RAN");
        assert!(!judge.has_gone_on(&before), "a process without changes");
        changes(&mut judge, WORKERS[0]);
        assert!(judge.has_gone_on(&before));
    }

    #[test]
    fn the_root_must_be_the_volume() {
        let mut judge = Judge::default();
        judge.take(b"ROOT 0:24");
        assert!(judge.verdict().is_err());
    }
}
