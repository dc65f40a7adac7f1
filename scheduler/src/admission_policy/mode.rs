//! Admission policies by name, with their parameters: `queue-cap=64`.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

/// How the gate decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AdmissionMode {
    /// By forecast against the deadline.
    Deadline,
    /// Admits whatever fits the queue bounds: the FIFO baseline.
    None,
    /// At most so many requests inside.
    QueueCap {
        /// Waiting or running.
        requests: u32,
    },
    /// So many tokens (of prompts and predicted answers) a second.
    TokenBucket {
        /// Tokens a second.
        rate: u32,
        /// Tokens that may come at once.
        burst: u32,
    },
    /// Until the queue or the KV pool is too full.
    Saturation {
        /// Sequences that wait.
        queue: u32,
        /// KV blocks in use, per mille.
        kv_permille: u32,
    },
    /// By outstanding work and own cost against a share of the SLO.
    Article {
        /// The share, per mille.
        permille: u32,
    },
}

/// Text that names no admission policy; it says what would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAdmission(String);

impl fmt::Display for UnknownAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for UnknownAdmission {}

impl AdmissionMode {
    /// How each policy is written, default first.
    pub const USAGE: [&'static str; 6] = [
        "deadline",
        "none",
        "queue-cap=REQUESTS",
        "token-bucket=RATE:BURST",
        "saturation=QUEUE:KV",
        "article=FACTOR",
    ];

    /// llm-d's thresholds.
    const SATURATION: AdmissionMode = AdmissionMode::Saturation { queue: 5, kv_permille: 800 };

    /// As it is usually written.
    const ARTICLE: AdmissionMode = AdmissionMode::Article { permille: 800 };
}

impl fmt::Display for AdmissionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AdmissionMode::Deadline => f.write_str("deadline"),
            AdmissionMode::None => f.write_str("none"),
            AdmissionMode::QueueCap { requests } => write!(f, "queue-cap={requests}"),
            AdmissionMode::TokenBucket { rate, burst } => write!(f, "token-bucket={rate}:{burst}"),
            AdmissionMode::Saturation { queue, kv_permille } => {
                write!(f, "saturation={queue}:{}", share(kv_permille))
            }
            AdmissionMode::Article { permille } => write!(f, "article={}", share(permille)),
        }
    }
}

impl FromStr for AdmissionMode {
    type Err = UnknownAdmission;

    fn from_str(text: &str) -> Result<AdmissionMode, UnknownAdmission> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let whole = |text: &str| text.parse().ok().filter(|n: &u32| *n > 0);
        let pair = || rest.and_then(|rest| rest.split_once(':'));
        let (read, usage) = match (name, rest) {
            ("deadline", None) => (Some(AdmissionMode::Deadline), ""),
            ("none", None) => (Some(AdmissionMode::None), ""),
            ("deadline" | "none", Some(_)) => (None, "has no parameter"),
            ("queue-cap", _) => (
                rest.and_then(whole).map(|requests| AdmissionMode::QueueCap { requests }),
                "wants the most requests inside, such as queue-cap=64",
            ),
            ("token-bucket", _) => (
                pair()
                    .and_then(|(rate, burst)| Some((whole(rate)?, whole(burst)?)))
                    .map(|(rate, burst)| AdmissionMode::TokenBucket { rate, burst }),
                "wants tokens a second and the largest burst, such as token-bucket=2000:8000",
            ),
            ("saturation", None) => (Some(AdmissionMode::SATURATION), ""),
            ("saturation", _) => (
                pair()
                    .and_then(|(queue, kv)| Some((whole(queue)?, permille(kv)?)))
                    .map(|(queue, kv_permille)| AdmissionMode::Saturation { queue, kv_permille }),
                "wants the waiting sequences and the share of KV blocks that are too many, such \
                 as saturation=5:0.8",
            ),
            ("article", None) => (Some(AdmissionMode::ARTICLE), ""),
            ("article", Some(rest)) => (
                permille(rest).map(|permille| AdmissionMode::Article { permille }),
                "wants the share of an SLO that may be used, above 0 and at most 1, such as \
                 article=0.8",
            ),
            _ => {
                let known = AdmissionMode::USAGE.join(", ");
                let message = format!("there is no admission policy `{name}`; known: {known}");
                return Err(UnknownAdmission(message));
            }
        };
        read.ok_or_else(|| UnknownAdmission(format!("`{name}` {usage}")))
    }
}

/// A share of one with up to three digits, `0.8`: above zero, at most one.
fn permille(text: &str) -> Option<u32> {
    let (whole, digits) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(digits) || digits.len() > 3 {
        return None;
    }
    let whole: u32 = whole.parse().ok()?;
    let part = digits.parse::<u32>().ok()? * 10_u32.pow(3 - digits.len() as u32);
    let permille = whole.checked_mul(1_000)?.checked_add(part)?;
    (1..=1_000).contains(&permille).then_some(permille)
}

fn share(permille: u32) -> String {
    match permille {
        1_000 => "1".to_string(),
        _ => format!("0.{}", format!("{permille:03}").trim_end_matches('0')),
    }
}
