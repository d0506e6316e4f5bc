//! Line charts as SVG, without a library: panels of lines over a few named steps.

use std::fmt::Write;

/// One chart of a figure.
pub(crate) struct Panel {
    pub(crate) title: String,
    /// The unit of the vertical axis.
    pub(crate) unit: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// One value for each step of the figure.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<f64>,
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
/// Margins around the plotted area of a panel: left, right, top, bottom.
const MARGINS: [f64; 4] = [56.0, 12.0, 34.0, 34.0];
const COLUMNS: usize = 2;
/// Names in one row of a panel's legend, and the height of a row.
const LEGEND_COLUMNS: usize = 5;
const LEGEND_HEIGHT: f64 = 12.0;
/// The background is white, so that the colours can be read in pages of any theme.
const COLOURS: [&str; 8] =
    ["#4477aa", "#cc6677", "#228833", "#aa7744", "#884499", "#222255", "#999933", "#dd5500"];

/// Draws the panels, two in a row, with `steps` along each horizontal axis. A name has the same colour in
/// all panels.
pub(crate) fn draw(title: &str, steps: &[String], panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * rows as f64 + 30.0);
    let mut names = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !names.contains(&line.name) {
            names.push(line.name);
        }
    }
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"20\" text-anchor=\"middle\" font-size=\"14\">{title}</text>",
        width / 2.0
    );
    for (index, panel) in panels.iter().enumerate() {
        let (x, y) = ((index % COLUMNS) as f64 * WIDTH, (index / COLUMNS) as f64 * HEIGHT + 30.0);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        draw_panel(&mut svg, steps, panel, &names);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, steps: &[String], panel: &Panel, names: &[&str]) {
    let [left, right, top, bottom] = MARGINS;
    let legend_rows = panel.lines.len().div_ceil(LEGEND_COLUMNS).max(1);
    let top = top + LEGEND_HEIGHT * (legend_rows - 1) as f64;
    let (plot_width, plot_height) = (WIDTH - left - right, HEIGHT - top - bottom);
    let highest = panel.lines.iter().flat_map(|line| &line.values).copied().fold(0.0, f64::max);
    let scale_max = round_up(highest);
    let x_of = |step: usize| left + plot_width * (step as f64 + 0.5) / steps.len().max(1) as f64;
    let y_of = |value: f64| top + plot_height * (1.0 - value / scale_max);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"14\" text-anchor=\"middle\" font-weight=\"bold\">{} ({})</text>",
        left + plot_width / 2.0,
        panel.title,
        panel.unit
    );
    for tick in 0..=4 {
        let value = scale_max * f64::from(tick) / 4.0;
        let y = y_of(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left + plot_width,
            left - 6.0,
            y + 4.0,
            label(value)
        );
    }
    for (step, name) in steps.iter().enumerate() {
        let (x, y) = (x_of(step), HEIGHT - bottom + 16.0);
        let name = name.replace(" KiB", "K").replace(" MiB", "M");
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>");
    }
    for (index, line) in panel.lines.iter().enumerate() {
        let place = names.iter().position(|name| *name == line.name).unwrap_or(index);
        let colour = COLOURS[place % COLOURS.len()];
        let points = line.values.iter().enumerate();
        let points = points.filter(|(_, value)| value.is_finite());
        let points: Vec<_> = points.map(|(step, value)| (x_of(step), y_of(*value))).collect();
        let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in points {
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let (row, column) = (index / LEGEND_COLUMNS, index % LEGEND_COLUMNS);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            left + 72.0 * column as f64,
            28.0 + LEGEND_HEIGHT * row as f64,
            line.name
        );
    }
}

/// The next number of the form 1, 2, 4 or 8 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 8.0, 10.0];
    steps.iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

fn label(value: f64) -> String {
    if value >= 10.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        let ends = [0.0, 0.03, 1.0, 1.1, 45.0, 81.0, 300.0].map(round_up);
        let want = [1.0, 0.04, 1.0, 2.0, 80.0, 100.0, 400.0];
        assert!(ends.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9), "{ends:?}");
    }

    #[test]
    fn every_value_gets_a_mark_and_the_highest_stays_inside() {
        let lines = vec![Line { name: "one", values: vec![1.0, 3.9] }];
        let panel = Panel { title: "t".into(), unit: "u", lines };
        let svg = draw("figure", &["4 KiB".into(), "1 MiB".into()], &[panel]);
        assert!(svg.contains(">4K<") && svg.contains(">1M<"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("cy=\"-"));
    }

    #[test]
    fn a_long_legend_has_rows_and_each_line_its_colour() {
        let line = |name| Line { name, values: vec![1.0] };
        let lines = ["a", "b", "c", "d", "e", "f", "g"].map(line).into();
        let svg = draw("figure", &["4K".into()], &[Panel { title: "t".into(), unit: "u", lines }]);
        assert_eq!(svg.matches("y=\"28\"").count(), LEGEND_COLUMNS);
        assert_eq!(svg.matches("y=\"40\"").count(), 2);
        assert!(COLOURS[..7].iter().all(|colour| svg.contains(colour)));
    }

    #[test]
    fn a_name_has_one_colour() {
        let panel = |names: &[&'static str]| {
            let line = |&name| Line { name, values: vec![1.0] };
            Panel { title: "t".into(), unit: "u", lines: names.iter().map(line).collect() }
        };
        let svg = draw("figure", &["4 KiB".into()], &[panel(&["a", "b"]), panel(&["b"])]);
        let of_b = format!("fill=\"{}\">b</text>", COLOURS[1]);
        assert_eq!(svg.matches(&of_b).count(), 2);
    }
}
