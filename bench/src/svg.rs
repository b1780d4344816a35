//! Draws the results as an SVG chart: a group of bars per load, each group with its own scale.

use std::fmt::Write;

use crate::matrix::Cell;

const WIDTH: f64 = 860.0;
const NAMES: f64 = 190.0;
const BARS: f64 = 520.0;
const ROW: f64 = 20.0;
const HEAD: f64 = 34.0;
const TOP: f64 = 40.0;

/// The whole file. The bars of `reference` have another colour.
pub(crate) fn chart(title: &str, cells: &[Cell], reference: &str) -> String {
    let mut scenarios: Vec<&str> = cells.iter().map(|cell| cell.scenario).collect();
    scenarios.dedup();
    let mut at = TOP;
    let mut body = String::new();
    for scenario in scenarios {
        let group: Vec<&Cell> = cells.iter().filter(|cell| cell.scenario == scenario).collect();
        at += HEAD;
        let y = at - 10.0;
        let name = escape(scenario);
        // Writing to a string does not fail.
        writeln!(body, "<text x=\"10\" y=\"{y}\" font-weight=\"bold\">{name}</text>").ok();
        let most = group.iter().map(|cell| cell.cpu_us.max).fold(f64::MIN_POSITIVE, f64::max);
        for cell in group {
            bar(&mut body, cell, at, BARS / most, cell.proxy == reference);
            at += ROW;
        }
    }
    let height = at + 20.0;
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{title}</text>\n{body}</svg>\n"
    )
}

/// One bar with its name, its value, and a line from the minimum to the maximum.
fn bar(out: &mut String, cell: &Cell, top: f64, scale: f64, ours: bool) {
    let colour = if ours { "#d9480f" } else { "#9aa5b1" };
    let spread = &cell.cpu_us;
    let (width, from, to) = (spread.median * scale, spread.min * scale, spread.max * scale);
    let (text_y, middle, height) = (top + 13.0, top + 8.5, ROW - 5.0);
    let (first, last, value_x) = (NAMES + from, NAMES + to, NAMES + to + 8.0);
    let mark = if cell.marked { "!" } else { "" };
    let name = escape(&cell.proxy);
    // Writing to a string does not fail.
    writeln!(
        out,
        "<text x=\"{x}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>\n\
         <rect x=\"{NAMES}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>\n\
         <line x1=\"{first:.1}\" x2=\"{last:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#222\"/>\n\
         <text x=\"{value_x:.1}\" y=\"{text_y}\">{mark}{median:.1} µs</text>",
        x = NAMES - 8.0,
        median = spread.median,
    )
    .ok();
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Spread;

    fn cell(scenario: &'static str, proxy: &str, median: f64) -> Cell {
        let cpu_us = Spread { median, min: median, max: median * 2.0, count: 3 };
        Cell { scenario, proxy: proxy.to_owned(), cpu_us, ratio: None, kept: 3, marked: true }
    }

    /// Every tag is closed, in order, and nothing else uses the characters of tags.
    fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = svg;
        while let Some((text, tag)) = rest.split_once('<') {
            assert!(!text.contains('>'), "{text:?}");
            let (tag, after) = tag.split_once('>').expect("a tag ends");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                open.extend(tag.split_whitespace().next());
            }
            rest = after;
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest:?}");
    }

    #[test]
    fn the_picture_is_well_formed_with_any_names() {
        let cells = [cell("a < b & \"c\"", "rouse", 20.0), cell("z", "x > y", 0.0)];
        let svg = chart("CPU <µs>", &cells, "rouse");
        assert_well_formed(&svg);
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("!20.0 µs"), "{svg}");
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        assert_well_formed(&chart("none", &[], "rouse"));
    }

    #[test]
    fn only_the_reference_has_the_other_colour() {
        let svg = chart("t", &[cell("a", "rouse", 1.0), cell("a", "nginx", 2.0)], "rouse");
        assert_eq!((svg.matches("#d9480f").count(), svg.matches("#9aa5b1").count()), (1, 1));
    }
}
