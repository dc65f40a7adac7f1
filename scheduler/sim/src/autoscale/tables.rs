//! The tables of `sluice-sim autoscale`, and its plot.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use plotters::prelude::*;

use super::scaler::Scaler;
use super::world::{Outcome, Traffic, run};
use crate::table::Table;

/// A table for each kind of traffic.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(traffic: &[Traffic], seed: u64, out: &mut impl Write) -> io::Result<()> {
    for traffic in traffic {
        let name = traffic.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
        let mut table = Table::new(&[
            "scales by",
            "most replicas",
            "over needed",
            "replica hours",
            "over needed",
            "served",
            "in time",
            "longest wait",
            "up again",
        ]);
        let mut needed = 0;
        for scaler in Scaler::value_variants() {
            let outcome = run(*scaler, *traffic, seed);
            needed = outcome.most_needed();
            table.push(row(*scaler, &outcome));
        }
        writeln!(
            out,
            "## {name}: {} replicas, then {needed} needed\n\n{table}",
            traffic.replicas()
        )?;
    }
    Ok(())
}

fn row(scaler: Scaler, outcome: &Outcome) -> Vec<String> {
    vec![
        scaler.to_string(),
        outcome.peak().to_string(),
        format!("{:.2}", outcome.overshoot()),
        format!("{:.1}", outcome.replica_hours()),
        format!("{:.2}", outcome.replica_hours() / outcome.needed_hours()),
        format!("{:.1} %", 100.0 * outcome.served),
        format!("{:.1} %", 100.0 * outcome.in_time),
        format!("{:.1} s", outcome.longest_wait),
        outcome.flaps().to_string(),
    ]
}

const COLOURS: [RGBColor; 5] = [
    RGBColor(120, 120, 120),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
];

/// Replicas over time, as SVG.
///
/// # Errors
/// If the file cannot be written.
pub fn plot(traffic: Traffic, seed: u64, path: &Path) -> Result<()> {
    let outcomes: Vec<_> =
        Scaler::value_variants().iter().map(|s| (*s, run(*s, traffic, seed))).collect();
    let most = outcomes.iter().map(|(_, outcome)| outcome.peak()).max().unwrap_or(1);
    let root = SVGBackend::new(path, (860, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let minutes = outcomes[0].1.replicas.len() as f64 / 60.0;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..minutes, 0.0..f64::from(most) * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("minutes")
        .y_desc("replicas asked for")
        .light_line_style(TRANSPARENT)
        .draw()?;
    let points = |series: &[u32]| -> Vec<(f64, f64)> {
        let every = series.iter().enumerate().step_by(15);
        every.map(|(at, n)| (at as f64 / 60.0, f64::from(*n))).collect()
    };
    let needed = points(&outcomes[0].1.needed);
    chart
        .draw_series(LineSeries::new(needed, BLACK.stroke_width(3)))?
        .label("needed")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLACK.stroke_width(3)));
    for ((scaler, outcome), colour) in outcomes.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(points(&outcome.replicas), colour.stroke_width(2)))?
            .label(scaler.to_string())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    root.present().with_context(|| format!("cannot write {}", path.display()))
}
