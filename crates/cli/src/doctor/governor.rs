//! Checks the governor of the CPU's clock, from sysfs.

use std::path::{Path, PathBuf};

use super::Check;
use super::machine::Machine;
use super::step::Step;

/// The directory with a policy for each group of processors that share a clock.
const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";
/// The drivers of CPUs that choose their clock themselves (active mode). Their governor `powersave` is the dynamic one,
/// and the kernel's default. In passive mode the drivers have other names.
const ACTIVE_DRIVERS: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];

/// Checks that the CPU does not save power at the cost of latency. Returns `None` without frequency scaling, as in
/// most virtual machines.
pub(super) fn check(host: &Machine) -> Option<Check> {
    let names =
        std::fs::read_dir(host.at(Path::new(POLICIES))).ok()?.flatten().map(|entry| entry.file_name());
    let mut policies: Vec<PathBuf> = names
        .filter(|name| name.to_string_lossy().starts_with("policy"))
        .map(|name| Path::new(POLICIES).join(name))
        .collect();
    policies.sort();
    let first = policies.first()?;
    let value = |name: &str| host.text(first.join(name)).ok();
    let (driver, preference) = (value("scaling_driver"), value("energy_performance_preference"));
    let mut check = judge(&value("scaling_governor")?, driver.as_deref(), preference.as_deref());
    let Some(Wanted { file, value: wanted, offered }) = check.wanted.take() else { return Some(check.check) };
    let offers = value(offered).is_some_and(|offers| offers.split_whitespace().any(|offer| offer == wanted));
    let pattern = format!("{POLICIES}/policy*/{file}");
    let command = format!("echo {wanted} | tee {pattern}");
    if !offers {
        let by_hand = "the kernel does not offer that on this host";
        return Some(check.check.mend(command, by_hand));
    }
    let now = policies.iter().map(|policy| Step::write(policy.join(file), wanted));
    let steps = now.chain([Step::at_each_start("cpu-clock", &pattern, wanted)]);
    Some(check.check.mend_by(command, steps.collect()))
}

/// A finding, and what the policies should have instead.
struct Judged {
    check: Check,
    wanted: Option<Wanted>,
}

/// A value that a file of each policy should have, and the file that lists what the kernel offers.
struct Wanted {
    file: &'static str,
    value: &'static str,
    offered: &'static str,
}

/// Returns the finding about a governor. With an active driver the preference says whether the CPU saves power.
fn judge(governor: &str, driver: Option<&str>, preference: Option<&str>) -> Judged {
    let active = driver.filter(|driver| ACTIVE_DRIVERS.contains(driver));
    let fine = |finding: String| Judged { check: Check::ok("CPU governor", finding), wanted: None };
    let warn = |finding: String, wanted| Judged {
        check: Check::warn("CPU governor", finding),
        wanted: Some(wanted),
    };
    match (governor, active, preference) {
        ("powersave", Some(driver), Some("power")) => warn(
            format!("powersave of {driver} with the preference `power`: single requests meet a slow clock"),
            Wanted {
                file: "energy_performance_preference",
                value: "balance_performance",
                offered: "energy_performance_available_preferences",
            },
        ),
        ("powersave", Some(driver), _) => fine(format!("powersave of {driver}, which follows the load")),
        ("powersave", None, _) => warn(
            "powersave: requests that come one by one meet a slow clock".to_owned(),
            Wanted { file: "scaling_governor", value: "performance", offered: "scaling_available_governors" },
        ),
        _ => fine(governor.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn powersave_is_the_dynamic_governor_of_an_active_driver() {
        let warns = |governor, driver, preference| {
            let judged = judge(governor, driver, preference);
            judged.check.state == State::Warn
        };
        for driver in ACTIVE_DRIVERS.map(Some) {
            assert!(!warns("powersave", driver, None), "{driver:?}");
            assert!(!warns("powersave", driver, Some("balance_performance")), "{driver:?}");
            assert!(warns("powersave", driver, Some("power")), "{driver:?}");
            assert!(!warns("performance", driver, Some("power")), "{driver:?}");
        }
        for driver in [None, Some("acpi-cpufreq"), Some("intel_cpufreq"), Some("amd-pstate")] {
            assert!(warns("powersave", driver, None), "{driver:?}");
            assert!(!warns("schedutil", driver, None), "{driver:?}");
        }
    }

    #[test]
    fn all_policies_are_changed_and_the_change_is_kept() {
        let dir = tempfile::TempDir::new().unwrap();
        let host = Machine::below(dir.path());
        assert!(check(&host).is_none());
        let set = |policy: &str, file: &str, value: &str| {
            let policy = host.at(Path::new(POLICIES)).join(policy);
            std::fs::create_dir_all(&policy).unwrap();
            std::fs::write(policy.join(file), value).unwrap();
        };
        for policy in ["policy0", "policy4"] {
            set(policy, "scaling_driver", "acpi-cpufreq\n");
            set(policy, "scaling_governor", "powersave\n");
            set(policy, "scaling_available_governors", "performance powersave \n");
        }
        let steps = check(&host).unwrap().fix.unwrap().steps;
        let governor = |policy: &str| format!("{POLICIES}/{policy}/scaling_governor");
        let kept = Step::at_each_start("cpu-clock", &governor("policy*"), "performance");
        let now = ["policy0", "policy4"].map(|policy| Step::write(governor(policy), "performance"));
        assert_eq!(steps, now.into_iter().chain([kept]).collect::<Vec<_>>());
        set("policy0", "scaling_available_governors", "powersave\n");
        assert!(check(&host).unwrap().fix.unwrap().by_hand.is_some(), "the kernel offers no other one");
    }
}
