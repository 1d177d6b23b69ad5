//! A line plot as SVG text. Draws what it is given; knows nothing of training.

use std::fmt::Write as _;

/// One line of the plot.
pub(crate) struct Series<'s> {
    pub(crate) name: &'s str,
    /// Any CSS colour.
    pub(crate) colour: &'s str,
    pub(crate) width: f64,
    /// Dashed lines let one that lies below them show.
    pub(crate) dashed: bool,
    pub(crate) points: &'s [(f64, f64)],
}

/// What the plot is called and what its axes count.
pub(crate) struct Labels<'s> {
    pub(crate) title: &'s str,
    pub(crate) x: &'s str,
    pub(crate) y: &'s str,
}

const WIDTH: f64 = 840.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;

/// The plot as the text of an SVG file; the vertical axis begins at zero. Points that are not
/// numbers are left out.
pub(crate) fn plot(labels: &Labels<'_>, series: &[Series<'_>]) -> String {
    let points = || series.iter().flat_map(|series| series.points).copied().filter(is_finite);
    let x = Axis::new(points().map(|(x, _)| x), LEFT, WIDTH - RIGHT);
    let y = Axis::new(points().map(|(_, y)| y), HEIGHT - BOTTOM, TOP);
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#333\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"16\">{}</text>",
        escape(labels.title)
    );
    draw_axes(&mut svg, labels, &x, &y);
    for (index, one) in series.iter().enumerate() {
        draw_series(&mut svg, one, &x, &y);
        draw_legend(&mut svg, one, index);
    }
    svg.push_str("</svg>\n");
    svg
}

fn is_finite((x, y): &(f64, f64)) -> bool {
    x.is_finite() && y.is_finite()
}

/// Maps values from zero on to places on the paper.
struct Axis {
    max: f64,
    step: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Axis {
        let largest = values.fold(0.0, f64::max);
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let step = round_step(largest / 6.0);
        Axis { max: (largest / step).ceil() * step, step, start, end }
    }

    fn place(&self, value: f64) -> f64 {
        self.start + (self.end - self.start) * value / self.max
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let n = (self.max / self.step).round() as u32;
        let step = self.step;
        (0..=n).map(move |k| f64::from(k) * step)
    }

    /// With as many digits as tell two ticks apart.
    fn label(&self, tick: f64) -> String {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        format!("{tick:.digits$}")
    }
}

/// The smallest of 1, 2, 5, 10, 20 … (or 0.1, 0.2 …) that is at least this large.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

fn draw_axes(svg: &mut String, labels: &Labels<'_>, x: &Axis, y: &Axis) {
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            y.label(tick)
        );
    }
    let base = HEIGHT - BOTTOM;
    for tick in x.ticks() {
        let at = x.place(tick);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{base}\" y2=\"{}\" stroke=\"#999\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            base + 5.0,
            base + 20.0,
            x.label(tick)
        );
    }
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    let height = f64::midpoint(TOP, base);
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(18 {height}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 14.0,
        escape(labels.x),
        escape(labels.y)
    );
}

fn draw_series(svg: &mut String, series: &Series<'_>, x: &Axis, y: &Axis) {
    let mut places = String::new();
    for (value, height) in series.points.iter().filter(|point| is_finite(point)) {
        let _ = write!(places, "{:.1},{:.1} ", x.place(*value), y.place(*height));
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>",
        places.trim_end(),
        stroke(series)
    );
}

fn draw_legend(svg: &mut String, series: &Series<'_>, index: usize) {
    let at = TOP + 16.0 + 20.0 * index as f64;
    let start = WIDTH - RIGHT - 190.0;
    let _ = writeln!(
        svg,
        "<line x1=\"{start}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" {}/>\
         <text x=\"{}\" y=\"{}\">{}</text>",
        start + 34.0,
        stroke(series),
        start + 42.0,
        at + 4.0,
        escape(series.name)
    );
}

fn stroke(series: &Series<'_>) -> String {
    let dashes = if series.dashed { " stroke-dasharray=\"7 5\"" } else { "" };
    format!("stroke=\"{}\" stroke-width=\"{}\"{dashes}", escape(series.colour), series.width)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_numbers() {
        for (least, step) in [(0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (2.3, 5.0), (7.0, 10.0)] {
            assert!((round_step(least) - step).abs() < 1e-12, "{least}");
        }
        assert!((round_step(0.03) - 0.05).abs() < 1e-12);
    }

    #[test]
    fn ticks_cover_the_values_and_tell_each_other_apart() {
        let axis = Axis::new([0.3, 2.31].into_iter(), 0.0, 100.0);
        let labels: Vec<String> = axis.ticks().map(|tick| axis.label(tick)).collect();
        assert_eq!(labels, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert!((axis.place(2.5) - 100.0).abs() < 1e-9);
        let empty = Axis::new(std::iter::empty(), 0.0, 1.0);
        assert!(empty.ticks().count() >= 2);
    }

    #[test]
    fn each_series_is_one_line_with_its_name() {
        let labels = Labels { title: "loss < 1 & so", x: "step", y: "loss" };
        let falling = [(0.0, 2.0), (1.0, f64::NAN), (2.0, 0.0)];
        let series =
            |name, dashed| Series { name, colour: "#1f77b4", width: 2.0, dashed, points: &falling };
        let svg = plot(&labels, &[series("one process", false), series("two ranks", true)]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("stroke-dasharray").count(), 2);
        assert!(svg.contains(">two ranks</text>"));
        assert!(svg.contains("loss &lt; 1 &amp; so"));
        assert!(svg.contains("points=\"64.0,48.0 816.0,404.0\""), "{svg}");
    }
}
