//! `forebay profile record`: writes a trace of all operations to a file.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use forebay_control::{TraceEncoder, Traced};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

use crate::output::count;
use crate::profile_args::RecordArgs;
use crate::{Exit, control, output};

/// Records until the time is over, the server stops, or the user interrupts. The file has whole operations at any
/// moment, and an end once the recording has ended.
pub(super) fn record(args: &RecordArgs) -> anyhow::Result<Exit> {
    let client = control::find(&args.target)?;
    let what = || format!("cannot write the trace to {}", args.file.display());
    let mut file = File::create(&args.file).with_context(what)?;
    let mut bytes = Vec::new();
    let mut encoder = TraceEncoder::begin(&mut bytes);
    file.write_all(&bytes).with_context(what)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The second signal ends the process: the server may not answer.
        register_conditional_default(signal, interrupted.clone())?;
        register(signal, interrupted.clone())?;
    }
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (mut operations, mut lost, mut failed) = (0_u64, 0_u64, None);
    client.trace(|batch| {
        bytes.clear();
        batch.operations.iter().for_each(|operation| encoder.add(&mut bytes, &Traced::from(operation)));
        operations += batch.operations.len() as u64;
        lost += batch.lost;
        failed = file.write_all(&bytes).err();
        let is_over =
            interrupted.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until);
        if is_over || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    failed.map_or(Ok(()), Err).with_context(what)?;
    bytes.clear();
    encoder.end(&mut bytes, lost);
    file.write_all(&bytes).with_context(what)?;
    let missing = match lost {
        0 => String::new(),
        lost => {
            format!("; {} more were lost, because they came faster than they could be written", count(lost))
        }
    };
    output::note(&format!("{} has {} operations{missing}.", args.file.display(), count(operations)));
    Ok(Exit::Done)
}
