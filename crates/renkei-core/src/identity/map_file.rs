//! Map files of grid services: grid-mapfile (names to accounts) and voms-mapfile (attributes to accounts).
//!
//! A line is `"NAME" ACCOUNT[,ACCOUNT...]`; the first account counts, and the first line that matches. In the files of
//! LCMAPS, `*` in an attribute is any text. Lines that cannot be used are left out and named: these files are shared
//! with other programs.

use super::grid_name::{canonical_dn, canonical_fqan, matches};
use super::mapping::{AccountRule, Verdict, Why};

/// One line that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    name: String,
    account: String,
    number: usize,
}

/// A map file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapFile {
    /// Its path, for messages.
    pub path: String,
    lines: Vec<Line>,
    /// The lines that cannot be used, with the reason.
    pub problems: Vec<String>,
}

impl MapFile {
    /// Parses a file.
    pub fn parse(path: &str, text: &str) -> Self {
        let mut file = MapFile { path: path.into(), ..MapFile::default() };
        for (index, line) in text.lines().enumerate() {
            let content = line.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            match parse_line(content, index + 1) {
                Ok(line) => file.lines.push(line),
                Err(cause) => file.problems.push(format!("line {}: {cause}", index + 1)),
            }
        }
        file
    }

    /// The number of lines that can be used.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether no line can be used.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The account by the first line for the name, or for the first attribute that has one.
    pub(super) fn verdict(&self, dn: &str, fqans: &[String]) -> Option<Verdict> {
        let of_fqan = |fqan: &String| self.lines.iter().find(|line| line.is_about_fqan(fqan));
        let named = || self.lines.iter().find(|line| line.name == dn);
        let line = fqans.iter().find_map(of_fqan).or_else(named)?;
        let why = Why::File { file: self.path.clone(), line: line.number };
        Some(Verdict { account: Some(line.account.clone()), why })
    }
}

impl Line {
    /// A name of a person is no pattern for attributes: it has a `=` in its first part.
    fn is_about_fqan(&self, fqan: &str) -> bool {
        !is_of_person(&self.name) && matches(&self.name, fqan)
    }
}

fn is_of_person(name: &str) -> bool {
    let first = name.trim_start_matches('/').split('/').next().unwrap_or_default();
    first.contains('=')
}

fn parse_line(content: &str, number: usize) -> Result<Line, &'static str> {
    let (name, rest) = match content.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').ok_or("the quotes are not closed")?,
        None => content.split_once(char::is_whitespace).ok_or("it names no account")?,
    };
    let account = rest.split([',', '#']).next().unwrap_or_default().trim();
    if account.starts_with('.') {
        return Err("accounts of a pool are not supported");
    }
    match AccountRule::parse(account) {
        Ok(AccountRule::Named(account)) => {
            let canonical = if is_of_person(name) { canonical_dn } else { canonical_fqan };
            let name = canonical(name).ok_or("it names nobody")?;
            Ok(Line { name, account, number })
        }
        _ => Err("its account is not a name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# grid users\n\"/C=JP/O=NII/CN=Taro Yamada\" taro,spare\n/C=JP/CN=Jiro jiro\n\n\
        \"/C=JP/CN=Eve\" .pool\n\"/C=JP/CN=Open\n\"/C=JP/CN=Taro Yamada/Email=t@x.jp\" post # mail\n\
        \"/belle/Role=production\" belleprd\n\"/belle/*\" belle\n\"/belle\" belle\n\"nobody\" x\n";

    fn account(dn: &str, fqans: &[&str]) -> Option<String> {
        let fqans: Vec<String> = fqans.iter().map(|fqan| (*fqan).to_owned()).collect();
        MapFile::parse("f", TEXT).verdict(dn, &fqans).and_then(|verdict| verdict.account)
    }

    #[test]
    fn the_first_account_of_the_first_line_counts() {
        assert_eq!(account("/C=JP/O=NII/CN=Taro Yamada", &[]).as_deref(), Some("taro"));
        assert_eq!(account("/C=JP/CN=Jiro", &[]).as_deref(), Some("jiro"));
        assert_eq!(account("/C=JP/CN=Taro Yamada/emailAddress=t@x.jp", &[]).as_deref(), Some("post"));
        assert_eq!(account("/C=JP/CN=Eve", &[]), None);
        assert_eq!(account("/C=JP/CN=X", &["/other", "/belle/Role=production"]).as_deref(), Some("belleprd"));
        assert_eq!(account("/C=JP/CN=X", &["/belle/run7/Role=x"]).as_deref(), Some("belle"));
        assert_eq!(account("/C=JP/CN=X", &["/belle2"]), None);
    }

    #[test]
    fn lines_that_cannot_be_used_are_named() {
        let file = MapFile::parse("f", TEXT);
        assert_eq!((file.len(), file.problems.len()), (6, 3), "{:?}", file.problems);
        assert!(file.problems[0].starts_with("line 5: accounts of a pool"));
    }

    #[test]
    fn names_of_persons_are_spelled_in_one_way() {
        let file = MapFile::parse("f", "/DC=org/Email=a-b.jp/USERID=a taro\n/CN=a/Role=NULL jiro\n");
        let account = |dn| file.verdict(dn, &[]).and_then(|verdict| verdict.account);
        assert_eq!(account("/DC=org/emailAddress=a-b.jp/UID=a").as_deref(), Some("taro"));
        assert_eq!(account("/CN=a/Role=NULL").as_deref(), Some("jiro"));
        assert_eq!(account("/CN=a"), None);
    }

    #[test]
    fn the_name_of_a_person_is_no_pattern() {
        let file = MapFile::parse("f", "\"/CN=*\" root\n");
        assert!(file.verdict("/CN=a", &["/CN".into(), "/belle".into()]).is_none());
    }
}
