//! `forebay top`: rates, latencies, clients, exports, files and devices, updated live.

mod app;
mod draw;
mod list;
mod lists;
mod moments;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use crossterm::event::{self, Event, KeyEventKind};
use forebay_control::Client;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_usize;
use signal_hook::low_level::emulate_default_handler;

use crate::monitor_args::TopArgs;
use crate::{Exit, control};

use app::{App, Step};
use draw::Theme;
use screen::Screen;

/// The longest time until a signal ends the view.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// Most entries of a list of what clients do.
const MOST_FILES: usize = 200;

/// Shows the live view until `q`, Escape or Ctrl-C. A signal ends the process as usual, but the terminal is restored
/// first.
pub(crate) fn top(args: &TopArgs) -> anyhow::Result<Exit> {
    if !stdout().is_terminal() || !stdin().is_terminal() {
        bail!("`top` needs a terminal; use `forebay stat 1` for a file or a pipe");
    }
    let client = control::find(&args.target)?;
    let mut app = App::new(moments::kept(client.state_dir()));
    update(&client, &mut app)?;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGHUP, SIGINT] {
        register_usize(number, signal.clone(), number as usize)?;
    }
    let mut screen = Screen::enter()?;
    let outcome = show(&client, &mut app, &mut screen, Duration::from_secs_f64(args.interval), &signal);
    drop(screen);
    if let number @ 1.. = signal.load(Ordering::Relaxed) {
        emulate_default_handler(number as i32)?;
    }
    outcome.map(|()| Exit::Done)
}

/// Draws the view until a key or a signal ends it.
fn show(
    client: &Client,
    app: &mut App,
    screen: &mut Screen,
    interval: Duration,
    signal: &AtomicUsize,
) -> anyhow::Result<()> {
    let theme = Theme::of_environment();
    let mut due = Instant::now() + interval;
    loop {
        screen.draw(|frame| draw::draw(app, frame, &theme))?;
        let has_event = loop {
            if signal.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
            let left = due.saturating_duration_since(Instant::now());
            if event::poll(left.min(SIGNAL_CHECK))? || left <= SIGNAL_CHECK {
                break event::poll(Duration::ZERO)?;
            }
        };
        if has_event {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match app.key(key) {
                    Step::Quit => return Ok(()),
                    // A new tab gets its figures at once, before the next update.
                    Step::Continue if !app.lacks_activity() => continue,
                    Step::Continue => {}
                },
                // The next drawing uses the new size.
                _ => continue,
            }
        }
        // The next update comes an interval after this one, and a pause of this process is not caught up with.
        let now = Instant::now();
        due = if now < due { now + interval } else { (due + interval).max(now) };
        if !app.is_paused() {
            // If the server does not answer, it may be restarting, so the next update tries again.
            let silent = update(client, app).err().map(|error| error.to_string());
            app.set_silent(silent);
        }
    }
}

fn update(client: &Client, app: &mut App) -> anyhow::Result<()> {
    let sample = client.sample()?;
    let status = client.status()?;
    // A server that is starting counts nothing yet.
    let activity = if app.wants_activity() { client.activity(MOST_FILES).ok() } else { None };
    app.take(sample, status, activity);
    Ok(())
}
