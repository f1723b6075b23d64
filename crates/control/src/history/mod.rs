//! The past of a server, in files of bounded size in the state directory: its events and its figures.

mod columns;
mod events;
mod figures;
mod ring_file;

pub use columns::{COLUMNS, Point};
pub use events::EventWriter;
pub(crate) use events::History;
pub use figures::{Figures, FiguresWriter, Series};
