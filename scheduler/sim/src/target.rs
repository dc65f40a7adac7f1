//! What requests are promised.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use scheduler::{Deadline, Micros};

/// A service level objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The last token within this multiple of the unloaded time: `4x`.
    Multiple(f64),
    /// The last token within so many seconds: `1.5s`.
    Seconds(f64),
    /// The first token within seconds, and a mean gap in milliseconds after it: `1s+30ms`.
    Tokens(f64, f64),
    /// The first token within so many seconds: `first 60s`.
    First(f64),
}

impl Target {
    /// When a request that came at `arrival` and takes `unloaded` alone is due.
    #[must_use]
    pub fn deadline(self, arrival: Micros, unloaded: Micros) -> Deadline {
        let after = |seconds: f64| Some(arrival.plus(Micros((seconds * 1e6) as u64)));
        let none = Deadline::default();
        match self {
            Target::Multiple(multiple) => {
                Deadline { last_token: after(unloaded.0 as f64 / 1e6 * multiple), ..none }
            }
            Target::Seconds(seconds) => Deadline { last_token: after(seconds), ..none },
            Target::Tokens(seconds, gap) => Deadline {
                first_token: after(seconds),
                tpot: Some(Micros((gap * 1e3) as u64)),
                ..none
            },
            Target::First(seconds) => Deadline { first_token: after(seconds), ..none },
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Multiple(multiple) => write!(f, "{multiple}x"),
            Target::Seconds(seconds) => write!(f, "{seconds}s"),
            Target::Tokens(seconds, gap) => write!(f, "{seconds}s+{gap}ms"),
            Target::First(seconds) => write!(f, "first {seconds}s"),
        }
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Target> {
        let number = |text: &str| -> Result<f64> {
            let value: f64 = text.parse().with_context(|| format!("`{text}` is not a number"))?;
            ensure!(value.is_finite() && value > 0.0, "`{text}` is not above zero");
            Ok(value)
        };
        if let Some(multiple) = text.strip_suffix('x') {
            return Ok(Target::Multiple(number(multiple)?));
        }
        if let Some((first, gap)) = text.strip_suffix("ms").and_then(|text| text.split_once("s+")) {
            return Ok(Target::Tokens(number(first)?, number(gap)?));
        }
        let expected = "expected `4x`, `1.5s`, `1s+30ms` or `first 60s`";
        let seconds = text.strip_suffix('s').context(expected)?;
        match seconds.strip_prefix("first ") {
            Some(first) => Ok(Target::First(number(first)?)),
            None => Ok(Target::Seconds(number(seconds)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_as_they_are_read() {
        for text in ["4x", "1.5s", "1s+30ms", "first 60s"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for bad in ["", "4", "x", "-1s", "0x", "1s+ms", "inf s", "1ms"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
