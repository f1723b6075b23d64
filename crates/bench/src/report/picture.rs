//! Converts SVG to PNG with a built-in font, so that no font has to be installed.

use std::sync::Arc;

use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// DejaVu Sans, reduced to the letters that plots use. The license is in `assets/DejaVuSans-LICENSE`.
const FONT: &[u8] = include_bytes!("../../assets/DejaVuSans-latin.ttf");
/// Pixels of the picture for each pixel of the drawing.
const SCALE: f32 = 2.0;

/// Draws an SVG document as PNG at twice its size, for dense screens and paper.
///
/// # Errors
/// The document is not SVG, or the picture would be too large.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let options = Options { fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("the drawing is not valid SVG")?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("the picture is too large for PNG")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("the picture is too large for PNG")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("the picture cannot be encoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_leave_ink() {
        let document = |text: &str| {
            format!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" width="80" height="20"><text y="15" font-family="sans-serif">{text}</text></svg>"#
            )
        };
        let (empty, written) = (png(&document("")).unwrap(), png(&document("MiB/s")).unwrap());
        assert!(written.starts_with(b"\x89PNG") && written.len() > empty.len() + 200);
    }
}
