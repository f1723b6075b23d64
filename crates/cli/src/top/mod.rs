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
use std::time::{Duration, Instant};

use anyhow::bail;
use crossterm::event::{self, Event, KeyEventKind};
use forebay_control::Client;

use crate::monitor_args::TopArgs;
use crate::{Exit, control};

use app::{App, Step};
use draw::Theme;
use screen::Screen;

/// Most entries of a list of what clients do.
const MOST_FILES: usize = 200;

/// Shows the live view until `q`, Escape or Ctrl-C.
pub(crate) fn top(args: &TopArgs) -> anyhow::Result<Exit> {
    if !stdout().is_terminal() || !stdin().is_terminal() {
        bail!("`top` needs a terminal; use `forebay stat 1` for a file or a pipe");
    }
    let client = control::find(&args.target)?;
    let mut app = App::new(moments::kept(client.state_dir()));
    update(&client, &mut app)?;
    let mut screen = Screen::enter()?;
    let outcome = show(&client, &mut app, &mut screen, Duration::from_secs_f64(args.interval));
    drop(screen);
    outcome.map(|()| Exit::Done)
}

fn show(client: &Client, app: &mut App, screen: &mut Screen, interval: Duration) -> anyhow::Result<()> {
    let theme = Theme::of_environment();
    let mut due = Instant::now() + interval;
    loop {
        screen.draw(|frame| draw::draw(app, frame, &theme))?;
        if event::poll(due.saturating_duration_since(Instant::now()))? {
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
