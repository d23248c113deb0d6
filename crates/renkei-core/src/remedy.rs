//! Placeholders in capital letters in the commands of remedies: filled in where the name is known, and explained
//! where it is not.
//!
//! Only text between backquotes is a command. Non-goal: deciding which names are known; that is up to the reader's
//! side.

use crate::error::Error;
use crate::path::is_label;
use crate::principal::Principal;

/// The placeholders with their explanations.
pub const WORDS: &[(&str, &str)] = &[
    ("SITE", "the name of the site"),
    ("STORAGE", "the name of the storage"),
    ("VOLUME", "the name of the volume"),
    ("MOUNT", "the name of the mount's credential"),
    ("ID", "the first digits of the id, which `renkei transfers --ended` lists"),
    ("USER@HOST", "your account and the machine of your site's PoP, as for ssh"),
    ("ADMINISTRATOR@HOST", "the account of who runs the PoP and its machine, as for ssh"),
    ("USER", "the user's account"),
    ("PRINCIPAL", "the user, as alice@titech"),
    ("ACCOUNT", "an account of that machine"),
    ("NAME", "a name of your choice"),
    ("CARD", "the file with the site's card"),
    ("DIR", "a directory"),
    ("FOLDER", "the folder of the backup"),
    ("MOUNTPOINT", "the directory of the mount"),
    ("FILE", "the file, as /genome/a.dat"),
    ("PLACE", "the file or directory, as /genome/a.dat"),
    ("TOPOLOGY", "a file as docs/lab.md describes it"),
    ("COMMAND", "the command that was typed"),
    ("TOKEN", "the token's text"),
    ("HOST", "the machine of the PoP"),
    ("PORT", "its port, 7512 if nobody chose another"),
    ("URL", "the issuer as its tokens name it, as https://issuer.example"),
    ("WORDS", "the words of the scope, as storage.read:/genome"),
];

/// The remedy of an error, with the names that the error itself has, and explanations of the other placeholders.
pub fn of(error: &Error) -> String {
    explained(&fill(error.code.row().remedy, &names(error)))
}

/// The names that an error has for the placeholders of remedies.
pub fn names(error: &Error) -> Vec<(&'static str, String)> {
    let user = Principal::parse(&error.subject).ok().map(|user| user.to_string());
    let words = [("SITE", site(error)), ("VOLUME", volume(error)), ("PRINCIPAL", user)];
    words.into_iter().filter_map(|(word, name)| Some((word, name?))).collect()
}

/// The site that was unreachable, or that failed.
fn site(error: &Error) -> Option<String> {
    let first = error.subject.split([' ', ':']).next().unwrap_or_default();
    let is_of_network = error.code.row().id.starts_with("RK-NET-");
    let name = if is_of_network && is_label(first) { first } else { &error.side };
    (is_label(name) && name != "client").then(|| name.to_owned())
}

/// The volume that an error is about, by its name or by a path in it.
fn volume(error: &Error) -> Option<String> {
    let path = error.subject.rsplit(':').next().unwrap_or_default().trim_start_matches('/');
    let name = path.split('/').next().filter(|name| is_label(name))?;
    error.code.row().id.starts_with("RK-NS-").then(|| name.to_owned())
}

/// A remedy with the known placeholders filled in.
pub fn fill(remedy: &str, known: &[(&str, String)]) -> String {
    let mut spans: Vec<String> = Vec::new();
    for (number, span) in remedy.split('`').enumerate() {
        spans.push(if number % 2 == 1 { fill_command(span, known) } else { span.into() });
    }
    spans.join("`")
}

fn fill_command(command: &str, known: &[(&str, String)]) -> String {
    let (mut out, mut at) = (String::new(), 0);
    for (start, word) in words(command) {
        let name = known.iter().find(|(known, _)| *known == word).map_or(word, |(_, name)| name);
        out.push_str(&command[at..start]);
        out.push_str(name);
        at = start + word.len();
    }
    out + &command[at..]
}

/// A remedy with explanations of the placeholders left in it.
pub fn explained(remedy: &str) -> String {
    let commands = || remedy.split('`').skip(1).step_by(2);
    let stands = |word: &str| commands().any(|command| words(command).any(|(_, found)| found == word));
    let mut told =
        WORDS.iter().filter(|(word, _)| stands(word)).map(|(word, what)| format!("{word} is {what}"));
    match told.next() {
        None => remedy.into(),
        Some(first) => format!("{remedy} ({})", told.fold(first, |all, one| all + "; " + &one)),
    }
}

/// The placeholders of a command, with their offsets.
fn words(command: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '@';
    let all = command.split(move |c| !is_of_word(c)).map(move |word| (offset(command, word), word));
    all.filter(|(_, word)| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '@'))
}

/// The offset of a substring in its text.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn known_placeholders_are_filled_in_and_others_explained() {
        let remedy = "`renkei map add PRINCIPAL ACCOUNT` at SITE; `x RENKEI_SITE LimitSITE SITE:/d`";
        let known = [("PRINCIPAL", "alice@kek".to_owned()), ("SITE", "kek".to_owned())];
        let filled = fill(remedy, &known);
        assert_eq!(filled, "`renkei map add alice@kek ACCOUNT` at SITE; `x RENKEI_SITE LimitSITE kek:/d`");
        assert_eq!(explained(&filled), format!("{filled} (ACCOUNT is an account of that machine)"));
        assert_eq!(explained("`renkei doctor kek`"), "`renkei doctor kek`");
    }

    #[test]
    fn an_error_has_its_own_placeholders() {
        let error = |code, subject: &str| Error::new(code, "open", subject, "").at("kek");
        let told = |code, subject| of(&error(code, subject));
        assert!(told(Code::PeerDown, "nig at 192.0.2.1:7512").contains("`renkei doctor nig`"));
        assert!(told(Code::StorageUnknown, "dat").contains("`renkei ls kek:/`"));
        assert!(told(Code::TreeNotHere, "/genome/2026").contains("`renkei volume show genome`"));
        let unknown = of(&Error::new(Code::StorageUnknown, "open", "dat", "").at("client"));
        assert!(unknown.ends_with("(SITE is the name of the site)"), "{unknown}");
    }

    #[test]
    fn every_placeholder_of_a_remedy_is_explained() {
        for code in Code::ALL {
            for command in code.row().remedy.split('`').skip(1).step_by(2) {
                for (_, word) in words(command) {
                    assert!(WORDS.iter().any(|(known, _)| *known == word), "{code}: `{command}`: {word}");
                }
            }
        }
    }
}
