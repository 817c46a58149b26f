//! Plots as SVG: lines over two axes, and bars around a goal.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;
/// Told apart also by those who do not see all colours; Okabe and Ito, "Color universal design", 2008.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// How numbers lie on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Evenly, from 0.
    Linear,
    /// By powers of ten; only what is above 0 is shown.
    Log,
}

/// A line.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// What it is.
    pub(crate) name: String,
    /// Its points.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot of lines.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    /// What it shows.
    pub(crate) title: String,
    /// What lies on the axis to the right, and how.
    pub(crate) x: (String, Scale),
    /// What lies on the axis upwards, and how.
    pub(crate) y: (String, Scale),
    /// The lines.
    pub(crate) series: Vec<Series>,
}

/// One axis: from the values to a share of its length.
struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, scale: Scale) -> Self {
        let shown: Vec<f64> = values.filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0)).collect();
        let low = shown.iter().copied().fold(f64::INFINITY, f64::min);
        let high = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match scale {
            _ if shown.is_empty() => Self { low: 1.0, high: 10.0, scale },
            Scale::Linear => Self { low: low.min(0.0), high: if high > 0.0 { high * 1.05 } else { 1.0 }, scale },
            Scale::Log => {
                let (low, high) = (low.log10().floor(), high.log10().ceil());
                Self { low: 10_f64.powf(low), high: 10_f64.powf(if high > low { high } else { low + 1.0 }), scale }
            }
        }
    }

    fn share(&self, value: f64) -> Option<f64> {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value <= 0.0 => return None,
            Scale::Log => (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10()),
        };
        share.is_finite().then_some(share)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.high - self.low) / 5.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * power).find(|step| *step >= rough).unwrap_or(rough);
                let first = (self.low / step).ceil();
                (0..12).map(|number| (first + f64::from(number)) * step).take_while(|tick| *tick <= self.high).collect()
            }
            Scale::Log => {
                let first = self.low.log10().round();
                (0..20).map(|number| 10_f64.powf(first + f64::from(number))).take_while(|tick| *tick <= self.high * 1.001).collect()
            }
        }
    }
}

/// A number as short as it stays clear.
pub(crate) fn short(value: f64) -> String {
    let trim = |text: String| if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text };
    match value.abs() {
        size if size >= 10_000_000.0 => format!("{}M", trim(format!("{:.0}", value / 1e6))),
        size if size >= 10_000.0 => format!("{}k", trim(format!("{:.1}", value / 1e3))),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => trim(format!("{value:.2}")),
        size if size >= 0.01 || value == 0.0 => trim(format!("{value:.3}")),
        _ => format!("{value:.1e}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, size: u32, text: &str) {
    let (x, y) = at;
    let text = escape(text);
    // Writing into a text does not fail.
    let _ = writeln!(out, r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="#222">{text}</text>"##);
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(out, r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}"/>"#, from.0, from.1, to.0, to.1);
}

fn begin(width: f64, height: f64, title: &str) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="sans-serif">"#
    );
    let _ = writeln!(out, r#"<rect width="100%" height="100%" fill="white"/>"#);
    text(&mut out, (LEFT, 22.0), "start", 15, title);
    out
}

impl Lines {
    /// The plot.
    pub(crate) fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x_axis = Axis::over(points().map(|(x, _)| *x), self.x.1);
        let y_axis = Axis::over(points().map(|(_, y)| *y), self.y.1);
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let place = |x: f64, y: f64| Some((LEFT + x_axis.share(x)? * width, HEIGHT - BOTTOM - y_axis.share(y)? * height));
        let mut out = begin(WIDTH, HEIGHT, &self.title);
        for tick in y_axis.ticks() {
            let Some(share) = y_axis.share(tick) else { continue };
            let y = HEIGHT - BOTTOM - share * height;
            line(&mut out, (LEFT, y), (WIDTH - RIGHT, y), "#ddd");
            text(&mut out, (LEFT - 6.0, y + 4.0), "end", 11, &short(tick));
        }
        for tick in x_axis.ticks() {
            let Some(share) = x_axis.share(tick) else { continue };
            let x = LEFT + share * width;
            line(&mut out, (x, HEIGHT - BOTTOM), (x, HEIGHT - BOTTOM + 5.0), "#222");
            text(&mut out, (x, HEIGHT - BOTTOM + 18.0), "middle", 11, &short(tick));
        }
        line(&mut out, (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM), "#222");
        line(&mut out, (LEFT, TOP), (LEFT, HEIGHT - BOTTOM), "#222");
        text(&mut out, (LEFT + width / 2.0, HEIGHT - 14.0), "middle", 12, &self.x.0);
        text(&mut out, (LEFT - 60.0, TOP - 10.0), "start", 12, &self.y.0);
        for ((series, colour), slot) in self.series.iter().zip(COLOURS.iter().cycle()).zip(0_u32..) {
            let places: Vec<(f64, f64)> = series.points.iter().filter_map(|(x, y)| place(*x, *y)).collect();
            let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(out, r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#, path.join(" "));
            if places.len() <= 40 {
                for (x, y) in &places {
                    let _ = writeln!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
                }
            }
            let x = LEFT + 150.0 + f64::from(slot) * 180.0;
            let _ = writeln!(out, r#"<rect x="{x:.1}" y="{:.1}" width="14" height="4" fill="{colour}"/>"#, TOP - 16.0);
            text(&mut out, (x + 20.0, TOP - 10.0), "start", 12, &series.name);
        }
        out + "</svg>\n"
    }
}

/// A bar: how many times better than its goal something is.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    /// What it is.
    pub(crate) name: String,
    /// 1 is just the goal.
    pub(crate) margin: f64,
    /// What stands beside it.
    pub(crate) label: String,
}

/// Bars to the right of the goal or to its left, by powers of two.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 24.0;
    const NAMES: f64 = 400.0;
    const SPAN: f64 = 260.0;
    const MOST: f64 = 4.0;
    let rows: f64 = bars.iter().map(|_| ROW).sum();
    let (width, height) = (NAMES + SPAN + 120.0, TOP + rows + 30.0);
    let middle = NAMES + SPAN / 2.0;
    let mut out = begin(width, height, title);
    let mut y = TOP;
    for bar in bars {
        let power = if bar.margin > 0.0 { bar.margin.log2().clamp(-MOST, MOST) } else { -MOST };
        let length = power.abs() / MOST * SPAN / 2.0;
        let x = if power < 0.0 { middle - length } else { middle };
        let colour = if bar.margin >= 1.0 { "#009e73" } else { "#d55e00" };
        let _ = writeln!(out, r#"<rect x="{x:.1}" y="{:.1}" width="{:.1}" height="14" fill="{colour}"/>"#, y + 4.0, length.max(1.0));
        text(&mut out, (NAMES - 8.0, y + 15.0), "end", 11, &bar.name);
        text(&mut out, (NAMES + SPAN + 8.0, y + 15.0), "start", 11, &bar.label);
        y += ROW;
    }
    line(&mut out, (middle, TOP - 4.0), (middle, y + 4.0), "#222");
    text(&mut out, (middle, y + 20.0), "middle", 11, "goal (a whole side is 16 times)");
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>, scale: Scale) -> String {
        let series = vec![Series { name: "a<b".to_owned(), points }];
        Lines { title: "t".to_owned(), x: ("x".to_owned(), scale), y: ("y".to_owned(), scale), series }.svg()
    }

    #[test]
    fn a_plot_is_well_formed_whatever_its_numbers() {
        for scale in [Scale::Linear, Scale::Log] {
            for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 5.0), (1e6, f64::NAN)], vec![(10.0, 1.0), (100.0, 3.0), (1000.0, 0.001)]] {
                let svg = plot(points, scale);
                assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("a&lt;b"));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    #[test]
    fn a_log_axis_has_a_tick_at_every_power_of_ten() {
        let axis = Axis::over([10.0, 99_000.0].into_iter(), Scale::Log);
        assert_eq!(axis.ticks().len(), 5);
        assert_eq!(axis.share(10.0), Some(0.0));
        assert!((axis.share(1000.0).unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn bars_point_to_the_side_they_are_on() {
        let bar = |margin| Bar { name: "n".to_owned(), margin, label: "l".to_owned() };
        let svg = bars("t", &[bar(2.0), bar(0.5), bar(0.0), bar(f64::INFINITY)]);
        assert_eq!((svg.matches("#009e73").count(), svg.matches("#d55e00").count()), (2, 2));
        assert!(!svg.contains("inf") && !svg.contains("NaN"));
    }

    #[test]
    fn short_numbers_stay_clear() {
        for (value, wanted) in
            [(0.0, "0"), (1.5, "1.5"), (100.0, "100"), (10_000.0, "10k"), (1_000_000.0, "1000k"), (0.25, "0.25"), (2e7, "20M")]
        {
            assert_eq!(short(value), wanted);
        }
    }
}
