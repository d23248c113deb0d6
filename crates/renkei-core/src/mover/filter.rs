//! The filter on the names of a transfer: `--exclude` and `--include`, by rsync's rules.
//!
//! Rules are tried in order and the first that matches decides; a name that none matches is included. An excluded
//! directory is not entered. A pattern that begins with `/` is anchored at the root of the transfer, others match the
//! end of a path. One that ends with `/` matches only directories. One that contains `/` or `**` is compared with the
//! whole path, others with the name. `*` matches any number of bytes but `/`, `**` any number of bytes, `?` one byte
//! but `/`, `[a-z]` and `[!a-z]` one of a set; `\` escapes the next byte, in patterns with one of these; `dir/***`
//! matches `dir` and everything in it. Source: rsync(1), "FILTER RULES".
//!
//! The cost of a filter from a peer is bounded by its length times the path's: patterns are matched by simulating the
//! set of states (NFA), without backtracking.

use crate::error::{Code, Error};
use serde::{Deserialize, Serialize};

/// Most rules of a filter.
pub const MAX_RULES: usize = 4096;
/// Most bytes of all patterns.
pub const MAX_BYTES: usize = 64 << 10;

/// The rules of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// The rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
    /// For each source, by its index, whether its contents are meant: its own name is then not part of paths.
    pub contents: Vec<bool>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Whether matching names are included.
    pub includes: bool,
    /// The pattern.
    #[serde(with = "crate::path::path_bytes")]
    pub pattern: Vec<u8>,
}

impl Filter {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Refuses a filter that is too long or has an empty pattern.
    ///
    /// # Errors
    /// `UsageInvalid`.
    pub fn check(&self) -> Result<(), Error> {
        let bytes: usize = self.rules.iter().map(|rule| rule.pattern.len()).sum();
        if self.rules.len() > MAX_RULES || bytes > MAX_BYTES {
            let cause = format!("at most {MAX_RULES} rules with {MAX_BYTES} bytes in all");
            return Err(Error::new(Code::UsageInvalid, "filter", "--exclude", cause));
        }
        match self.rules.iter().find(|rule| Pattern::parse(&rule.pattern).tokens.is_empty()) {
            Some(_) => Err(Error::new(Code::UsageInvalid, "filter", "--exclude", "a pattern is empty")),
            None => Ok(()),
        }
    }

    /// Whether the contents of source number `index` are meant, without its name.
    pub fn means_contents(&self, index: usize) -> bool {
        self.contents.get(index).copied().unwrap_or(false)
    }

    /// Compiles the rules.
    pub fn matcher(&self) -> Matcher {
        let rule = |rule: &Rule| (rule.includes, Pattern::parse(&rule.pattern));
        Matcher { rules: self.rules.iter().map(rule).collect() }
    }
}

/// A compiled filter.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    rules: Vec<(bool, Pattern)>,
}

impl Matcher {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a path below the root of the transfer is included, given that its directory is.
    pub fn includes(&self, path: &[u8], is_dir: bool) -> bool {
        let fitting = self.rules.iter().find(|(_, pattern)| pattern.fits(path, is_dir));
        fitting.is_none_or(|(includes, _)| *includes)
    }
}

/// Whether a name matches a shell pattern: `*`, `?`, `[a-z]`, and `\\` as escape.
pub fn fits_name(pattern: &[u8], name: &[u8]) -> bool {
    Pattern::parse(pattern).fits_all(name)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `[...]`: ranges, and whether the set is negated.
    Set(Vec<(u8, u8)>, bool),
    /// `*`
    Some,
    /// `**`
    Any,
}

#[derive(Clone, Debug)]
struct Pattern {
    tokens: Vec<Token>,
    anchored: bool,
    dirs_alone: bool,
    whole_path: bool,
    /// `dir/***`: `tokens` match a directory, and everything in it matches too.
    with_all_in_it: bool,
}

impl Pattern {
    fn parse(text: &[u8]) -> Self {
        let (text, with_all_in_it) = match text.strip_suffix(b"/***") {
            Some(dir) => (dir, true),
            None => (text, false),
        };
        let (text, dirs_alone) = match text.strip_suffix(b"/") {
            Some(rest) => (rest, true),
            None => (text, with_all_in_it),
        };
        let (rest, anchored) = match text.strip_prefix(b"/") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        // As in rsync, a backslash is an ordinary byte in a pattern without wildcards.
        let tokens = match rest.iter().any(|byte| b"*?[".contains(byte)) {
            true => tokens(rest),
            false => rest.iter().map(|byte| Token::Byte(*byte)).collect(),
        };
        let whole_path = anchored || tokens.contains(&Token::Any) || tokens.contains(&Token::Byte(b'/'));
        Pattern { tokens, anchored, dirs_alone, whole_path, with_all_in_it }
    }

    fn fits(&self, path: &[u8], is_dir: bool) -> bool {
        let fits_itself = (is_dir || !self.dirs_alone) && self.fits_path(path);
        let slashes = || path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        fits_itself || self.with_all_in_it && slashes().any(|(at, _)| self.fits_path(&path[..at]))
    }

    fn fits_path(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        match (self.anchored, self.whole_path) {
            (true, _) => self.fits_all(path),
            (false, false) => self.fits_all(name),
            (false, true) => {
                let starts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
                std::iter::once(0).chain(starts).any(|start| self.fits_all(&path[start..]))
            }
        }
    }

    /// Whether the tokens match all of `text`.
    fn fits_all(&self, text: &[u8]) -> bool {
        let end = self.tokens.len();
        let mut at = vec![false; end + 1];
        at[0] = true;
        self.skip_stars(&mut at);
        for &byte in text {
            let mut next = vec![false; end + 1];
            for (place, token) in self.tokens.iter().enumerate().filter(|(place, _)| at[*place]) {
                match token {
                    Token::Some if byte != b'/' => next[place] = true,
                    Token::Any => next[place] = true,
                    token if token.takes(byte) => next[place + 1] = true,
                    _ => {}
                }
            }
            at = next;
            self.skip_stars(&mut at);
        }
        at[end]
    }

    /// Stars may match the empty string.
    fn skip_stars(&self, at: &mut [bool]) {
        for (place, token) in self.tokens.iter().enumerate() {
            if at[place] && matches!(token, Token::Some | Token::Any) {
                at[place + 1] = true;
            }
        }
    }
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Token::Byte(own) => *own == byte,
            Token::One => byte != b'/',
            Token::Set(ranges, negated) => {
                byte != b'/' && ranges.iter().any(|(from, to)| (*from..=*to).contains(&byte)) != *negated
            }
            Token::Some | Token::Any => false,
        }
    }
}

fn tokens(text: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        tokens.push(match first {
            b'*' if rest.first() == Some(&b'*') => {
                while let Some(more) = rest.strip_prefix(b"*") {
                    rest = more;
                }
                Token::Any
            }
            b'*' => Token::Some,
            b'?' => Token::One,
            b'[' => match set(rest) {
                Some((set, after)) => {
                    rest = after;
                    set
                }
                None => Token::Byte(b'['),
            },
            b'\\' => match rest.split_first() {
                Some((&next, after)) => {
                    rest = after;
                    Token::Byte(next)
                }
                None => Token::Byte(b'\\'),
            },
            byte => Token::Byte(byte),
        });
    }
    tokens
}

/// Parses the set after a `[`; returns it and the rest, or `None` if it is not closed.
fn set(text: &[u8]) -> Option<(Token, &[u8])> {
    let (mut rest, negated) = match text.split_first() {
        Some((b'!' | b'^', rest)) => (rest, true),
        _ => (text, false),
    };
    let mut ranges = Vec::new();
    loop {
        let (&from, after) = rest.split_first()?;
        if from == b']' && !ranges.is_empty() {
            return Some((Token::Set(ranges, negated), after));
        }
        rest = after;
        if from == b'['
            && let Some((class, after)) = class(rest)
        {
            ranges.extend_from_slice(class);
            rest = after;
            continue;
        }
        let from = match (from, rest.split_first()) {
            (b'\\', Some((&next, after))) => {
                rest = after;
                next
            }
            _ => from,
        };
        match rest {
            [b'-', to, after @ ..] if *to != b']' => {
                ranges.push((from, *to));
                rest = after;
            }
            _ => ranges.push((from, from)),
        }
    }
}

/// Ranges of bytes, each inclusive.
type Ranges = [(u8, u8)];

/// Parses a character class after a `[` in a set, such as `:digit:]`; returns it and the rest. An unknown class has
/// no members.
fn class(text: &[u8]) -> Option<(&'static Ranges, &[u8])> {
    let text = text.strip_prefix(b":")?;
    let end = text.windows(2).position(|two| two == b":]")?;
    let members: &Ranges = match &text[..end] {
        b"alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        b"alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        b"blank" => &[(b' ', b' '), (b'\t', b'\t')],
        b"cntrl" => &[(0, 31), (127, 127)],
        b"digit" => &[(b'0', b'9')],
        b"graph" => &[(33, 126)],
        b"lower" => &[(b'a', b'z')],
        b"print" => &[(32, 126)],
        b"punct" => &[(33, 47), (58, 64), (91, 96), (123, 126)],
        b"space" => &[(b' ', b' '), (9, 13)],
        b"upper" => &[(b'A', b'Z')],
        b"xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        // A byte that occurs in no name.
        _ => &[(0, 0)],
    };
    Some((members, &text[end + 2..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &str) -> Matcher {
        let rule = |rule: &str| Rule { includes: rule.starts_with('+'), pattern: rule[1..].into() };
        Filter { rules: rules.split(' ').map(rule).collect(), contents: Vec::new() }.matcher()
    }

    fn is_out(pattern: &str, path: &str, is_dir: bool) -> bool {
        !filter(&format!("-{pattern}")).includes(path.as_bytes(), is_dir)
    }

    #[test]
    fn names_and_paths_are_those_of_rsync() {
        for (pattern, path) in [
            ("*.o", "a/b.o"),
            ("b", "a/b"),
            ("/a", "a"),
            ("a/b", "x/a/b"),
            ("/a/*/c", "a/b/c"),
            ("/a/**/c", "a/b/d/c"),
            ("**.o", "a/b.o"),
            ("b?", "a/bc"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]x", "]x"),
            ("[[:digit:]x]y", "7y"),
            ("[\\]]x", "]x"),
            ("[a-z[:upper:]]x", "Bx"),
            ("\\*", "*"),
            ("a\\b", "a\\b"),
            ("[ab", "[ab"),
            ("d/***", "d/e/f"),
        ] {
            assert!(is_out(pattern, path, false), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*.o", "a.o/b"),
            ("/b", "a/b"),
            ("/a/*/c", "a/b/d/c"),
            ("a/b", "xa/b"),
            ("b?", "b"),
            ("[a-c]x", "dx"),
            ("[![:digit:]]y", "7y"),
            ("[!a-c]x", "bx"),
            ("\\*", "a"),
            ("d/***", "d"),
            ("*", ""),
        ] {
            assert!(!is_out(pattern, path, false) || path.is_empty(), "{pattern} {path}");
        }
    }

    #[test]
    fn a_slash_at_the_end_means_directories() {
        assert!(is_out("tmp/", "a/tmp", true) && !is_out("tmp/", "a/tmp", false));
        assert!(is_out("d/***", "x/d", true));
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let filter = filter("+*.h5 +*/ -*");
        assert!(filter.includes(b"a/x.h5", false) && filter.includes(b"a", true));
        assert!(!filter.includes(b"a/x.txt", false));
    }

    #[test]
    fn names_need_not_be_utf_8() {
        let filter =
            Filter { rules: vec![Rule { includes: false, pattern: b"\xff*".into() }], contents: Vec::new() };
        assert!(!filter.matcher().includes(b"a/\xffb", false) && filter.matcher().includes(b"a/b", false));
    }

    #[test]
    fn a_hostile_pattern_is_matched_quickly() {
        let pattern = "*a".repeat(200);
        assert!(!is_out(&pattern, &"a".repeat(199), false));
    }

    #[test]
    fn long_patterns_are_refused() {
        let rule = |pattern: &str| Rule { includes: false, pattern: pattern.into() };
        let of = |rules| Filter { rules, contents: Vec::new() };
        assert!(of(vec![rule("x"); MAX_RULES]).check().is_ok());
        assert!(of(vec![rule("x"); MAX_RULES + 1]).check().is_err());
        assert!(of(vec![rule(&"x".repeat(MAX_BYTES + 1))]).check().is_err());
        assert!(of(vec![rule("")]).check().is_err() && of(vec![rule("/")]).check().is_err());
    }
}
