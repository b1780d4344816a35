//! The results as a picture: cold starts over idle time, both on logarithmic scales. Lower and further left is better.

use std::fmt::Write;

use super::policies::Policy;
use super::run::Outcome;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 60.0;
const FIXED: &str = "#52606d";
const LEARNED: &str = "#d9480f";
const OTHERS: &str = "#1971c2";

/// A white edge keeps a label readable where it crosses a line.
const EDGE: &str = "stroke=\"#fff\" stroke-width=\"4\" stroke-linejoin=\"round\" paint-order=\"stroke\"";

/// A logarithmic scale from the values of a picture to its pixels.
struct Scale {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// A little more than all values.
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = values.fold((f64::INFINITY, 1.0_f64), |(least, most), value| {
            (least.min(value.max(1.0)), most.max(value.max(1.0)))
        });
        Self { least: least.min(most) * 0.85, most: most * 1.25, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(1.0) / self.least).ln() / (self.most / self.least).ln();
        self.from + share * (self.to - self.from)
    }

    /// 1, 2 and 5 times the powers of ten within the scale.
    fn ticks(&self) -> Vec<f64> {
        let all = (0..12).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
        all.filter(|tick| (self.least..=self.most).contains(tick)).collect()
    }
}

/// A point of the picture.
struct Point {
    name: String,
    x: f64,
    y: f64,
}

/// The whole file.
pub(super) fn chart(title: &str, outcomes: &[Outcome]) -> String {
    let idle = outcomes.iter().map(|outcome| outcome.parts[1].idle_pod_minutes());
    let x = Scale::new(idle, LEFT, WIDTH - RIGHT);
    #[expect(clippy::cast_precision_loss, reason = "a pixel needs no more digits")]
    let cold = |outcome: &Outcome| outcome.parts[1].cold_starts as f64;
    let y = Scale::new(outcomes.iter().map(cold), HEIGHT - BOTTOM, TOP);
    let points = |belongs: fn(&Policy) -> bool| -> Vec<Point> {
        let these = outcomes.iter().filter(|outcome| belongs(&outcome.policy));
        let point = |outcome: &Outcome| Point {
            name: outcome.policy.to_string(),
            x: x.at(outcome.parts[1].idle_pod_minutes()),
            y: y.at(cold(outcome)),
        };
        these.map(point).collect()
    };
    let mut body = String::new();
    axes(&mut body, &x, &y);
    line_of(&mut body, &points(|policy| matches!(policy, Policy::Fixed(_))), FIXED);
    line_of(&mut body, &points(|policy| matches!(policy, Policy::Learned(_))), LEARNED);
    single(&mut body, &points(|policy| !matches!(policy, Policy::Fixed(_) | Policy::Learned(_))), OTHERS);
    legend(&mut body);
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"16\" font-weight=\"bold\">{title}</text>\n{body}</svg>\n"
    )
}

fn axes(out: &mut String, x: &Scale, y: &Scale) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    // Writing to a string does not fail.
    for tick in x.ticks() {
        let (at, label) = (x.at(tick), super::text::whole(tick));
        line(out, (at, TOP), (at, bottom), "#e4e7eb");
        writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", bottom + 18.0)
            .ok();
    }
    for tick in y.ticks() {
        let (at, label) = (y.at(tick), super::text::whole(tick));
        line(out, (LEFT, at), (right, at), "#e4e7eb");
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            at + 4.0
        )
        .ok();
    }
    line(out, (LEFT, bottom), (right, bottom), "#222");
    line(out, (LEFT, TOP), (LEFT, bottom), "#222");
    let middle = f64::midpoint(LEFT, right);
    writeln!(
        out,
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">idle pod-minutes</text>",
        HEIGHT - 16.0
    )
    .ok();
    let middle = f64::midpoint(TOP, bottom);
    writeln!(
        out,
        "<text x=\"20\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {middle:.1})\">cold starts</text>"
    )
    .ok();
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
    writeln!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>")
        .ok();
}

/// Points that a line joins. Their labels, above, have only the number of the policy.
fn line_of(out: &mut String, points: &[Point], colour: &str) {
    let path: Vec<String> = points.iter().map(|point| format!("{:.1},{:.1}", point.x, point.y)).collect();
    let path = path.join(" ");
    writeln!(out, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>").ok();
    for point in points {
        dot(out, point, colour);
        let label = escape(point.name.split(' ').next_back().unwrap_or_default());
        let (x, y) = (point.x + 7.0, point.y - 6.0);
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\" {EDGE}>{label}</text>").ok();
    }
}

/// Single points. Their labels are below, and below each other where points are close together.
fn single(out: &mut String, points: &[Point], colour: &str) {
    let mut labels: Vec<(f64, f64)> = Vec::new();
    for point in points {
        dot(out, point, colour);
        let (x, mut y) = (point.x - 8.0, point.y + 14.0);
        while labels.iter().any(|label| (label.0 - x).abs() < 140.0 && (label.1 - y).abs() < 15.0) {
            y += 16.0;
        }
        labels.push((x, y));
        let label = escape(&point.name);
        writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"{colour}\" {EDGE}>{label}</text>"
        )
        .ok();
    }
}

fn dot(out: &mut String, point: &Point, colour: &str) {
    let (x, y, name) = (point.x, point.y, escape(&point.name));
    writeln!(
        out,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{name}</title></circle>"
    )
    .ok();
}

fn legend(out: &mut String) {
    let entries = [
        (FIXED, "fixed idle-after"),
        (LEARNED, "learned, by cold-start-cost"),
        (OTHERS, "KEDA and Knative, defaults"),
    ];
    for (n, (colour, name)) in (0_u8..).zip(entries) {
        let y = TOP + 16.0 + 20.0 * f64::from(n);
        let x = WIDTH - RIGHT - 230.0;
        writeln!(out, "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", y - 4.0).ok();
        writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>", x + 12.0).ok();
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
