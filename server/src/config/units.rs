//! Values with units, as people write them: `512MiB`, `1500ms`, `auto`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use scheduler::{AdmissionMode, UnknownAdmission};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes, written with a binary or decimal suffix (`512MiB`, `4GB`) or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Suffixes and their factors; the longest come first so that `MiB` is not read as `B`.
const SUFFIXES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteSize, String> {
        let text = text.trim();
        let (number, factor) = SUFFIXES
            .iter()
            .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
            .unwrap_or((text, 1));
        let number: u64 = number
            .trim()
            .parse()
            .map_err(|_| format!("{text:?} is not a size; write it like 512MiB or 4GB"))?;
        let bytes = number.checked_mul(factor).ok_or(format!("{text:?} is too large"))?;
        Ok(ByteSize(bytes))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = SUFFIXES
            .iter()
            .take(3)
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match exact {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A latency target: a duration, `auto` (derived from what the machine does unloaded), or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nothing is promised.
    None,
    /// Derived at start.
    Auto,
    /// Promised.
    Within(Duration),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        match text.trim() {
            "none" => Ok(Target::None),
            "auto" => Ok(Target::Auto),
            other => duration(other).map(Target::Within),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::None => f.write_str("none"),
            Target::Auto => f.write_str("auto"),
            Target::Within(duration) => humantime::format_duration(*duration).fmt(f),
        }
    }
}

/// A duration such as `1500ms` or `2s`.
///
/// # Errors
/// One line that shows how durations are written.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is not a duration; write it like 1500ms, 2s or 1m"))
}

/// A [`duration`], or a number of seconds.
///
/// # Errors
/// As there.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => duration(text),
    }
}

/// How much of a deadline a forecast may use: measured online, or fixed in per mille.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// Calibrated from observed forecast errors.
    Auto,
    /// Fixed.
    Permille(u32),
}

impl FromStr for Safety {
    type Err = String;

    fn from_str(text: &str) -> Result<Safety, String> {
        if text.trim() == "auto" {
            return Ok(Safety::Auto);
        }
        let problem = || format!("{text:?} is neither `auto` nor a factor between 0.05 and 1");
        let factor: f64 = text.trim().parse().map_err(|_| problem())?;
        if !(0.05..=1.0).contains(&factor) {
            return Err(problem());
        }
        Ok(Safety::Permille((factor * 1_000.0).round() as u32))
    }
}

impl fmt::Display for Safety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Safety::Auto => f.write_str("auto"),
            Safety::Permille(permille) => write!(f, "{}", f64::from(*permille) / 1_000.0),
        }
    }
}

/// How the gate decides: an admission policy by its name, with parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission(pub AdmissionMode);

impl Default for Admission {
    fn default() -> Admission {
        Admission(AdmissionMode::Deadline)
    }
}

impl FromStr for Admission {
    type Err = UnknownAdmission;

    fn from_str(text: &str) -> Result<Admission, UnknownAdmission> {
        text.trim().parse().map(Admission)
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a TOML file may hold where a unit is expected: text, or a bare number.
struct TextOrNumber;

impl de::Visitor<'_> for TextOrNumber {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a number")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    deserializer.deserialize_any(TextOrNumber)?.parse().map_err(de::Error::custom)
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
        from_text(deserializer)
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Target, D::Error> {
        from_text(deserializer)
    }
}

impl<'de> Deserialize<'de> for Safety {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Safety, D::Error> {
        from_text(deserializer)
    }
}

impl<'de> Deserialize<'de> for Admission {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Admission, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for Admission {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Safety {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back_the_same() {
        for size in [0, 1, 1023, 1 << 10, 3 << 20, 5 << 30, (1 << 30) + 1] {
            let size = ByteSize(size);
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for target in ["none", "auto", "1500ms", "1m 2s"] {
            let target: Target = target.parse().expect("a target");
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        for safety in [Safety::Auto, Safety::Permille(800), Safety::Permille(1_000)] {
            assert_eq!(safety.to_string().parse(), Ok(safety));
        }
        for admission in ["deadline", "queue-cap=64", "saturation=5:0.8"] {
            let read: Admission = admission.parse().expect("an admission policy");
            assert_eq!(read.to_string(), admission);
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        assert!("12 parsecs".parse::<ByteSize>().unwrap_err().contains("512MiB"));
        assert!("99999999999GiB".parse::<ByteSize>().is_err());
        assert!("soon".parse::<Target>().unwrap_err().contains("1500ms"));
        assert!("0".parse::<Safety>().is_err());
        assert!("1.5".parse::<Safety>().is_err());
        assert!("NaN".parse::<Safety>().is_err());
    }
}
