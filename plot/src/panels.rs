//! Line charts with logarithmic axes.

use crate::{Point, Svg};

/// A chart.
#[derive(Debug)]
pub struct Panel {
    /// The title above the chart.
    pub title: String,
    /// The name of the x-axis.
    pub x: &'static str,
    /// The lines.
    pub series: Vec<Series>,
}

/// A line with a dot at each value.
#[derive(Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: &'static str,
    /// The color, such as `#1f5fa8`.
    pub color: &'static str,
    /// The values.
    pub points: Vec<Point>,
}

const PANEL: (f64, f64) = (440.0, 300.0);
/// The margins of a panel: left, top, right and bottom.
const MARGIN: (f64, f64, f64, f64) = (62.0, 44.0, 18.0, 46.0);
const HEADER_HEIGHT: f64 = 62.0;

/// Draws rows of two panels below a title and a legend.
pub fn panels(title: &str, rows: &[[Panel; 2]]) -> String {
    let (width, height) = (2.0 * PANEL.0, HEADER_HEIGHT + rows.len() as f64 * PANEL.1);
    let mut svg = Svg::default();
    svg.text((20.0, 26.0), r#"font-family="monospace""#, title);
    let mut x = 20.0;
    for Series { name, color, .. } in rows.iter().flatten().next().map_or(&[][..], |p| &p.series) {
        svg.line(color, 2.5, &[(x, 46.0), (x + 22.0, 46.0)]);
        svg.text((x + 28.0, 50.0), "", name);
        x += 60.0 + 6.6 * name.len() as f64;
    }
    for (row, panels) in rows.iter().enumerate() {
        for (column, panel) in panels.iter().enumerate() {
            let left = column as f64 * PANEL.0 + MARGIN.0;
            let top = HEADER_HEIGHT + row as f64 * PANEL.1 + MARGIN.1;
            draw(&mut svg, panel, left, top);
        }
    }
    svg.on_white((width, height))
}

fn draw(svg: &mut Svg, panel: &Panel, left: f64, top: f64) {
    let right = left + PANEL.0 - MARGIN.0 - MARGIN.2;
    let bottom = top + PANEL.1 - MARGIN.1 - MARGIN.3;
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let x = Axis::new(points().map(|point| point.0), left, right);
    let y = Axis::new(points().map(|point| point.1), bottom, top).extended_to_ticks();
    svg.text((left, top - 14.0), r#"font-weight="600""#, &panel.title);
    for tick in y.ticks() {
        let at = y.position(tick);
        svg.line("#ddd", 1.0, &[(left, at), (right, at)]);
        svg.text((left - 8.0, at + 4.0), r#"text-anchor="end""#, &format_tick(tick));
    }
    let mut marks: Vec<f64> = points().map(|point| point.0).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    for mark in marks {
        let at = x.position(mark);
        svg.line("#888", 1.0, &[(at, bottom), (at, bottom + 5.0)]);
        svg.text((at, bottom + 19.0), r#"text-anchor="middle""#, &format_tick(mark));
    }
    svg.line("#888", 1.0, &[(left, bottom), (right, bottom)]);
    svg.text(((left + right) / 2.0, bottom + 36.0), r#"text-anchor="middle""#, panel.x);
    for Series { color, points, .. } in &panel.series {
        let positions: Vec<_> =
            points.iter().map(|&(a, b)| (x.position(a), y.position(b))).collect();
        svg.line(color, 2.0, &positions);
        for position in positions {
            svg.dot(color, position);
        }
    }
}

/// A logarithmic axis that maps `low..=high` to the coordinates `from..=to`.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).max(1e-3);
        let high = values.fold(low, f64::max).max(low * 1.01);
        Self { low, high, from, to }
    }

    /// Extends the axis to the ticks that enclose the values.
    fn extended_to_ticks(self) -> Self {
        let low = tick_values().take_while(|&tick| tick <= self.low).last().unwrap_or(self.low);
        let high = tick_values().find(|&tick| tick >= self.high).unwrap_or(self.high);
        Self { low, high, ..self }
    }

    fn ticks(&self) -> Vec<f64> {
        let within = |tick: &f64| (self.low * 0.999..=self.high * 1.001).contains(tick);
        tick_values().filter(within).collect()
    }

    fn position(&self, value: f64) -> f64 {
        let fraction = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.from + fraction * (self.to - self.from)
    }
}

/// 1, 2 and 5 times each power of ten from 1e-3 to 1e8.
fn tick_values() -> impl Iterator<Item = f64> {
    (-3..9).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
}

fn format_tick(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e4 => format!("{}k", value / 1e3),
        value => format!("{}", (value * 1e3).round() / 1e3),
    }
}
