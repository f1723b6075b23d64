//! The letters of pictures: outlines of a built-in font, so that no font has to be installed.

use anyhow::{Context, Result};
use tiny_skia::{Path, PathBuilder};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// DejaVu Sans, reduced to the letters that plots use. The license is in `assets/DejaVuSans-LICENSE`.
const FONT: &[u8] = include_bytes!("../../assets/DejaVuSans-latin.ttf");

/// The built-in font.
pub(super) struct Letters {
    face: Face<'static>,
}

impl Letters {
    /// Reads the built-in font.
    ///
    /// # Errors
    /// The font is damaged, which a test excludes.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { face: Face::parse(FONT, 0).context("the built-in font cannot be read")? })
    }

    /// Returns the factor from units of the font to pixels, for letters of `size` pixels.
    pub(super) fn scale(&self, size: f32) -> f32 {
        size / f32::from(self.face.units_per_em())
    }

    /// Returns the outlines of a line of text and its width, in units of the font. The text begins at zero, on its base
    /// line, and grows upwards. A letter that the font lacks is drawn as the font's sign for that. A text of spaces has
    /// no outline.
    pub(super) fn line(&self, text: &str) -> (Option<Path>, f32) {
        let mut outline = Outline { path: PathBuilder::new(), x: 0.0 };
        for letter in text.chars() {
            let glyph = self.face.glyph_index(letter).unwrap_or(GlyphId(0));
            self.face.outline_glyph(glyph, &mut outline);
            outline.x += f32::from(self.face.glyph_hor_advance(glyph).unwrap_or(0));
        }
        (outline.path.finish(), outline.x)
    }
}

/// Outlines of letters that follow each other.
struct Outline {
    path: PathBuilder,
    /// Place of the next letter.
    x: f32,
}

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        self.path.move_to(self.x + x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.path.line_to(self.x + x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.path.quad_to(self.x + x1, y1, self.x + x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.path.cubic_to(self.x + x1, y1, self.x + x2, y2, self.x + x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_font_has_every_printable_letter_of_ascii_and_the_sign_for_a_shortened_name() {
        let letters = Letters::new().unwrap();
        for letter in (' '..='~').chain(['…']) {
            assert!(letters.face.glyph_index(letter).is_some(), "{letter}");
            let (outline, width) = letters.line(letter.encode_utf8(&mut [0; 4]));
            assert!(outline.is_some() == (letter != ' ') && width > 0.0, "{letter}");
        }
    }

    #[test]
    fn letters_follow_each_other() {
        let letters = Letters::new().unwrap();
        let ((one, width), (two, both)) = (letters.line("M"), letters.line("MM"));
        let (one, two) = (one.unwrap().bounds(), two.unwrap().bounds());
        assert_eq!(both, 2.0 * width);
        assert_eq!((two.left(), two.right()), (one.left(), one.right() + width));
    }
}
