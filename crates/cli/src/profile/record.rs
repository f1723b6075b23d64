//! `forebay profile record`: writes a trace of all operations to a file.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::Context;
use forebay_control::{TraceEncoder, Traced};

use crate::output::count;
use crate::profile_args::RecordArgs;
use crate::{Exit, control, output};

/// Records until the time is over, the server stops, or the user interrupts. The file has whole operations at any
/// moment.
pub(super) fn record(args: &RecordArgs) -> anyhow::Result<Exit> {
    let client = control::find(&args.target)?;
    let what = || format!("cannot write the trace to {}", args.file.display());
    let mut file = File::create(&args.file).with_context(what)?;
    let mut bytes = Vec::new();
    let mut encoder = TraceEncoder::begin(&mut bytes);
    file.write_all(&bytes).with_context(what)?;
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (mut operations, mut lost, mut failed) = (0_u64, 0_u64, None);
    client.trace(|batch| {
        bytes.clear();
        batch.operations.iter().for_each(|operation| encoder.add(&mut bytes, &Traced::from(operation)));
        operations += batch.operations.len() as u64;
        lost += batch.lost;
        failed = file.write_all(&bytes).err();
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if is_over || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    failed.map_or(Ok(()), Err).with_context(what)?;
    let missing = match lost {
        0 => String::new(),
        lost => {
            format!("; {} more were lost, because they came faster than they could be written", count(lost))
        }
    };
    output::note(&format!("{} has {} operations{missing}.", args.file.display(), count(operations)));
    Ok(Exit::Done)
}
