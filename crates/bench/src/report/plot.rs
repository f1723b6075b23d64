//! One plot: lines over an axis, drawn by `plotters` as SVG or by [`super::picture`] as PNG.
//!
//! CSS variables of the page replace the colours written here, so that one drawing serves a light and a dark page. A
//! drawing in a file of its own has a white background.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::scale::Scale;

/// Width and height of a plot, in pixels.
pub(crate) const SIZE: (u32, u32) = (560, 340);
/// Height of the plot's head in pixels: title and legend.
const HEAD: u32 = 52;
/// Factor by which `plotters` divides letter sizes when it writes SVG.
pub(crate) const LETTER: f64 = 1.24;
const SMALL: f64 = 11.5;
/// Approximate width of a letter as a fraction of its size. The reader's font is not known when the drawing is made.
const ADVANCE: f64 = 0.56;

/// The colours below are replaced by `page.css`, which finds them by their values.
pub(crate) const GROUND: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(27, 36, 48);
const MUTED: RGBColor = RGBColor(91, 102, 117);
const GRID: RGBColor = RGBColor(221, 226, 232);
/// Colours that people with any kind of colour vision can distinguish (Okabe and Ito). Each has a mark of its own.
const SERIES: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

/// One line of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Name in the legend.
    pub(crate) label: String,
    /// Number of the colour and the mark. A series has one number on the whole page.
    pub(crate) color: usize,
    pub(crate) points: Vec<Point>,
    /// True if points have marks; a trace has too many points for marks.
    pub(crate) marks: bool,
}

/// A point, and the range of its repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Point {
    /// Returns a point without a range.
    pub(crate) const fn new(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

/// A whole plot.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x_label: &'static str,
    pub(crate) y_label: String,
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    pub(crate) lines: Vec<Line>,
}

type Area<B> = DrawingArea<B, Shift>;
type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<Scale, Scale>>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Returns the number of columns and rows for several plots.
fn grid(plots: usize, columns: usize) -> (usize, usize) {
    let columns = columns.clamp(1, plots.max(1));
    (columns, plots.div_ceil(columns).max(1))
}

/// Returns width and height of a drawing of several plots, in pixels.
pub(crate) fn size(plots: usize, columns: usize) -> (u32, u32) {
    let (columns, rows) = grid(plots, columns);
    (SIZE.0 * columns as u32, SIZE.1 * rows as u32)
}

/// Draws several plots below and beside each other into one SVG document.
///
/// # Errors
/// `plotters` fails, which no input should cause.
pub(crate) fn draw(plots: &[Plot], columns: usize) -> Result<String> {
    let mut svg = String::new();
    draw_on(SVGBackend::with_string(&mut svg, size(plots.len(), columns)), plots, columns)?;
    Ok(svg)
}

/// Draws several plots below and beside each other on a canvas of their [`size`].
///
/// # Errors
/// `plotters` fails, which no input should cause.
pub(crate) fn draw_on<B: DrawingBackend>(canvas: B, plots: &[Plot], columns: usize) -> Result<()> {
    let refused = |error| anyhow!("a plot cannot be drawn: {error}");
    let (columns, rows) = grid(plots.len(), columns);
    let root = canvas.into_drawing_area();
    root.fill(&GROUND).map_err(refused)?;
    for (plot, area) in plots.iter().zip(root.split_evenly((rows, columns))) {
        plot.draw_on(&area).map_err(refused)?;
    }
    root.present().map_err(refused)
}

fn letters(size: f64, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size * LETTER).into_font().color(&color)
}

impl Plot {
    /// Draws title, legend, axes and lines into an area.
    fn draw_on<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        let (head, body) = area.split_vertically(HEAD);
        head.draw(&Text::new(self.title.clone(), (14, 8), letters(14.0, INK)))?;
        self.legend(&head)?;
        let mut chart = ChartBuilder::on(&body)
            .margin_left(8)
            .margin_right(16)
            .margin_top(8)
            .margin_bottom(4)
            .x_label_area_size(42)
            .y_label_area_size(66)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let (x, y) = (self.x.clone(), self.y.clone());
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .axis_style(MUTED)
            .x_labels(self.x.count())
            .y_labels(self.y.count())
            .x_label_formatter(&|value| plotters::coord::ranged1d::ValueFormatter::format_ext(&x, value))
            .y_label_formatter(&|value| plotters::coord::ranged1d::ValueFormatter::format_ext(&y, value))
            .x_desc(self.x_label)
            .y_desc(self.y_label.clone())
            .label_style(letters(SMALL, MUTED))
            .axis_desc_style(letters(SMALL, MUTED))
            .draw()?;
        self.lines.iter().try_for_each(|line| line.draw_on(&mut chart))
    }

    /// Draws the names, each beside a piece of its line, in a row as wide as the plot.
    fn legend<B: DrawingBackend>(&self, head: &Area<B>) -> Drawn<B> {
        let (mut x, y) = (14, 38);
        let room = (f64::from(SIZE.0) / self.lines.len().max(1) as f64 - 44.0) / (SMALL * ADVANCE);
        for line in &self.lines {
            let color = color(line.color);
            head.draw(&PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)))?;
            if line.marks {
                head.draw(&mark((x + 9, y), line.color))?;
            }
            let name = shortened(&line.label, room);
            let width = name.chars().count() as f64 * SMALL * ADVANCE;
            head.draw(&Text::new(name, (x + 24, y - 7), letters(SMALL, INK)))?;
            x += 40 + width as i32;
        }
        Ok(())
    }
}

impl Line {
    /// Draws the line, a bar for the spread at each point, and the marks of the points if the line has any.
    fn draw_on<B: DrawingBackend>(&self, chart: &mut Chart<'_, B>) -> Drawn<B> {
        let color = color(self.color);
        let places = self.points.iter().map(|point| (point.x, point.y));
        chart.draw_series(LineSeries::new(places, color.stroke_width(2)))?;
        let spread = self.points.iter().filter(|point| point.low < point.high);
        chart.draw_series(spread.map(|point| {
            PathElement::new([(point.x, point.low), (point.x, point.high)], color.stroke_width(1))
        }))?;
        if self.marks {
            chart.draw_series(self.points.iter().map(|point| mark((point.x, point.y), self.color)))?;
        }
        Ok(())
    }
}

/// Returns the mark of a line, so that lines differ in more than their colour.
fn mark<B: DrawingBackend, C: Clone + 'static>(at: C, number: usize) -> DynElement<'static, B, C> {
    let color = color(number);
    match number % 4 {
        0 => Circle::new(at, 4, color.filled()).into_dyn(),
        1 => TriangleMarker::new(at, 5, color.filled()).into_dyn(),
        2 => Cross::new(at, 4, color.stroke_width(2)).into_dyn(),
        _ => Circle::new(at, 4, color.stroke_width(2)).into_dyn(),
    }
}

/// Returns at most `room` letters of a name. The end is kept, because names differ most often there.
fn shortened(name: &str, room: f64) -> String {
    let (count, room) = (name.chars().count(), room.max(6.0) as usize);
    if count <= room {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(count - room + 1)).collect()
}

fn color(number: usize) -> RGBColor {
    SERIES[number % SERIES.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let points = [1.0, 7.0].into_iter().zip([0.0, 1.0]).map(|(y, x)| Point { x, y, low: 0.5, high: 8.0 });
        Plot {
            title: "<b> & more".to_owned(),
            x_label: "clients",
            y_label: "operations/s".to_owned(),
            x: Scale::names(["1", "8"].map(String::from)),
            y: Scale::linear(8.0, |value| format!("{value:.0}")),
            lines: vec![Line { label: "one".to_owned(), color: 1, points: points.collect(), marks: true }],
        }
    }

    #[test]
    fn a_drawing_holds_what_it_shows() {
        let svg = draw(&[plot(), plot(), plot()], 2).unwrap();
        for part in ["&lt;b&gt; &amp; more", "#D55E00", "operations/s", "width=\"1120\" height=\"680\""] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("nfs://10.0.0.1:12049/data", 10.0), "…2049/data");
        assert_eq!(shortened("short", 3.0), "short");
    }
}
