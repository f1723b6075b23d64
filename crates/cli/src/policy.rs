//! `forebay policy`: what is cached how.

use forebay_config::format_size;
use forebay_control::{
    Chosen, PolicyInForce, PolicyReport, PolicyRequest, PolicyRule, PolicySource, ShareInForce,
};

use crate::data_args::absolute;
use crate::output::{self, Align, Table, printable};
use crate::policy_args::{Common, PolicyCommand};
use crate::{Exit, control};

/// Runs `forebay policy`.
pub(crate) fn policy(command: PolicyCommand) -> anyhow::Result<Exit> {
    match command {
        PolicyCommand::Set { path, rule, common } => {
            let request = PolicyRequest::Set { path: absolute(&path)?, rule: rule.rule() };
            show(&common, &ask(&common, request)?)
        }
        PolicyCommand::Show { path, common } => {
            let path = path.as_deref().map(absolute).transpose()?;
            show(&common, &ask(&common, PolicyRequest::Show { path })?)
        }
        PolicyCommand::Unset { path, common } => {
            show(&common, &ask(&common, PolicyRequest::Unset { path: absolute(&path)? })?)
        }
    }
}

fn ask(common: &Common, request: PolicyRequest) -> anyhow::Result<PolicyReport> {
    Ok(control::find(&common.target)?.policy(request)?)
}

/// Prints the answer to a policy request, as JSON if the user asks for that.
fn show(common: &Common, report: &PolicyReport) -> anyhow::Result<Exit> {
    if common.json {
        output::json(report)?;
        return Ok(Exit::Done);
    }
    if report.rules.is_empty() {
        output::note("No rule; `forebay policy set` makes one.");
    }
    output::result(&describe(report))?;
    Ok(Exit::Done)
}

/// Returns the policy in force for a path, if one was named, the rules, and the use of the room for data that stays
/// unused.
fn describe(report: &PolicyReport) -> String {
    let mut text = String::new();
    if let Some(in_force) = &report.in_force {
        text += &lines(in_force);
        text.push('\n');
    }
    if !report.rules.is_empty() {
        text += &table(&report.rules).render(0);
        text.push('\n');
    }
    let (pinned, limit) = (format_size(report.pinned_bytes), format_size(report.pin_limit_bytes));
    text += &format!("Pinned on the cache devices: {pinned} of at most {limit}.\n");
    if report.high_bytes > 0 {
        let (high, limit) = (format_size(report.high_bytes), format_size(report.high_limit_bytes));
        text += &format!("Of high priority: {high}, preferred up to {limit}.\n");
    }
    text
}

/// Returns a policy, a line for each part with its reason.
pub(crate) fn lines(policy: &PolicyInForce) -> String {
    let PolicyInForce { cache, priority, streams, mode, dirty_time, share } = policy;
    let time = ("dirty time", reason(dirty_time));
    let share = ("share", share.as_ref().map_or_else(|| "none (default)".to_owned(), share_text));
    let (cache, priority) = (("cache", reason(cache)), ("priority", reason(priority)));
    [cache, priority, ("streams", reason(streams)), ("mode", reason(mode)), time, share]
        .map(|(name, text)| format!("{name:<12} {text}\n"))
        .concat()
}

fn share_text(share: &ShareInForce) -> String {
    let limits = [("at least", share.min_bytes), ("at most", share.max_bytes)];
    let limits =
        limits.into_iter().filter_map(|(word, bytes)| Some(format!("{word} {}", format_size(bytes?))));
    let value = format!(
        "{} on the cache devices now, {}",
        format_size(share.held_bytes),
        limits.collect::<Vec<_>>().join(", ")
    );
    reason(&Chosen { value, source: share.source, path: Some(share.path.clone()) })
}

/// Returns a part of the policy with its origin: the default, the server's mode, or the rule that decides.
fn reason<T: std::fmt::Display>(chosen: &Chosen<T>) -> String {
    let rule = chosen.path.as_ref().map(|path| printable(&path.display().to_string()));
    let rule = rule.unwrap_or_default();
    match chosen.source {
        PolicySource::Default => format!("{} (default)", chosen.value),
        PolicySource::Server => format!("{} (the server's)", chosen.value),
        PolicySource::Configuration => format!("{} (configuration of {rule})", chosen.value),
        PolicySource::Command => format!("{} (rule for {rule})", chosen.value),
    }
}

/// Returns the rules as a table. Parts that a rule leaves open are `-`.
fn table(rules: &[PolicyRule]) -> Table {
    let mut table = Table::new(&[
        ("PATH", Align::Left),
        ("CACHE", Align::Left),
        ("PRIORITY", Align::Left),
        ("STREAMS", Align::Left),
        ("MODE", Align::Left),
        ("DIRTY TIME", Align::Left),
        ("CACHE MIN", Align::Left),
        ("CACHE MAX", Align::Left),
        ("FROM", Align::Left),
    ]);
    for PolicyRule { path, rule, source, exists } in rules {
        let part = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let source = match (source, exists) {
            (PolicySource::Configuration, false) => "configuration; nothing has the path",
            (_, false) => "command; the path does not exist any more",
            (PolicySource::Configuration, _) => "configuration",
            (PolicySource::Command | PolicySource::Default | PolicySource::Server, _) => "command",
        };
        table.row([
            printable(&path.display().to_string()),
            part(rule.cache.map(|keep| keep.to_string())),
            part(rule.priority.map(|priority| priority.to_string())),
            part(rule.streams.map(|way| way.to_string())),
            part(rule.mode.map(|mode| mode.to_string())),
            part(rule.dirty_time.map(|time| time.to_string())),
            part(rule.cache_min.map(|size| size.to_string())),
            part(rule.cache_max.map(|size| size.to_string())),
            source.to_owned(),
        ]);
    }
    table
}
