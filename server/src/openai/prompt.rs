//! The four forms of a completion's prompt: text, token ids, or a list of either.

use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Prompts of one request, at least one.
#[derive(Debug, PartialEq, Eq)]
pub enum PromptInput {
    /// Texts to encode.
    Texts(Vec<String>),
    /// Token ids, each prompt not empty.
    Tokens(Vec<Vec<u32>>),
}

/// The first element of a list decides what the others must be.
enum Element {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl PromptInput {
    /// How many prompts.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            PromptInput::Texts(texts) => texts.len(),
            PromptInput::Tokens(prompts) => prompts.len(),
        }
    }

    /// Never: an empty list is refused when it is read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'de> Deserialize<'de> for PromptInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PromptInput, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = PromptInput;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of token ids, or a list of either")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PromptInput, E> {
        Ok(PromptInput::Texts(vec![text.to_owned()]))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<PromptInput, E> {
        Ok(PromptInput::Texts(vec![text]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptInput, A::Error> {
        let Some(first) = list.next_element::<Element>()? else {
            return Err(de::Error::custom("the list is empty"));
        };
        match first {
            Element::Text(text) => rest(list, text).map(PromptInput::Texts),
            Element::Token(token) => rest(list, token).map(|one| PromptInput::Tokens(vec![one])),
            Element::Tokens(tokens) => {
                let prompts = rest(list, tokens)?;
                if prompts.iter().any(Vec::is_empty) {
                    return Err(de::Error::custom("a prompt without tokens"));
                }
                Ok(PromptInput::Tokens(prompts))
            }
        }
    }
}

fn rest<'de, A, T>(mut list: A, first: T) -> Result<Vec<T>, A::Error>
where
    A: SeqAccess<'de>,
    T: Deserialize<'de>,
{
    let mut all = vec![first];
    while let Some(element) = list.next_element()? {
        all.push(element);
    }
    Ok(all)
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id or a list of token ids")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_owned()))
    }
    fn visit_string<E: de::Error>(self, text: String) -> Result<Element, E> {
        Ok(Element::Text(text))
    }
    fn visit_u64<E: de::Error>(self, token: u64) -> Result<Element, E> {
        let problem = || E::invalid_value(de::Unexpected::Unsigned(token), &"a token id");
        u32::try_from(token).map(Element::Token).map_err(|_| problem())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        match list.next_element()? {
            None => Ok(Element::Tokens(Vec::new())),
            Some(first) => rest(list, first).map(Element::Tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<PromptInput> {
        serde_json::from_str(json).ok()
    }

    #[test]
    fn each_form_is_read() {
        let texts = |texts: &[&str]| {
            Some(PromptInput::Texts(texts.iter().map(|&text| text.to_owned()).collect()))
        };
        assert_eq!(read(r#""a""#), texts(&["a"]));
        assert_eq!(read(r#"["a", "b"]"#), texts(&["a", "b"]));
        assert_eq!(read("[1, 2]"), Some(PromptInput::Tokens(vec![vec![1, 2]])));
        assert_eq!(read("[[1], [2, 3]]"), Some(PromptInput::Tokens(vec![vec![1], vec![2, 3]])));
    }

    #[test]
    fn mixtures_and_empty_lists_are_refused() {
        for bad in ["5", "null", "{}", "[]", "[[]]", "[[1], []]", r#"["a", 1]"#, "[-1]", "[1.5]"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
