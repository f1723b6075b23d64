//! Golden images: whole pools as earlier versions left them, good and damaged, which this version opens (P19).
//!
//! An image is a text file in `crates/sim/golden`. It lists the contents of each device, 16 bytes a line with their
//! offset. `x N` stands for N equal lines, and zeros are left out. An image that begins with `base NAME` is that image
//! with some lines changed. `contents.txt` lists by hand the contents of the pools. The table in `tests.rs` names the
//! images with those contents, and the reasons for refusing all other images.
//!
//! `FOREBAY_GOLDEN=write cargo test -p forebay-sim golden` writes the images of the present format. Images of earlier
//! formats stay as they are (see docs/on-disk-format.md, "Version changes").

mod image;
mod make;
mod tests;
