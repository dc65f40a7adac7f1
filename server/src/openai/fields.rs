//! Which top-level fields a request may have: those that a typed part reads, those that are known
//! and harmless, those that are harmless with certain values, and those that would change the
//! answer and cannot be honoured. Nothing is ignored in silence.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Fields that say something about the request but not about the answer.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "parallel_tool_calls",
    "request_id",
];

/// Fields that are accepted with these values only: the values that ask for nothing special.
const NEUTRAL: &[(&str, &str)] = &[
    ("service_tier", r#"["auto", "default"]"#),
    ("modalities", r#"[["text"]]"#),
    ("verbosity", r#"["medium"]"#),
    ("reasoning_effort", r#"["none"]"#),
    ("best_of", "[1]"),
    ("suffix", r#"[""]"#),
    ("use_beam_search", "[false]"),
    ("length_penalty", "[1, 1.0]"),
    ("early_stopping", "[false]"),
    ("spaces_between_special_tokens", "[true]"),
    ("return_tokens_as_token_ids", "[false]"),
    ("return_token_ids", "[false]"),
    ("priority", "[0]"),
    ("bad_words", "[[]]"),
    ("logits_processors", "[[]]"),
    ("functions", "[[]]"),
    ("function_call", r#"["none", "auto"]"#),
];

/// Fields that are known and cannot be honoured.
const UNSUPPORTED: &[&str] = &[
    "audio",
    "web_search_options",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "prompt_logprobs",
    "allowed_token_ids",
    "truncate_prompt_tokens",
    "chat_template",
    "documents",
    "mm_processor_kwargs",
    "kv_transfer_params",
    "vllm_xargs",
    "prompt_embeds",
];

/// Checks the field names of a body, `known` being those that the typed parts read.
///
/// # Errors
/// A body that is not a JSON object, or the first field that cannot be accepted, by name.
pub fn check(body: &[u8], known: &[&[&str]]) -> Result<(), ApiError> {
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_slice(body).map_err(|error| not_an_object(&error))?;
    for (name, value) in &fields {
        let name = name.as_str();
        let is_known = known.iter().any(|fields| fields.contains(&name));
        if !is_known && !HARMLESS.contains(&name) && value.get() != "null" {
            check_special(name, value)?;
        }
    }
    Ok(())
}

fn check_special(name: &str, value: &RawValue) -> Result<(), ApiError> {
    if let Some((_, neutral)) = NEUTRAL.iter().find(|(field, _)| *field == name) {
        let allowed: Vec<Value> =
            serde_json::from_str(neutral).expect("the table holds JSON lists");
        let value: Option<Value> = serde_json::from_str(value.get()).ok();
        if value.is_some_and(|value| allowed.contains(&value)) {
            return Ok(());
        }
        let listed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        let message =
            format!("`{name}` is not supported beyond the value {}.", listed.join(" or "));
        return Err(ApiError::unsupported(name, message));
    }
    if UNSUPPORTED.contains(&name) {
        let message = format!("`{name}` is not supported by this server.");
        return Err(ApiError::unsupported(name, message));
    }
    let name: String = name.chars().take(100).collect();
    let message = format!("Unrecognized request argument: `{name}`.");
    Err(ApiError::invalid(name, message))
}

/// What is said of a body that is not a JSON object.
fn not_an_object(error: &serde_json::Error) -> ApiError {
    let message = if error.is_data() {
        "The body must be a JSON object.".to_owned()
    } else {
        format!("The body is not valid JSON: {error}.")
    };
    ApiError::Invalid { message, param: None, code: Some("invalid_json") }
}

/// Reads one typed part of a body; fields of other parts are skipped.
///
/// # Errors
/// The first value that does not fit, with the path to it.
pub fn read<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        // serde_json's position says little to who built the body by a library: the path is better.
        let what = message.split(" at line ").next().unwrap_or(&message);
        let what: String = in_clients_words(what).chars().take(300).collect();
        if path == "." {
            return ApiError::Invalid { message: format!("{what}."), param: None, code: None };
        }
        ApiError::invalid(path.clone(), format!("Invalid value for `{path}`: {what}."))
    })
}

/// serde says what it expects in Rust's words; these are JSON's.
const WORDS: &[(&str, &str)] = &[
    ("a nonzero u32", "a whole number of at least 1"),
    ("u32", "a whole number of at least 0"),
    ("u64", "a whole number of at least 0"),
    ("i64", "a whole number"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("a sequence", "a list"),
    ("a map", "an object"),
];

/// `what`, with what was expected there in JSON's words.
fn in_clients_words(what: &str) -> String {
    let Some((got, expected)) = what.rsplit_once("expected ") else { return what.to_owned() };
    let known = WORDS.iter().find(|(rust, _)| *rust == expected).map(|(_, json)| *json);
    let expected = match known {
        Some(json) => json,
        None if expected.starts_with("struct ") => "an object",
        None => expected,
    };
    let got = got.replace("floating point", "number");
    let got = got.replace("type: map", "type: object").replace("type: sequence", "type: list");
    format!("{got}expected {expected}")
}

/// The names of the fields of a struct, as its derived `Deserialize` knows them.
#[must_use]
pub fn names<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // The probe never yields a value; only the names that it is shown matter.
    let _no_value = T::deserialize(Probe(&mut names));
    names
}

/// A deserializer that notes the fields it is asked for and then gives up.
struct Probe<'a>(&'a mut &'static [&'static str]);

#[derive(Debug)]
struct Probed;

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("probed")
    }
}

impl std::error::Error for Probed {}

impl de::Error for Probed {
    fn custom<T: fmt::Display>(_: T) -> Probed {
        Probed
    }
}

impl<'de> de::Deserializer<'de> for Probe<'_> {
    type Error = Probed;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Probed> {
        Err(Probed)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Probed> {
        *self.0 = fields;
        Err(Probed)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Part {
        known: u32,
        list: Option<Vec<u32>>,
    }

    fn param(result: Result<impl fmt::Debug, ApiError>) -> Option<String> {
        result.unwrap_err().body().error.param
    }

    fn try_check(body: &str) -> Result<(), ApiError> {
        check(body.as_bytes(), &[names::<Part>()])
    }

    #[test]
    fn names_come_from_the_type() {
        assert_eq!(names::<Part>(), ["known", "list"]);
    }

    #[test]
    fn every_table_entry_is_well_formed_and_listed_once() {
        let mut all: Vec<&str> = HARMLESS.to_vec();
        all.extend(UNSUPPORTED);
        for (name, values) in NEUTRAL {
            let values: Vec<Value> = serde_json::from_str(values).expect("a list");
            for value in values {
                try_check(&format!(r#"{{"{name}": {value}}}"#)).expect("a neutral value");
            }
            all.push(name);
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn nothing_is_ignored_in_silence() {
        try_check(r#"{"known": 1, "user": "u", "service_tier": "auto", "audio": null}"#)
            .expect("harmless");
        let refused = ["service_tier", "audio", "best_of", "guided_json", "made_up"];
        for name in refused {
            let body = format!(r#"{{"{name}": {{"x": 1}}}}"#);
            assert_eq!(param(try_check(&body)).as_deref(), Some(name));
        }
    }

    #[test]
    fn whatever_is_not_an_object_is_refused() {
        let deep = "[".repeat(20_000) + &"]".repeat(20_000);
        for body in ["", "{", "null", "[]", "\"x\"", "not json", deep.as_str()] {
            assert!(try_check(body).is_err(), "{body:.20}");
        }
        assert!(check(b"\xff\xfe\x00", &[]).is_err());
        let nested = format!(r#"{{"metadata": {deep}}}"#);
        try_check(&nested).expect("skipped without recursion");
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path() {
        let read = |body: &'static str| param(read::<Part>(body.as_bytes()));
        assert_eq!(read(r#"{"known": -1}"#).as_deref(), Some("known"));
        assert_eq!(read(r#"{"known": 1, "list": [1, "x"]}"#).as_deref(), Some("list[1]"));
    }

    #[test]
    fn what_was_expected_is_said_in_words_of_json() {
        let said = |body: &'static str| read::<Part>(body.as_bytes()).unwrap_err().body().error;
        for (body, expected) in [
            (r#"{"known": -1}"#, "integer `-1`, expected a whole number of at least 0."),
            (r#"{"known": 1.5}"#, "number `1.5`, expected a whole number of at least 0."),
            (r#"{"known": 1, "list": {}}"#, "type: object, expected a list."),
        ] {
            let message = said(body).message;
            assert!(message.ends_with(expected), "{message}");
        }
    }
}
