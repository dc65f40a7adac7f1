//! Profile files: what a step of a model costs on a device, where that was measured, and how large
//! the device is. TOML, written by `sluice calibrate`, read at start.

use std::fs;
use std::path::{Path, PathBuf};

use scheduler::{CostModel, Micros, StepLoad};
use serde::{Deserialize, Serialize};

/// The version of the format that is read and written.
const VERSION: u32 = 1;

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the format.
    version: u32,
    /// For people.
    pub name: String,
    /// What a step costs.
    pub cost: Costs,
    /// Sizes of the device, for the simulated runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Where the figures come from.
    #[serde(default)]
    pub provenance: Provenance,
}

/// The coefficients of a [`CostModel`], under the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Any step, nanoseconds.
    pub fixed_ns: u64,
    /// A decoding sequence, nanoseconds.
    pub per_seq_ns: u64,
    /// A context token that a decoding sequence reads, picoseconds.
    pub per_context_token_ps: u64,
    /// A prefill token, nanoseconds.
    pub per_prefill_token_ns: u64,
    /// A unit of prefill span (`end^2 - start^2` of a chunk), picoseconds.
    pub per_prefill_span_ps: u64,
}

/// Sizes of a device: what the simulated runner takes unless the configuration says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// KV blocks.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// Most sequences in a step.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
}

/// Where the figures come from; all that is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Provenance {
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Threads that computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// When, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_at: Option<String>,
    /// By which version of Sluice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sluice: Option<String>,
    /// The command that measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Points of the grid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<usize>,
    /// Steps that were run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Mean error of the fit over the points, per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_error_percent: Option<f64>,
    /// Largest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_error_percent: Option<f64>,
    /// Source and licence of figures that were not measured by Sluice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the profile {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no profile.
    #[error("{} is not a profile: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        message: String,
    },
}

impl From<CostModel> for Costs {
    fn from(cost: CostModel) -> Costs {
        Costs {
            fixed_ns: cost.fixed_ns,
            per_seq_ns: cost.per_seq_ns,
            per_context_token_ps: cost.per_context_token_ps,
            per_prefill_token_ns: cost.per_prefill_token_ns,
            per_prefill_span_ps: cost.per_prefill_span_ps,
        }
    }
}

impl From<Costs> for CostModel {
    fn from(costs: Costs) -> CostModel {
        CostModel {
            fixed_ns: costs.fixed_ns,
            per_seq_ns: costs.per_seq_ns,
            per_context_token_ps: costs.per_context_token_ps,
            per_prefill_token_ns: costs.per_prefill_token_ns,
            per_prefill_span_ps: costs.per_prefill_span_ps,
        }
    }
}

impl Profile {
    /// A profile of what was measured.
    #[must_use]
    pub fn new(name: String, cost: CostModel, limits: Limits, provenance: Provenance) -> Profile {
        Profile { version: VERSION, name, cost: cost.into(), limits: Some(limits), provenance }
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// One message that names the file, the place and what is wrong.
    pub fn read(path: &Path) -> Result<Profile, ProfileError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ProfileError::Read { path: path.to_owned(), source })?;
        Profile::parse(&text)
            .map_err(|message| ProfileError::Malformed { path: path.to_owned(), message })
    }

    /// The file's text.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("text, numbers and tables are TOML")
    }

    fn parse(text: &str) -> Result<Profile, String> {
        let said = |error: toml::de::Error| error.to_string().trim().replace('\n', " ");
        // The version first: the rest of another version may look different.
        let table: toml::Table = toml::from_str(text).map_err(said)?;
        match table.get("version").map(toml::Value::as_integer) {
            Some(Some(1)) => {}
            Some(Some(other)) => {
                return Err(format!("it has version {other}, and this is a Sluice for version 1"));
            }
            _ => return Err("`version = 1` is missing".to_owned()),
        }
        let profile: Profile = toml::from_str(text).map_err(said)?;
        profile.check()?;
        Ok(profile)
    }

    /// No machine takes less than a microsecond or more than ten minutes for a token.
    fn check(&self) -> Result<(), String> {
        const LEAST: Micros = Micros(1);
        const MOST: Micros = Micros(600_000_000);
        let cost = CostModel::from(self.cost);
        let decode = StepLoad { decode_seqs: 1, context_tokens: 512, ..StepLoad::default() };
        let prefill =
            StepLoad { prefill_tokens: 512, prefill_span: 512 * 512, ..StepLoad::default() };
        for (what, load) in [("decoding one sequence", decode), ("a prompt of 512 tokens", prefill)]
        {
            let takes = cost.step(&load);
            if !(LEAST..=MOST).contains(&takes) {
                return Err(format!("by its costs {what} would take {} us", takes.0));
            }
        }
        let Some(limits) = &self.limits else { return Ok(()) };
        let Limits { num_blocks, block_size, max_model_len, max_num_seqs, .. } = *limits;
        if block_size == 0 || max_num_seqs == 0 {
            return Err("no limit may be zero".to_owned());
        }
        if limits.max_num_batched_tokens < max_num_seqs {
            return Err("max_num_batched_tokens is less than max_num_seqs".to_owned());
        }
        if u64::from(num_blocks) * u64::from(block_size) < u64::from(max_model_len.max(2)) {
            return Err(format!(
                "{num_blocks} blocks of {block_size} tokens do not hold a sequence of \
                 {max_model_len}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "version = 1\nname = \"x\"\n[cost]\nfixed_ns = 1000000\nper_seq_ns = 9700\n\
        per_context_token_ps = 42670\nper_prefill_token_ns = 17000\nper_prefill_span_ps = 660\n";

    proptest! {
        #[test]
        fn what_is_written_is_read(
            costs in prop::array::uniform5(1_000u64..10_000_000),
            threads in prop::option::of(1..64usize),
            error in prop::option::of(0.0f64..50.0),
            name in "\\PC{0,40}",
        ) {
            let [fixed_ns, per_seq_ns, per_context_token_ps, per_prefill_token_ns, span] = costs;
            let cost = CostModel {
                fixed_ns,
                per_seq_ns,
                per_context_token_ps,
                per_prefill_token_ns,
                per_prefill_span_ps: span,
            };
            let limits = Limits {
                num_blocks: 100,
                block_size: 16,
                max_model_len: 1_600,
                max_num_seqs: 8,
                max_num_batched_tokens: 64,
            };
            let provenance = Provenance {
                threads,
                mean_error_percent: error,
                command: Some(name.clone()),
                ..Provenance::default()
            };
            let profile = Profile::new(name, cost, limits, provenance);
            prop_assert_eq!(Profile::parse(&profile.to_toml()), Ok(profile));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(Profile::parse(GOOD).is_ok());
        for (from, to, named) in [
            ("version = 1", "version = 2", "version 2"),
            ("version = 1\n", "", "`version = 1` is missing"),
            ("per_seq_ns = 9700", "per_seq_ns = -9700", "-9700"),
            ("per_seq_ns = 9700", "per_seq_ns = 9.7", "9.7"),
            ("per_seq_ns = 9700", "", "per_seq_ns"),
            ("per_seq_ns", "per_sequence_ns", "per_sequence_ns"),
            ("fixed_ns = 1000000", "fixed_ns = 9000000000000000", "would take"),
            ("name = \"x\"", "name = \"x", "name"),
        ] {
            let error = Profile::parse(&GOOD.replace(from, to)).expect_err(to);
            assert!(error.contains(named), "{to}: {error}");
        }
        let zero: String = GOOD
            .lines()
            .map(|line| match line.split_once(" = ") {
                Some((key, _)) if key.contains("_") => format!("{key} = 0\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        assert!(Profile::parse(&zero).expect_err("free").contains("would take 0 us"));
        let limits = "[limits]\nnum_blocks = 2\nblock_size = 16\nmax_model_len = 33\n\
                      max_num_seqs = 1\nmax_num_batched_tokens = 64\n";
        let error = Profile::parse(&format!("{GOOD}{limits}")).expect_err("too small a pool");
        assert!(error.contains("do not hold"), "{error}");
    }

    #[test]
    fn every_shipped_profile_is_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiles");
        let mut read = 0;
        for entry in fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|ending| ending == "toml") {
                let profile = Profile::read(&path).expect("a good profile");
                assert!(profile.limits.is_some() && profile.provenance.device.is_some());
                read += 1;
            }
        }
        assert!(read >= 3);
    }
}
