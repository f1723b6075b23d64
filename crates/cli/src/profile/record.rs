//! `forebay profile record`: writes a trace of all operations to a file.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
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
    let mut bytes = Vec::new();
    let mut encoder = TraceEncoder::begin(&mut bytes);
    // The file is made with the first answer: a refused recording leaves an older file as it was.
    let mut made = None;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The second signal ends the process: the server may not answer.
        register_conditional_default(signal, interrupted.clone())?;
        register(signal, interrupted.clone())?;
    }
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (mut operations, mut lost, mut failed) = (0_u64, 0_u64, None);
    client.trace(|batch| {
        batch.operations.iter().for_each(|operation| encoder.add(&mut bytes, &Traced::from(operation)));
        operations += batch.operations.len() as u64;
        lost += batch.lost;
        failed = append(&args.file, &mut made, &mut bytes).err();
        let is_over =
            interrupted.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until);
        if is_over || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    failed.map_or(Ok(()), Err).with_context(what)?;
    encoder.end(&mut bytes, lost);
    append(&args.file, &mut made, &mut bytes).with_context(what)?;
    let missing = match lost {
        0 => String::new(),
        lost => {
            format!("; {} more were lost, because they came faster than they could be written", count(lost))
        }
    };
    output::note(&format!("{} has {} operations{missing}.", args.file.display(), count(operations)));
    Ok(Exit::Done)
}

/// Writes `bytes` to the end of the file, and empties them. Makes the file with the first call.
fn append(path: &Path, made: &mut Option<File>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let file = match made {
        Some(file) => file,
        None => made.insert(File::create(path)?),
    };
    file.write_all(bytes)?;
    bytes.clear();
    Ok(())
}
