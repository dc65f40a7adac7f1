//! The picture of a sweep: goodput against offered load, one line a server.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use plotters::prelude::*;

use crate::report::{Load, Run};

/// Drawn at twice the width a README shows, so that the text stays readable there.
const SIZE: (u32, u32) = (960, 540);
const FONT: &str = "sans-serif";

/// Colours that differ in brightness as well as in hue (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// One server's points, `(offered load, goodput in tokens a second)`, in order of load.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

/// Draws the open-loop runs among `runs` to an SVG file.
///
/// # Errors
/// If there are no open-loop runs, or the file cannot be written.
pub fn goodput(runs: &[Run], path: &Path) -> Result<()> {
    let open: Vec<&Run> = runs.iter().filter(|r| matches!(r.load, Load::Open { .. })).collect();
    ensure!(!open.is_empty(), "no open-loop runs among the results: nothing to draw");
    let in_multiples = open.iter().all(|r| matches!(r.load, Load::Open { multiple: Some(_), .. }));
    let lines = lines(&open, in_multiples);
    let title = format!("Goodput: output tokens/s of requests within {}", shared_slo(&open));
    let x_label = if in_multiples { "offered load / capacity" } else { "offered load, requests/s" };
    draw(&lines, &title, x_label, path)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("drawing {}", path.display()))
}

fn lines(runs: &[&Run], in_multiples: bool) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let is_shared = runs.iter().all(|run| run.slo == runs[0].slo);
    for run in runs {
        let Load::Open { rate, multiple } = run.load else { continue };
        let x = if in_multiples { multiple.unwrap_or(rate) } else { rate };
        let point = (x, run.summary.goodput_tokens_per_s);
        let label = match is_shared {
            true => run.label.clone(),
            false => format!("{} ({})", run.label, run.slo.describe()),
        };
        match lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { label, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// The SLO of all runs in words. Servers may be judged each by its own (say, a multiple of its
/// unloaded latency); then the limits stand in the legend.
fn shared_slo(runs: &[&Run]) -> String {
    let first = runs[0].slo;
    let is_shared = runs.iter().all(|run| run.slo == first);
    if is_shared { first.describe() } else { "the server's SLO".to_owned() }
}

fn draw(
    lines: &[Line],
    title: &str,
    x_label: &str,
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let x_max = points().map(|p| p.0).fold(0.0, f64::max) * 1.05;
    let y_max = points().map(|p| p.1).fold(1.0, f64::max) * 1.15;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, (FONT, 26))
        .margin(16)
        .x_label_area_size(56)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc("goodput, output tokens/s")
        .y_label_formatter(&|tokens| format!("{tokens:.0}"))
        .label_style((FONT, 20))
        .axis_desc_style((FONT, 22))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(3);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style))?
            .label(&line.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 28, y)], style));
        let dots = line.points.iter().map(|&point| Circle::new(point, 5, colour.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .label_font((FONT, 20))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn each_server_becomes_one_line_in_order_of_load() {
        let at = |multiple| Load::Open { rate: multiple * 3.0, multiple: Some(multiple) };
        let runs = [run("a", at(2.0)), run("b", at(1.0)), run("a", at(0.5)), run("a", at(1.0))];
        let runs: Vec<&Run> = runs.iter().collect();
        let drawn = lines(&runs, true);
        let xs: Vec<f64> = drawn[0].points.iter().map(|p| p.0).collect();
        assert_eq!((drawn.len(), xs), (2, vec![0.5, 1.0, 2.0]));
        assert_eq!(lines(&runs, false)[1].points[0].0, 3.0);
        assert_eq!(shared_slo(&runs), "E2E 2.40 s");
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        let closed = run("a", Load::Closed { concurrency: 1 });
        assert!(goodput(&[closed], Path::new("/nonexistent/x.svg")).is_err());
    }
}
