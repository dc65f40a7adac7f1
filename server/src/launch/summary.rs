//! What is said when the server is ready: one block with everything that an operator asks first.

use std::fmt::Write;
use std::time::Duration;

use models::RunnerLimits;
use scheduler::{AdmissionMode, Class, ClassTable, CostModel, Micros, StepLoad};

use super::kv::mib;
use crate::config::Admission;

/// Everything that is known once the engine runs.
#[derive(Clone, Debug)]
pub struct Summary {
    pub(super) model: String,
    pub(super) runner: &'static str,
    pub(super) threads: usize,
    pub(super) limits: RunnerLimits,
    pub(super) kv_bytes: u64,
    pub(super) classes: ClassTable,
    pub(super) cost: CostModel,
    pub(super) profile: Option<String>,
    pub(super) admission: Admission,
    pub(super) open: bool,
    pub(super) took: Duration,
}

impl Summary {
    /// The block.
    #[must_use]
    pub fn text(&self, url: &str) -> String {
        let mut text = format!("\nSluice {} is ready at {url}\n", env!("CARGO_PKG_VERSION"));
        for (name, value) in self.lines() {
            writeln!(text, "  {name:<12}{value}").expect("a String takes any text");
        }
        text
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let limits = &self.limits;
        let threads = match self.runner {
            "cpu" => format!(", {} threads", self.threads),
            _ => String::new(),
        };
        let tokens = u64::from(limits.num_blocks) * u64::from(limits.block_size);
        let size =
            if self.kv_bytes > 0 { format!(", {}", mib(self.kv_bytes)) } else { String::new() };
        let mut lines = vec![
            ("model", format!("{}, context {} tokens", self.model, limits.max_model_len)),
            ("runner", format!("{}{threads}", self.runner)),
            ("kv cache", format!("{} blocks, {tokens} tokens{size}", limits.num_blocks)),
            ("cost", self.costs()),
        ];
        if let Some(profile) = &self.profile {
            lines.push(("profile", profile.clone()));
        }
        match self.admission.0 {
            AdmissionMode::Deadline => {
                for class in Class::ALL {
                    lines.push((class.label(), self.targets(class)));
                }
            }
            AdmissionMode::None => lines.push(("admission", "none: everybody waits".to_owned())),
            other => lines.push(("admission", other.to_string())),
        }
        let keys = if self.open { "none needed" } else { "required" };
        lines.push(("api key", keys.to_owned()));
        lines.push(("loaded in", format!("{:.1} s", self.took.as_secs_f64())));
        lines
    }

    fn costs(&self) -> String {
        let decode = |seqs: u32| {
            let context_tokens = u64::from(seqs) * 128;
            self.cost.step(&StepLoad { decode_seqs: seqs, context_tokens, ..StepLoad::default() })
        };
        let prefill_tokens = self.limits.max_batched_tokens.min(512);
        let prefill = self.cost.step(&StepLoad {
            prefill_tokens,
            prefill_span: u64::from(prefill_tokens).pow(2),
            ..StepLoad::default()
        });
        let batch = self.limits.max_chunks;
        let (one, many, prefill) = (millis(decode(1)), millis(decode(batch)), millis(prefill));
        format!("decode 1: {one}, decode {batch}: {many}, prefill {prefill_tokens}: {prefill}")
    }

    fn targets(&self, class: Class) -> String {
        let slo = &self.classes.get(class).slo;
        let targets = [("first token", slo.ttft), ("gap", slo.tpot), ("whole answer", slo.e2e)];
        let said: Vec<String> = targets
            .into_iter()
            .filter_map(|(name, target)| Some(format!("{name} within {}", millis(target?))))
            .collect();
        if said.is_empty() { "promises nothing".to_owned() } else { said.join(", ") }
    }
}

/// For people: three digits at most.
fn millis(time: Micros) -> String {
    let millis = time.0 as f64 / 1e3;
    match millis {
        millis if millis < 10.0 => format!("{millis:.1} ms"),
        millis if millis < 10_000.0 => format!("{millis:.0} ms"),
        millis => format!("{:.0} s", millis / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        assert_eq!(millis(Micros(4_120)), "4.1 ms");
        assert_eq!(millis(Micros(1_500_000)), "1500 ms");
        assert_eq!(millis(Micros(60_000_000)), "60 s");
    }
}
