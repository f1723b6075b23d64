//! Golden images: whole pools as earlier versions left them, good and damaged, opened by this one (P19).
//!
//! An image is a text file in `crates/sim/golden`: what is on each device, 16 bytes a line with their offset, `x N` for N
//! lines alike, and nothing where there are zeros. One that begins with `base NAME` is that image with some lines
//! changed. `contents.txt` says by hand what is in the pools; the table in `tests.rs` says which image holds it, and why
//! the others are refused.
//!
//! `FOREBAY_GOLDEN=write cargo test -p forebay-sim golden` writes the images of the format that is written now; those of
//! formats before it stay as they are (see docs/on-disk-format.md, "Version changes").

mod image;
mod make;
mod tests;
