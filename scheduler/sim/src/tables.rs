//! The tables of `sluice-sim admission`.

use std::io::{self, Write};

use clap::ValueEnum;
use scheduler::{KindConfig, Rule};

use crate::experiment::{Device, Effort, Rules, Scenario, TRUE_MODEL, attainment, capacity, gain};
use crate::hindsight::PARTS;
use crate::score::{Errors, Score};
use crate::stats::Mean;
use crate::table::Table;
use crate::target::Target;
use crate::workload::{Workload, by_name};

/// A question that a table answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// Requests in time: plain queue, best static cap, gate; known lengths.
    Attainment,
    /// How far forecasts were from the truth; known lengths.
    Forecasts,
    /// Refusals that were wrong, with k = 0 and k = 0.8.
    Refusals,
    /// Who is refused, by prompt length, without and with fairness.
    Fairness,
    /// Lengths that have to be learned: first token and gap, then the last token.
    Learned,
    /// Step costs that are 20 % higher than the model says, without and with correction.
    Bias,
}

/// Which errors of a score a line shows.
type ErrorsOf = fn(&Score) -> Errors;

/// Workloads with targets.
type Cases = &'static [(&'static str, Target)];

const PROPORTIONAL: Cases = &[
    ("8b-code", Target::Multiple(4.0)),
    ("8b-conv", Target::Multiple(4.0)),
    ("70b-code", Target::Multiple(4.0)),
    ("70b-conv", Target::Multiple(4.0)),
    ("cpu-chat", Target::Multiple(4.0)),
    ("8b-code-bursty", Target::Multiple(4.0)),
    ("8b-conv-bursty", Target::Multiple(4.0)),
    ("cpu-chat-bursty", Target::Multiple(4.0)),
];

const ABSOLUTE: Cases = &[
    ("8b-code", Target::Seconds(1.5)),
    ("8b-conv", Target::Seconds(5.0)),
    ("8b-conv-bursty", Target::Seconds(5.0)),
    ("70b-code", Target::Seconds(3.0)),
    ("70b-conv", Target::Seconds(10.0)),
    ("70b-lognormal", Target::Seconds(6.0)),
    ("cpu-chat", Target::Seconds(8.0)),
    ("cpu-chat-bursty", Target::Seconds(8.0)),
];

const TOKENS: Cases = &[
    ("8b-conv", Target::Tokens(1.0, 30.0)),
    ("70b-conv", Target::Tokens(2.0, 50.0)),
    ("70b-lognormal", Target::Tokens(2.0, 50.0)),
    ("cpu-chat", Target::Tokens(3.0, 80.0)),
];

const WIDE: Cases = &[("70b-lognormal", Target::Seconds(6.0)), ("8b-code", Target::Seconds(1.5))];

/// Which scenarios are run, and how thoroughly.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Seeds, requests, threads.
    pub effort: Effort,
    /// Multiples of capacity.
    pub loads: Vec<f64>,
    /// Only these workloads, if any is named.
    pub only: Vec<String>,
    /// The gate's settings.
    pub rules: Rules,
}

impl Bench {
    /// Prints the table of `topic`.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(&self, topic: Topic, out: &mut impl Write) -> io::Result<()> {
        match topic {
            Topic::Attainment => {
                let cases = [PROPORTIONAL, ABSOLUTE].concat();
                self.each(&cases, true, &ATTAINMENT, out, |s| self.attainment_row(s))
            }
            Topic::Forecasts => {
                let cases = [PROPORTIONAL, ABSOLUTE].concat();
                self.each(&cases, true, &FORECASTS, out, |s| self.forecast_row(s))
            }
            Topic::Refusals => {
                let cases = [PROPORTIONAL, ABSOLUTE].concat();
                self.each(&cases, true, &REFUSALS, out, |s| self.refusal_row(s))
            }
            Topic::Fairness => {
                let cases = [PROPORTIONAL, ABSOLUTE].concat();
                self.each(&cases, true, &FAIRNESS, out, |s| self.fairness_row(s))
            }
            Topic::Learned => {
                self.each(TOKENS, false, &ATTAINMENT, out, |s| self.attainment_row(s))?;
                self.each(WIDE, false, &ATTAINMENT, out, |s| self.attainment_row(s))
            }
            Topic::Bias => self.each(PROPORTIONAL, true, &BIAS, out, |s| self.bias_row(s)),
        }
    }

    /// A table with a row for each case at each load.
    fn each(
        &self,
        cases: &[(&str, Target)],
        known: bool,
        head: &[&str],
        out: &mut impl Write,
        row: impl Fn(&Scenario) -> Vec<String>,
    ) -> io::Result<()> {
        let mut table = Table::new(&[&["workload", "SLO", "load"], head].concat());
        let chosen = |name: &str| self.only.is_empty() || self.only.iter().any(|o| o == name);
        for (name, target) in cases.iter().filter(|(name, _)| chosen(name)) {
            let workload: Workload = *by_name(name).expect("a case names a workload");
            let capacity = capacity(&workload);
            for load in &self.loads {
                let scenario = Scenario { workload, target: *target, load: *load, known, capacity };
                let mut cells = vec![(*name).to_owned(), target.to_string(), load.to_string()];
                cells.extend(row(&scenario));
                table.push(cells);
            }
        }
        writeln!(out, "{table}")
    }

    fn attainment_row(&self, scenario: &Scenario) -> Vec<String> {
        let plain = scenario.plain(&self.effort, TRUE_MODEL);
        let (cap, capped) = scenario.best_cap(&self.effort, TRUE_MODEL);
        let gate = scenario.gate(&self.effort, TRUE_MODEL, self.rules);
        vec![
            format!("{:.3}", attainment(&plain).mean),
            format!("{:.3} ({cap})", attainment(&capped).mean),
            attainment(&gate).to_string(),
            format!("{:+}", gain(&gate, &capped)),
            kept(&gate).to_string(),
            format!("{:.0}", goodput(&capped)),
            format!("{:.0}", goodput(&gate)),
        ]
    }

    fn forecast_row(&self, scenario: &Scenario) -> Vec<String> {
        let gate = scenario.gate(&self.effort, TRUE_MODEL, self.rules);
        vec![
            percent(&gate, |score| score.carried_e2e),
            percent(&gate, |score| score.carried_ttft),
            percent(&gate, |score| score.admission_e2e),
            percent(&gate, |score| score.admission_ttft),
            covered(&gate),
        ]
    }

    fn refusal_row(&self, scenario: &Scenario) -> Vec<String> {
        [0, 800]
            .into_iter()
            .flat_map(|strength_permille| {
                let kinds = KindConfig { strength_permille, ..self.rules.kinds };
                let rules = Rules { kinds, ..self.rules };
                let wrong = scenario.false_refusals(&self.effort, rules);
                let meet = Mean::of(wrong.iter().map(|wrong| wrong.would_meet));
                let nobody = Mean::of(wrong.iter().map(|wrong| wrong.costs_nobody));
                [format!("{:.2}", meet.mean), format!("{:.3} ±{:.3}", nobody.mean, nobody.half)]
            })
            .collect()
    }

    fn fairness_row(&self, scenario: &Scenario) -> Vec<String> {
        [0, self.rules.kinds.fairness_permille.max(1_000)]
            .into_iter()
            .flat_map(|fairness_permille| {
                let kinds = KindConfig { fairness_permille, ..self.rules.kinds };
                let rules = Rules { kinds, ..self.rules };
                let gate = scenario.gate(&self.effort, TRUE_MODEL, rules);
                [quartiles(&gate), attainment(&gate).to_string()]
            })
            .collect()
    }

    fn bias_row(&self, scenario: &Scenario) -> Vec<String> {
        [false, true]
            .into_iter()
            .flat_map(|corrected| {
                let device = Device { bias: 1.2, corrected, ..TRUE_MODEL };
                let gate = scenario.gate(&self.effort, device, self.rules);
                [attainment(&gate).to_string(), format!("{:.3}", kept(&gate).mean)]
            })
            .collect()
    }

    /// One scenario in detail; with the refusals that were wrong if `refusals` is set.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn detail(
        &self,
        scenario: &Scenario,
        device: Device,
        refusals: bool,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let gate = scenario.gate(&self.effort, device, self.rules);
        let mut table = Table::new(&["measure", "value"]);
        let mut line = |name: &str, value: String| table.push(vec![name.to_owned(), value]);
        line("in time over offered", attainment(&gate).to_string());
        line("in time over admitted", kept(&gate).to_string());
        line("goodput, tokens/s", format!("{:.0}", goodput(&gate)));
        for (i, rule) in Rule::ALL.iter().enumerate() {
            let share = Mean::of(gate.iter().map(|score| score.by_rule[i]));
            line(&format!("refused by the rule `{}`", rule.label()), share.to_string());
        }
        line("refused by quartile of the prompt", quartiles(&gate));
        let errors: [(&str, ErrorsOf); 4] = [
            ("carried E2E, %", |score| score.carried_e2e),
            ("carried TTFT, %", |score| score.carried_ttft),
            ("admission E2E, %", |score| score.admission_e2e),
            ("admission TTFT, %", |score| score.admission_ttft),
        ];
        for (name, of) in errors {
            line(name, percent(&gate, of));
        }
        line("came by the bound, TTFT / E2E", covered(&gate));
        if refusals {
            let wrong = scenario.false_refusals(&self.effort, self.rules);
            let meet = Mean::of(wrong.iter().map(|wrong| wrong.would_meet));
            let nobody = Mean::of(wrong.iter().map(|wrong| wrong.costs_nobody));
            line("refused, and would have met it", meet.to_string());
            line("refused, and would have cost nobody", nobody.to_string());
        }
        writeln!(out, "{table}")
    }

    /// The gate beside what a search of so many changes finds with all arrivals known, without
    /// noise.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn hindsight(
        &self,
        scenario: &Scenario,
        changes: u32,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let found = scenario.hindsight(&self.effort, self.rules, changes);
        let mut table = Table::new(&["", "in time over offered", "refused, least work first"]);
        for (i, name) in ["gate", "with hindsight"].into_iter().enumerate() {
            let in_time = Mean::of(found.iter().map(|both| both[i].in_time));
            let part = |part: usize| Mean::of(found.iter().map(|both| both[i].refused[part])).mean;
            let refused: Vec<String> = (0..PARTS).map(|i| format!("{:.2}", part(i))).collect();
            table.push(vec![name.to_owned(), in_time.to_string(), refused.join(" ")]);
        }
        writeln!(out, "{table}")
    }
}

const ATTAINMENT: [&str; 7] = [
    "plain queue",
    "best cap (of)",
    "gate",
    "gate - cap",
    "gate, of admitted",
    "cap tok/s",
    "gate tok/s",
];
const FORECASTS: [&str; 5] =
    ["carried E2E, %", "carried TTFT, %", "admission E2E, %", "admission TTFT, %", "bound covers"];
const REFUSALS: [&str; 4] =
    ["k 0: would meet", "k 0: and costs nobody", "k 0.8: would meet", "k 0.8: and costs nobody"];
const FAIRNESS: [&str; 4] = ["refused, none", "gate, none", "refused, fair", "gate, fair"];
const BIAS: [&str; 4] = ["as given", "of admitted", "corrected", "of admitted, corrected"];

fn kept(scores: &[Score]) -> Mean {
    Mean::of(scores.iter().map(|score| score.kept))
}

fn goodput(scores: &[Score]) -> f64 {
    Mean::of(scores.iter().map(|score| score.goodput)).mean
}

/// Shares of first and of last tokens that came by their bounds.
fn covered(scores: &[Score]) -> String {
    let mean = |of: fn(&Score) -> f64| Mean::of(scores.iter().map(of)).mean;
    format!("{:.2} / {:.2}", mean(|score| score.covered_ttft), mean(|score| score.covered_e2e))
}

/// Median and 90 % quantile, in per cent.
fn percent(scores: &[Score], of: impl Fn(&Score) -> Errors) -> String {
    let mean = |part: fn(&Errors) -> f64| {
        Mean::of(scores.iter().map(|score| part(&of(score)) * 100.0)).mean
    };
    format!("{:.1} / {:.1}", mean(|e| e.median), mean(|e| e.most))
}

fn quartiles(scores: &[Score]) -> String {
    let of = |i: usize| Mean::of(scores.iter().map(|score| score.refused[i])).mean;
    (0..4).map(|i| format!("{:.2}", of(i))).collect::<Vec<_>>().join(" ")
}
