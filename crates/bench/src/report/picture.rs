//! Draws plots as PNG: a back end of `plotters` that fills and strokes smooth shapes. A picture has the shapes, sizes
//! and places of the SVG document of the same plots.

use std::convert::Infallible;

use anyhow::{Context, Result};
use plotters::style::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    FontTransform,
};
use tiny_skia::{FillRule, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, Transform};

use super::{
    letters::Letters,
    plot::{self, LETTER, Plot},
};

/// Pixels of the picture for each pixel of the drawing, for dense screens and paper.
const SCALE: u32 = 2;

/// Places of a text's base line below its anchor, as fractions of the size of its letters. The SVG back end of
/// `plotters` writes `0.76em`, `0.5ex` and `-0.5ex`.
const BELOW_TOP: f32 = 0.76;
const BELOW_MIDDLE: f32 = 0.25;
const BELOW_BOTTOM: f32 = -0.25;

/// Draws several plots below and beside each other as PNG, at twice the size of the SVG document.
///
/// # Errors
/// The picture would be too large.
pub(crate) fn png(plots: &[Plot], columns: usize) -> Result<Vec<u8>> {
    let mut canvas = Canvas::new(plot::size(plots.len(), columns))?;
    plot::draw_on(&mut canvas, plots, columns)?;
    canvas.pixels.encode_png().context("the picture cannot be encoded")
}

/// A picture under construction. Its places are in pixels of the drawing.
struct Canvas {
    size: (u32, u32),
    pixels: Pixmap,
    letters: Letters,
}

impl Canvas {
    /// Makes a transparent picture for a drawing of `size` pixels.
    fn new(size: (u32, u32)) -> Result<Self> {
        let pixels = Pixmap::new(size.0.saturating_mul(SCALE), size.1.saturating_mul(SCALE));
        Ok(Self {
            size,
            pixels: pixels.context("the picture is too large for PNG")?,
            letters: Letters::new()?,
        })
    }

    /// Fills a shape whose points become places of the drawing by `transform`. Nothing is drawn without a shape.
    fn fill(&mut self, shape: Option<Path>, transform: Transform, color: BackendColor) {
        if let Some(shape) = shape {
            let transform = transform.post_scale(SCALE as f32, SCALE as f32);
            self.pixels.fill_path(&shape, &paint(color), FillRule::Winding, transform, None);
        }
    }

    /// Draws the border of a shape. Nothing is drawn without a shape.
    fn stroke<S: BackendStyle>(&mut self, shape: Option<Path>, style: &S) {
        if let Some(shape) = shape {
            let stroke = Stroke { width: style.stroke_width() as f32, ..Stroke::default() };
            let transform = Transform::from_scale(SCALE as f32, SCALE as f32);
            self.pixels.stroke_path(&shape, &paint(style.color()), &stroke, transform, None);
        }
    }

    /// Fills a shape or draws its border.
    fn draw<S: BackendStyle>(&mut self, shape: Option<Path>, style: &S, fill: bool) -> Drawn {
        if fill {
            self.fill(shape, Transform::identity(), style.color());
        } else {
            self.stroke(shape, style);
        }
        Ok(())
    }
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

/// Returns a paint of one colour, with smooth edges.
fn paint(color: BackendColor) -> Paint<'static> {
    let mut paint = Paint::default();
    let (red, green, blue) = color.rgb;
    paint.set_color_rgba8(red, green, blue, (color.alpha.clamp(0.0, 1.0) * 255.0).round() as u8);
    paint
}

/// Returns the lines between points. They do not end where they began.
fn lines(points: impl IntoIterator<Item = BackendCoord>) -> PathBuilder {
    let mut path = PathBuilder::new();
    for (x, y) in points {
        let (x, y) = (x as f32, y as f32);
        if path.is_empty() {
            path.move_to(x, y);
        } else {
            path.line_to(x, y);
        }
    }
    path
}

/// Returns a rectangle from its corners; `None` if it has no height or no width.
fn rectangle(upper_left: BackendCoord, lower_right: BackendCoord) -> Option<Path> {
    let ((left, top), (right, bottom)) = (upper_left, lower_right);
    Rect::from_ltrb(left as f32, top as f32, right as f32, bottom as f32).map(PathBuilder::from_rect)
}

impl DrawingBackend for &mut Canvas {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        self.draw(rectangle((x, y), (x.saturating_add(1), y.saturating_add(1))), &color, true)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw(lines([from, to]).finish(), style, false)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        upper_left: BackendCoord,
        bottom_right: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        self.draw(rectangle(upper_left, bottom_right), style, fill)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        self.draw(lines(path).finish(), style, false)
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        (x, y): BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        self.draw(PathBuilder::from_circle(x as f32, y as f32, radius as f32), style, fill)
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        vert: I,
        style: &S,
    ) -> Drawn {
        let mut path = lines(vert);
        path.close();
        self.draw(path.finish(), style, true)
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, pos: BackendCoord) -> Drawn {
        let size = (style.size() / LETTER) as f32;
        let scale = self.letters.scale(size);
        let (outline, width) = self.letters.line(text);
        let left = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -0.5 * width * scale,
            HPos::Right => -width * scale,
        };
        let below = match style.anchor().v_pos {
            VPos::Top => BELOW_TOP,
            VPos::Center => BELOW_MIDDLE,
            VPos::Bottom => BELOW_BOTTOM,
        };
        let degrees = match style.transform() {
            FontTransform::None => 0.0,
            FontTransform::Rotate90 => 90.0,
            FontTransform::Rotate180 => 180.0,
            FontTransform::Rotate270 => 270.0,
        };
        let (x, y) = (pos.0 as f32, pos.1 as f32);
        // The font's outlines grow upwards, the picture's places downwards.
        let place = Transform::from_scale(scale, -scale)
            .post_translate(left, below * size)
            .post_rotate(degrees)
            .post_translate(x, y);
        self.fill(outline, place, style.color());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use plotters::prelude::*;
    use plotters::style::text_anchor::Pos;

    use super::*;

    const INK: RGBColor = RGBColor(200, 0, 0);
    /// Size of the canvas, and the place in its middle at which tests draw.
    const SIZE: (u32, u32) = (200, 200);
    const MIDDLE: (i32, i32) = (100, 100);

    /// Draws and returns the ink relative to the middle, in pixels of the drawing: left, top, right, bottom.
    fn ink(draw: impl FnOnce(&mut Canvas)) -> [f32; 4] {
        let mut canvas = Canvas::new(SIZE).unwrap();
        draw(&mut canvas);
        let inked = |index: &usize| canvas.pixels.pixels()[*index].alpha() > 127;
        let width = canvas.pixels.width() as usize;
        let (mut across, mut down) = (Vec::new(), Vec::new());
        for index in (0..canvas.pixels.pixels().len()).filter(inked) {
            across.push(index % width);
            down.push(index / width);
        }
        let place = |pixel: usize| pixel as f32 / SCALE as f32 - 100.0;
        let first = |places: &[usize]| place(*places.iter().min().expect("nothing is drawn"));
        let end = |places: &[usize]| place(*places.iter().max().expect("nothing is drawn") + 1);
        [first(&across), first(&down), end(&across), end(&down)]
    }

    /// Returns the ink of a text of 20 pixels that is anchored in the middle.
    fn text(horizontal: HPos, vertical: VPos, turn: FontTransform) -> [f32; 4] {
        let font = ("sans-serif", 20.0 * LETTER).into_font().transform(turn);
        let style = font.color(&INK).pos(Pos::new(horizontal, vertical));
        ink(|mut canvas| canvas.draw_text("MiB/s", &style, MIDDLE).unwrap())
    }

    #[test]
    fn a_text_is_where_its_anchor_is() {
        let [left, top, right, bottom] = text(HPos::Left, VPos::Top, FontTransform::None);
        assert!((0.0..4.0).contains(&left) && (0.0..4.0).contains(&top), "{left} {top}");
        let (width, height) = (right - left, bottom - top);
        assert!((40.0..70.0).contains(&width) && (13.0..20.0).contains(&height), "{width} by {height}");
        let [left, _, right, _] = text(HPos::Right, VPos::Top, FontTransform::None);
        assert!((-4.0..=0.0).contains(&right) && (right - left - width).abs() <= 1.0, "{left} {right}");
        let [left, top, right, bottom] = text(HPos::Center, VPos::Center, FontTransform::None);
        assert!((left + right).abs() < 4.0 && (top + bottom).abs() < 6.0, "{left} {top} {right} {bottom}");
        let [_, _, _, bottom] = text(HPos::Left, VPos::Bottom, FontTransform::None);
        assert!((-6.0..=0.0).contains(&bottom), "{bottom}");
    }

    #[test]
    fn a_text_turns_around_its_anchor() {
        let [left, top, right, bottom] = text(HPos::Left, VPos::Top, FontTransform::None);
        let near = |found: [f32; 4], wanted: [f32; 4]| {
            assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= 1.0), "{found:?} {wanted:?}");
        };
        near(text(HPos::Left, VPos::Top, FontTransform::Rotate90), [-bottom, left, -top, right]);
        near(text(HPos::Left, VPos::Top, FontTransform::Rotate180), [-right, -bottom, -left, -top]);
        near(text(HPos::Left, VPos::Top, FontTransform::Rotate270), [top, -right, bottom, -left]);
    }

    #[test]
    fn shapes_have_their_sizes() {
        let thick = ShapeStyle { color: INK.to_rgba(), filled: false, stroke_width: 4 };
        let (middle, corner, filled) = (MIDDLE, (110, 120), INK.filled());
        assert_eq!(
            ink(|mut canvas| canvas.draw_rect(middle, corner, &filled, true).unwrap()),
            [0.0, 0.0, 10.0, 20.0]
        );
        assert_eq!(
            ink(|mut canvas| canvas.draw_rect(middle, corner, &thick, false).unwrap()),
            [-2.0, -2.0, 12.0, 22.0]
        );
        assert_eq!(
            ink(|mut canvas| canvas.draw_line(middle, (110, 100), &thick).unwrap()),
            [0.0, -2.0, 10.0, 2.0]
        );
        assert_eq!(
            ink(|mut canvas| canvas.draw_circle(middle, 10, &filled, true).unwrap()),
            [-10.0, -10.0, 10.0, 10.0]
        );
        assert_eq!(
            ink(|mut canvas| canvas.draw_circle(middle, 10, &thick, false).unwrap()),
            [-12.0, -12.0, 12.0, 12.0]
        );
        let corners = [middle, (110, 100), corner];
        assert_eq!(ink(|mut canvas| canvas.fill_polygon(corners, &filled).unwrap()), [0.0, 0.0, 10.0, 19.5]);
        assert_eq!(ink(|mut canvas| canvas.draw_path(corners, &thick).unwrap()), [0.0, -2.0, 12.0, 20.0]);
        assert_eq!(
            ink(|mut canvas| canvas.draw_pixel(middle, INK.to_backend_color()).unwrap()),
            [0.0, 0.0, 1.0, 1.0]
        );
    }
}
