//! The terminal while the live view has it.

use std::io::{Stdout, stdout};

use crossterm::{cursor, execute, terminal};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

/// The terminal in raw mode with its alternate screen. Dropping this value restores the terminal, and so does a panic.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes over the terminal for full-screen output. A panic or an error here restores the terminal, as dropping
    /// the screen does.
    pub(super) fn enter() -> anyhow::Result<Self> {
        terminal::enable_raw_mode()?;
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        let viewport = match terminal::size() {
            Ok((1.., 1..)) => Viewport::Fullscreen,
            // The terminal does not know its size, for example on a serial line.
            _ => Viewport::Fixed(Rect::new(0, 0, 80, 24)),
        };
        let options = TerminalOptions { viewport };
        let entered = Terminal::with_options(CrosstermBackend::new(stdout()), options);
        let screen = entered.map(|terminal| Self { terminal }).inspect_err(|_| restore())?;
        let clear = terminal::Clear(terminal::ClearType::All);
        // A failure drops the screen, which restores the terminal.
        execute!(stdout(), terminal::EnterAlternateScreen, clear, cursor::Hide)?;
        Ok(screen)
    }

    /// Draws the view. The size is that of the terminal at this moment.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.terminal.draw(draw)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back as it was. Errors are ignored, since a panic may be the cause of the call.
fn restore() {
    let _ = execute!(stdout(), terminal::LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
}
