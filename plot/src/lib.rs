//! Plots as SVG, for the benchmarks and for `fleetlimit-simulate`.
//!
//! A crate of its own, because the benchmarks are not in the workspace, and a plotting library would need a font
//! and more code for the same: none has tooltips and classes, which the plots of a simulation consist of.

mod panels;

use std::fmt::Write;

pub use panels::{Panel, Series, panels};

/// A point in a document: its x and y coordinates.
pub type Point = (f64, f64);

/// The elements of an SVG document.
#[derive(Debug, Default)]
pub struct Svg(String);

impl Svg {
    /// Adds text, with attributes such as `text-anchor="end"`.
    pub fn text(&mut self, (x, y): Point, attributes: &str, text: &str) {
        let text = escaped(text);
        self.add(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>"));
    }

    /// Adds a line through some points.
    pub fn line(&mut self, color: &str, width: f64, points: &[Point]) {
        let points: String = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        self.add(format_args!(
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" points=\"{points}\"/>"
        ));
    }

    /// Adds a dot.
    pub fn dot(&mut self, color: &str, (x, y): Point) {
        self.add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>"));
    }

    /// Adds the outline of steps of the same width, from one point at their bottom. They have these heights.
    pub fn steps(
        &mut self,
        class: &str,
        (x, y): Point,
        width: f64,
        heights: impl Iterator<Item = f64>,
    ) {
        let mut path = format!("M{x} {y}");
        for (n, height) in heights.enumerate() {
            path += &format!("V{:.1}H{:.1}", y - height, x + (n + 1) as f64 * width);
        }
        self.add(format_args!("<path class=\"{class}\" d=\"{path}V{y}\"/>"));
    }

    /// Adds a rectangle that shows a text when the mouse is over it.
    pub fn tooltip(&mut self, class: &str, (x, y): Point, (width, height): (f64, f64), text: &str) {
        let text = escaped(text);
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\">\
             <title>{text}</title></rect>"
        ));
    }

    /// Returns the document, with a title and a style sheet.
    pub fn styled(self, size: (f64, f64), title: &str, style: &str) -> String {
        let head = format!("<title>{}</title><style>{style}</style>", escaped(title));
        self.document(size, "role=\"img\"", &head)
    }

    /// Returns the document with a white background, so that it is readable on a dark page too.
    pub fn on_white(self, (width, height): (f64, f64)) -> String {
        let font = "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#222\"";
        let head = format!("<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#fff\"/>");
        self.document((width, height), font, &head)
    }

    fn document(self, (width, height): (f64, f64), attributes: &str, head: &str) -> String {
        let Self(elements) = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" {attributes}>\n\
             {head}\n{elements}</svg>\n"
        )
    }

    /// Writing to a string does not fail.
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{element}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_add_elements() {
        let mut svg = Svg::default();
        svg.text((0.0, 0.0), "", "<script>&");
        svg.tooltip("a", (0.0, 0.0), (1.0, 1.0), "<script>&");
        let document = svg.styled((1.0, 1.0), "<script>&", "");
        assert_eq!(document.matches("&lt;script>&amp;").count(), 3, "{document}");
        assert!(!document.contains("<script"), "{document}");
    }
}
