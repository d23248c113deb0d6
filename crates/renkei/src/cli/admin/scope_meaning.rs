//! What the words of a restricted credential mean, for `renkei map test --scope`.

use crate::cli::output::Report;
use crate::cli::path_rights::PathRights;
use renkei_core::error::{Code, Error};
use renkei_core::identity::rights::Capability;
use serde::Serialize;
use std::io::{self, Write};

/// The meaning of all words.
#[derive(Serialize)]
pub(super) struct ScopeMeaning {
    allowed: Vec<Allowed>,
    /// Words that mean nothing here: a credential with them is refused.
    refused: Vec<RefusedWord>,
}

#[derive(Serialize)]
struct Allowed {
    word: String,
    #[serde(flatten)]
    allowed: PathRights,
}

#[derive(Serialize)]
struct RefusedWord {
    word: String,
    code: Code,
    cause: String,
}

impl ScopeMeaning {
    /// The meaning of words that blanks separate.
    pub(super) fn of(words: &str) -> Self {
        let mut meaning = ScopeMeaning { allowed: Vec::new(), refused: Vec::new() };
        for word in words.split_whitespace() {
            match Capability::parse(word) {
                Ok(capability) => meaning.allowed.push(allowed(word, &capability)),
                Err(error) => meaning.refused.push(refused(word, &error)),
            }
        }
        meaning
    }

    /// Zero if each word is known, and there is one.
    pub(super) fn exit_status(&self) -> u8 {
        match self.refused.is_empty() && !self.allowed.is_empty() {
            true => 0,
            false => Error::new(Code::UsageInvalid, "", "", "").kind().exit_status(),
        }
    }
}

fn allowed(word: &str, capability: &Capability) -> Allowed {
    Allowed { word: word.into(), allowed: PathRights::new(capability.rights, capability.prefix.as_ref()) }
}

fn refused(word: &str, error: &Error) -> RefusedWord {
    RefusedWord { word: word.into(), code: error.code, cause: error.cause.clone() }
}

impl Report for ScopeMeaning {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for Allowed { allowed, .. } in &self.allowed {
            writeln!(out, "{allowed}")?;
        }
        for RefusedWord { word, cause, .. } in &self.refused {
            writeln!(out, "refused: {word}: {cause}")?;
        }
        match self.allowed.is_empty() && self.refused.is_empty() {
            true => writeln!(out, "refused: it has no words, and allows nothing"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_words_are_explained_and_others_named() {
        let meaning = ScopeMeaning::of("storage.read:/data storage.poll:/data storage.create:/data/../x");
        let mut text = Vec::new();
        meaning.write_text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "may read, list /data and all below it");
        assert!(lines[1].starts_with("refused: storage.poll:/data: unknown word"), "{text}");
        assert!(lines[2].starts_with("refused: storage.create:/data/../x: "), "{text}");
        assert_eq!(lines.len(), 3);
        assert_ne!(meaning.exit_status(), 0);
        assert_eq!(ScopeMeaning::of("storage.read:/data").exit_status(), 0);
        assert_ne!(ScopeMeaning::of(" ").exit_status(), 0);
    }
}
