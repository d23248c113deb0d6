//! Mapping of principals to local accounts.
//!
//! The table is text, one `PATTERN ACCOUNT` per line and `#` comments: `alice@kek alice`, `*@kek guest`, or `*@kek *`
//! for "the account of the user's own name". A rule for one user takes precedence over a rule for a whole site; of
//! two rules of the same kind the first counts, but one that denies (`mallory@kek !`) before all others. A principal
//! without a matching rule is refused (default deny).
//!
//! Guarantees: a PoP is never mapped to an account, and an account `*` never means `root`, whatever another site
//! calls its users; `root` must be written out.

use super::grid_name;
use super::map_file::MapFile;
use super::{Principal, is_user_name};
use crate::error::{Code, Error};
use crate::path::{SiteName, printable};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Users of a site: `alice@titech` or `*@titech`.
    Users {
        /// The site.
        site: SiteName,
        /// The user; `None` for all users of the site.
        user: Option<String>,
    },
    /// A subject of a token issuer: `token:https://issuer.example#subject`.
    Subject {
        /// The issuer's URL.
        issuer: String,
        /// The subject.
        subject: String,
    },
    /// Subjects in a group: `group:https://issuer.example#/wlcg/xfers`.
    Group {
        /// The issuer's URL.
        issuer: String,
        /// The group.
        group: String,
    },
    /// The holder of a grid certificate: `dn:/C=JP/O=NII/CN=Taro`.
    Dn(String),
    /// Members of a virtual organisation: `fqan:/belle/Role=production`, where `*` is any text.
    Fqan(String),
    /// The holder of a Kerberos ticket: `krb:taro@EXAMPLE.ORG`, or `krb:*@EXAMPLE.ORG` for all users of the realm.
    Kerberos {
        /// The realm.
        realm: String,
        /// The principal without it; `None` for all that are names of users: of one part, neither services nor hosts.
        name: Option<String>,
    },
}

/// The account that a rule maps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountRule {
    /// This account.
    Named(String),
    /// Written `*`: the account with the user's own name.
    SameName,
    /// Written `!`: none; denies access even if other rules would allow it.
    Nobody,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The users it is about.
    pub pattern: Pattern,
    /// The account they map to.
    pub account: AccountRule,
    /// Its line in the file, from 1.
    pub line: usize,
}

/// Whether users of the PoP's own site need a rule.
#[derive(Clone, Copy, Debug)]
pub enum OwnUsers<'a> {
    /// A user of this site maps to the account of the same name if there is no rule.
    SameName(&'a SiteName),
    /// Own users need a rule as all others.
    NeedRule,
}

/// The reason of a mapping decision, for `map test` and the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Why {
    /// A rule of the table.
    Rule {
        /// The rule as written.
        rule: String,
        /// Its line in the file, from 1.
        line: usize,
        /// Whether it is for all users of a site and gives each the account of the same name.
        is_wildcard: bool,
    },
    /// A line of a grid-mapfile or voms-mapfile.
    File {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: usize,
    },
    /// A user of the PoP's own site.
    OwnUser,
    /// A rule denies access to the principal.
    ShutOut {
        /// Its line in the file, from 1.
        line: usize,
    },
    /// No rule matches this principal.
    NoRule,
    /// A PoP has no account; only users have.
    HostHasNone,
    /// A rule with account `*` does not map to root.
    NotRootBySameName {
        /// Its line in the file, from 1.
        line: usize,
    },
}

/// The mapping decision for one principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The account; `None` is a refusal.
    pub account: Option<String>,
    /// The reason.
    pub why: Why,
}

/// The mapping table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    rules: Vec<Rule>,
}

impl Mapping {
    /// Parses the text form; an error names the line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let rules = text
            .lines()
            .enumerate()
            .map(|(index, line)| parse_line(line, index + 1))
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?;
        Ok(Mapping { rules })
    }

    /// The rules in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Decides the account of `principal`.
    pub fn resolve(&self, principal: &Principal, own: OwnUsers<'_>) -> Verdict {
        let Principal::User { site, name } = principal else {
            return Verdict { account: None, why: Why::HostHasNone };
        };
        match self.best_rule(site, name) {
            Some(rule) => rule.apply(name),
            None => without_rule(site, name, own),
        }
    }

    /// The rules that map users to one account, as text, and no others. For users that such a rule would map to it,
    /// but that are denied or mapped elsewhere, the text has a denying rule.
    pub fn of_account(&self, account: &str, own: OwnUsers<'_>) -> String {
        let mut best = BTreeMap::<(&str, Option<&str>), &Rule>::new();
        for rule in &self.rules {
            let Some((site, user)) = rule.pattern.users() else { continue };
            let known = best.entry((site.as_str(), user)).or_insert(rule);
            if rule.account == AccountRule::Nobody && known.account != AccountRule::Nobody {
                *known = rule;
            }
        }
        let becomes = |rule: &Rule, user: &str| rule.apply(user).account.as_deref() == Some(account);
        let is_own = |site: &str| matches!(own, OwnUsers::SameName(own) if own.as_str() == site);
        // The mapping without a rule for the user alone, and without a site-wide rule that maps to other accounts.
        let falls_to = |site: &str, user: &str| match best.get(&(site, None)) {
            Some(rule) if becomes(rule, user) => true,
            _ => is_own(site) && user == account,
        };
        let lines = best.iter().filter_map(|(&(site, user), rule)| match user {
            Some(user) if becomes(rule, user) => Some(rule.to_string()),
            Some(user) if falls_to(site, user) => Some(format!("{} !", rule.pattern)),
            Some(_) => None,
            None if rule.account == AccountRule::SameName || becomes(rule, account) => Some(rule.to_string()),
            None if is_own(site) && !best.contains_key(&(site, Some(account))) => {
                Some(format!("{account}@{site} !")).filter(|line| parse_line(line, 0).is_ok())
            }
            None => None,
        });
        lines.map(|line| line + "\n").collect()
    }

    /// The rule for the holder of a token: one for the subject before those for groups, which count in their order.
    pub fn of_token(&self, issuer: &str, subject: &str, groups: &[String]) -> Option<Verdict> {
        let is_subject = |pattern: &Pattern| match pattern {
            Pattern::Subject { issuer: of, subject: named } => of == issuer && named == subject,
            _ => false,
        };
        let in_group = |pattern: &Pattern, held: &String| match pattern {
            Pattern::Group { issuer: of, group } => of == issuer && group == held,
            _ => false,
        };
        let by_group = || groups.iter().find_map(|held| self.first(&|pattern| in_group(pattern, held)));
        self.first(&is_subject).or_else(by_group).map(|rule| rule.apply(subject))
    }

    /// The rule for the holder of a grid certificate: one that denies, else one for the name, else those for its
    /// attributes in their order, else the first line of `files`.
    pub fn of_grid(&self, dn: &str, fqans: &[String], files: &[MapFile]) -> Option<Verdict> {
        let is_named = |pattern: &Pattern| matches!(pattern, Pattern::Dn(named) if named == dn);
        let is_in = |pattern: &Pattern, fqan: &str| match pattern {
            Pattern::Fqan(named) => grid_name::matches(named, fqan),
            _ => false,
        };
        let is_about = |pattern: &Pattern| is_named(pattern) || fqans.iter().any(|fqan| is_in(pattern, fqan));
        let denies = |rule: &&Rule| rule.account == AccountRule::Nobody && is_about(&rule.pattern);
        let by_fqan = || fqans.iter().find_map(|fqan| self.first(&|pattern| is_in(pattern, fqan)));
        let denial = self.rules.iter().find(denies);
        let rule = denial.or_else(|| self.first(&is_named)).or_else(by_fqan);
        rule.map(|rule| rule.apply(dn)).or_else(|| files.iter().find_map(|file| file.verdict(dn, fqans)))
    }

    /// The rule for the holder of a Kerberos ticket: one that denies the principal, else one for the principal, else one
    /// for the users of its realm.
    ///
    /// The KDC of an Active Directory knows names without case and puts the one that the client wrote into the ticket.
    /// Rules that deny therefore match without case, all others with it. An account `*` is for names without upper-case
    /// letters, so a user has one account there.
    pub fn of_kerberos(&self, principal: &str) -> Option<Verdict> {
        let (own, own_realm) = principal.rsplit_once('@')?;
        let is_denied = |rule: &&Rule, wanted: Option<&str>| match &rule.pattern {
            Pattern::Kerberos { realm, name } => {
                let is_name = match (name, wanted) {
                    (Some(name), Some(wanted)) => name.eq_ignore_ascii_case(wanted),
                    (name, wanted) => name.is_none() && wanted.is_none(),
                };
                is_name && rule.account == AccountRule::Nobody && realm.eq_ignore_ascii_case(own_realm)
            }
            _ => false,
        };
        let denial = |wanted| self.rules.iter().find(|rule| is_denied(rule, wanted));
        let is = |pattern: &Pattern, wanted: Option<&str>| match pattern {
            Pattern::Kerberos { realm, name } => realm == own_realm && name.as_deref() == wanted,
            _ => false,
        };
        let has_capital = own.bytes().any(|byte| byte.is_ascii_uppercase());
        let is_for_all =
            |rule: &&Rule| is_user_name(own) && !(rule.account == AccountRule::SameName && has_capital);
        let of_realm =
            || denial(None).or_else(|| self.first(&|pattern| is(pattern, None))).filter(is_for_all);
        let named = denial(Some(own)).or_else(|| self.first(&|pattern| is(pattern, Some(own))));
        named.or_else(of_realm).map(|rule| rule.apply(own))
    }

    fn best_rule(&self, site: &SiteName, name: &str) -> Option<&Rule> {
        self.first(&|pattern| pattern.users() == Some((site, Some(name))))
            .or_else(|| self.first(&|pattern| pattern.users() == Some((site, None))))
    }

    /// Of the rules that match, the first that denies, else the first.
    fn first(&self, is_meant: &dyn Fn(&Pattern) -> bool) -> Option<&Rule> {
        let matching = || self.rules.iter().filter(|rule| is_meant(&rule.pattern));
        matching().find(|rule| rule.account == AccountRule::Nobody).or_else(|| matching().next())
    }
}

impl Rule {
    fn apply(&self, user: &str) -> Verdict {
        let account = match &self.account {
            AccountRule::Named(account) => account,
            AccountRule::SameName if user == "root" => {
                return Verdict { account: None, why: Why::NotRootBySameName { line: self.line } };
            }
            AccountRule::SameName => user,
            AccountRule::Nobody => {
                return Verdict { account: None, why: Why::ShutOut { line: self.line } };
            }
        };
        let is_of_all =
            matches!(self.pattern, Pattern::Users { user: None, .. } | Pattern::Kerberos { name: None, .. });
        let is_wildcard = is_of_all && self.account == AccountRule::SameName;
        let why = Why::Rule { rule: self.to_string(), line: self.line, is_wildcard };
        Verdict { account: Some(account.into()), why }
    }
}

fn without_rule(site: &SiteName, name: &str, own: OwnUsers<'_>) -> Verdict {
    match own {
        OwnUsers::SameName(own) if own == site => Verdict { account: Some(name.into()), why: Why::OwnUser },
        _ => Verdict { account: None, why: Why::NoRule },
    }
}

impl Pattern {
    /// Parses `alice@titech`, `*@titech`, `token:ISSUER#SUBJECT`, `group:ISSUER#/GROUP`, `dn:/NAME`, `fqan:/VO` or
    /// `krb:NAME@REALM`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let of_issuer = |rest: &str| {
            let (issuer, name) =
                rest.split_once('#').filter(|(issuer, name)| !issuer.is_empty() && !name.is_empty())?;
            issuer.starts_with("https://").then(|| (issuer.to_owned(), name.to_owned()))
        };
        let bad = |why| bad_rule(text, why);
        if let Some(rest) = text.strip_prefix("token:") {
            let (issuer, subject) =
                of_issuer(rest).ok_or_else(|| bad("write token:https://ISSUER#SUBJECT"))?;
            return Ok(Pattern::Subject { issuer, subject });
        }
        if let Some(rest) = text.strip_prefix("group:") {
            let (issuer, group) = of_issuer(rest).ok_or_else(|| bad("write group:https://ISSUER#/GROUP"))?;
            return Ok(Pattern::Group { issuer, group });
        }
        if let Some(dn) = text.strip_prefix("dn:") {
            let dn =
                grid_name::canonical_dn(dn).ok_or_else(|| bad("write dn:/C=JP/O=ORGANISATION/CN=NAME"))?;
            return Ok(Pattern::Dn(dn));
        }
        if let Some(fqan) = text.strip_prefix("fqan:") {
            let fqan =
                grid_name::canonical_fqan(fqan).ok_or_else(|| bad("write fqan:/VO/GROUP/Role=ROLE"))?;
            return Ok(Pattern::Fqan(fqan));
        }
        if let Some(principal) = text.strip_prefix("krb:") {
            return kerberos(principal)
                .ok_or_else(|| bad("write krb:NAME@REALM, or krb:*@REALM for its users"));
        }
        let bad = || {
            bad(
                "write alice@SITE, *@SITE for all users of a site, token:ISSUER#SUBJECT, group:ISSUER#/GROUP, dn:/NAME, fqan:/VO or krb:NAME@REALM",
            )
        };
        let (user, site) = text.split_once('@').ok_or_else(bad)?;
        let site = SiteName::parse(site).map_err(|_| bad())?;
        match user {
            "*" => Ok(Pattern::Users { site, user: None }),
            user if is_user_name(user) => Ok(Pattern::Users { site, user: Some(user.into()) }),
            _ => Err(bad()),
        }
    }

    /// The users of a site that it is about: one, or all of them.
    pub fn users(&self) -> Option<(&SiteName, Option<&str>)> {
        match self {
            Pattern::Users { site, user } => Some((site, user.as_deref())),
            Pattern::Subject { .. }
            | Pattern::Group { .. }
            | Pattern::Dn(_)
            | Pattern::Fqan(_)
            | Pattern::Kerberos { .. } => None,
        }
    }
}

/// A Kerberos principal: printable, without the characters that a line of the table is split at.
fn kerberos(text: &str) -> Option<Pattern> {
    let (name, realm) = text.rsplit_once('@')?;
    let is_part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic() && c != '"');
    let name = Some(name.to_owned()).filter(|name| name != "*");
    let is_good = is_part(realm) && name.as_deref().is_none_or(|name| is_part(name) && !name.contains('*'));
    is_good.then(|| Pattern::Kerberos { realm: realm.to_owned(), name })
}

impl AccountRule {
    /// Parses an account's name, `*` or `!`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "*" => Ok(AccountRule::SameName),
            "!" => Ok(AccountRule::Nobody),
            name if is_account_name(name) => Ok(AccountRule::Named(name.into())),
            _ => Err(bad_rule(text, "not an account's name; `*` means the account of the user's own name")),
        }
    }
}

/// Account names as on Linux: wider than user names (`$` of machine accounts, `\` and `+` of domains).
fn is_account_name(text: &str) -> bool {
    (1..=256).contains(&text.len())
        && !text.starts_with('-')
        && text.chars().all(|c| c.is_alphanumeric() || "._-$+\\@".contains(c))
}

fn parse_line(line: &str, number: usize) -> Result<Option<Rule>, Error> {
    let Some((quoted, rest)) = quoted(line) else { return parse_words(without_comment(line), number) };
    let account = without_comment(rest);
    match account.split_whitespace().collect::<Vec<_>>()[..] {
        [account] => parse_rule(quoted, account, number),
        _ => Err(at_line(bad_rule(line.trim(), "write \"PATTERN\" ACCOUNT"), number)),
    }
}

/// The text in quotes that a line begins with, as names with spaces are written, and the text after it.
fn quoted(line: &str) -> Option<(&str, &str)> {
    line.trim_start().strip_prefix('"')?.split_once('"')
}

fn parse_words(content: &str, number: usize) -> Result<Option<Rule>, Error> {
    match content.split_whitespace().collect::<Vec<_>>()[..] {
        [] => Ok(None),
        [pattern, account] => parse_rule(pattern, account, number),
        _ => Err(at_line(bad_rule(content.trim(), "write PATTERN ACCOUNT"), number)),
    }
}

fn parse_rule(pattern: &str, account: &str, number: usize) -> Result<Option<Rule>, Error> {
    let content = format!("{pattern} {account}");
    let pattern = Pattern::parse(pattern).map_err(|error| at_line(error, number))?;
    let account = AccountRule::parse(account).map_err(|error| at_line(error, number))?;
    let has_user_name = pattern.users().is_some() || matches!(pattern, Pattern::Kerberos { .. });
    if !has_user_name && account == AccountRule::SameName {
        return Err(at_line(
            bad_rule(&content, "a rule for tokens and certificates names an account"),
            number,
        ));
    }
    Ok(Some(Rule { pattern, account, line: number }))
}

/// A comment begins with a `#` at the start of a word: patterns for tokens have one inside.
fn without_comment(line: &str) -> &str {
    let begins = |at: &usize| line[..*at].chars().next_back().is_none_or(char::is_whitespace);
    let end = line.match_indices('#').map(|(at, _)| at).find(begins);
    &line[..end.unwrap_or(line.len())]
}

fn at_line(mut error: Error, number: usize) -> Error {
    error.code = Code::ConfigInvalid;
    error.cause = format!("line {number} of the map: {}", error.cause);
    error
}

fn bad_rule(text: &str, why: &str) -> Error {
    let shown: String = printable(text.as_bytes()).chars().take(200).collect();
    Error::new(Code::UsageInvalid, "parse rule", shown, why)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Users { site, user } => write!(f, "{}@{site}", user.as_deref().unwrap_or("*")),
            Pattern::Subject { issuer, subject } => write!(f, "token:{issuer}#{subject}"),
            Pattern::Group { issuer, group } => write!(f, "group:{issuer}#{group}"),
            Pattern::Dn(dn) => write!(f, "dn:{dn}"),
            Pattern::Fqan(fqan) => write!(f, "fqan:{fqan}"),
            Pattern::Kerberos { realm, name } => write!(f, "krb:{}@{realm}", name.as_deref().unwrap_or("*")),
        }
    }
}

impl fmt::Display for AccountRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccountRule::Named(name) => f.write_str(name),
            AccountRule::SameName => f.write_str("*"),
            AccountRule::Nobody => f.write_str("!"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = self.pattern.to_string();
        match pattern.contains([' ', '#']) && matches!(self.pattern, Pattern::Dn(_)) {
            true => write!(f, "\"{pattern}\" {}", self.account),
            false => write!(f, "{pattern} {}", self.account),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Rule { rule, line, .. } => write!(f, "rule `{rule}` on line {line}"),
            Why::File { file, line } => write!(f, "line {line} of {file}"),
            Why::OwnUser => f.write_str("a user of this site, no rule needed"),
            Why::ShutOut { line } => write!(f, "the rule on line {line} shuts the user out"),
            Why::NoRule => f.write_str("no rule is about this principal"),
            Why::HostHasNone => f.write_str("a PoP has no account, only users (USER@SITE) have"),
            Why::NotRootBySameName { line } => {
                write!(f, "the `*` on line {line} maps no user to root; a rule must name root to do so")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str =
        "# who becomes whom\n*@kek guest\n\nalice@kek alice # staff\n*@titech *\nalice@kek other\n";

    fn account(principal: &str, own: OwnUsers<'_>) -> Option<String> {
        Mapping::parse(TABLE).unwrap().resolve(&Principal::parse(principal).unwrap(), own).account
    }

    #[test]
    fn exact_beats_wildcard_and_first_beats_second() {
        assert_eq!(account("alice@kek", OwnUsers::NeedRule).as_deref(), Some("alice"));
        assert_eq!(account("bob@kek", OwnUsers::NeedRule).as_deref(), Some("guest"));
        assert_eq!(account("bob@titech", OwnUsers::NeedRule).as_deref(), Some("bob"));
    }

    #[test]
    fn refuses_by_default() {
        assert_eq!(account("alice@osaka", OwnUsers::NeedRule), None);
        assert_eq!(account("kek", OwnUsers::NeedRule), None);
        assert_eq!(account("root@titech", OwnUsers::NeedRule), None);
    }

    #[test]
    fn own_users_need_no_rule_unless_configured() {
        let osaka = SiteName::parse("osaka").unwrap();
        assert_eq!(account("alice@osaka", OwnUsers::SameName(&osaka)).as_deref(), Some("alice"));
        assert_eq!(account("root@osaka", OwnUsers::SameName(&osaka)).as_deref(), Some("root"));
        assert_eq!(account("alice@nagoya", OwnUsers::SameName(&osaka)), None);
        let kek = SiteName::parse("kek").unwrap();
        assert_eq!(account("bob@kek", OwnUsers::SameName(&kek)).as_deref(), Some("guest"));
    }

    #[test]
    fn a_verdict_names_its_rule() {
        let mapping = Mapping::parse(TABLE).unwrap();
        let verdict = mapping.resolve(&Principal::parse("alice@kek").unwrap(), OwnUsers::NeedRule);
        assert_eq!(verdict.why, Why::Rule { rule: "alice@kek alice".into(), line: 4, is_wildcard: false });
        assert_eq!(verdict.why.to_string(), "rule `alice@kek alice` on line 4");
    }

    #[test]
    fn errors_carry_the_line() {
        for (bad, line) in [("a@kek\n", 1), ("# x\na@kek b c\n", 2), ("\n\nkek root", 3), ("a@kek -x", 1)] {
            let error = Mapping::parse(bad).unwrap_err();
            assert_eq!(error.code, Code::ConfigInvalid);
            assert!(error.cause.starts_with(&format!("line {line} ")), "{error}");
        }
    }

    #[test]
    fn the_rules_of_one_account_name_no_other_account() {
        let table = "alice@kek al\nbob@kek bobby\ncarol@kek al\ncarol@kek !\n*@riken al\ndan@riken dd\n*@titech *\n\
                     al@titech guest\n*@osaka guest\n*@nagoya !\nerin@osaka al\n";
        let osaka = SiteName::parse("osaka").unwrap();
        let told = Mapping::parse(table).unwrap().of_account("al", OwnUsers::SameName(&osaka));
        let expected =
            "alice@kek al\nal@osaka !\nerin@osaka al\n*@riken al\ndan@riken !\n*@titech *\nal@titech !\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn denials_of_kerberos_principals_match_without_case() {
        let table = "krb:*@AD.EXAMPLE *\nkrb:eve@AD.EXAMPLE !\nkrb:EVE@AD.EXAMPLE eve\nkrb:*@NII.JP guest\n";
        let mapping =
            Mapping::parse(&format!("{table}krb:*@Closed.Example !\nkrb:Taro@AD.EXAMPLE yamada\n")).unwrap();
        let verdict = |principal: &str| mapping.of_kerberos(principal);
        let account = |principal: &str| verdict(principal).and_then(|verdict| verdict.account);
        for denied in ["eve@AD.EXAMPLE", "EVE@AD.EXAMPLE", "Eve@ad.example", "a@CLOSED.EXAMPLE"] {
            let why = verdict(denied).map(|verdict| verdict.why);
            assert!(matches!(why, Some(Why::ShutOut { .. })), "{denied}: {why:?}");
        }
        assert_eq!(account("hana@AD.EXAMPLE").as_deref(), Some("hana"));
        assert_eq!(verdict("Hana@AD.EXAMPLE"), None, "one name for an account of the same name");
        assert_eq!(account("Hana@NII.JP").as_deref(), Some("guest"));
        assert_eq!(account("Taro@AD.EXAMPLE").as_deref(), Some("yamada"));
        assert_eq!(account("hana@ad.example"), None, "other rules match with case");
    }

    #[test]
    fn a_kerberos_principal_stands_before_its_realm() {
        let table = "krb:*@KEK.JP *\nkrb:taro@KEK.JP yamada # staff\nkrb:eve@KEK.JP !\n";
        let mapping = Mapping::parse(table).unwrap();
        let account = |principal: &str| mapping.of_kerberos(principal).and_then(|verdict| verdict.account);
        assert_eq!(account("taro@KEK.JP").as_deref(), Some("yamada"));
        assert_eq!(account("hana@KEK.JP").as_deref(), Some("hana"));
        for none in ["eve@KEK.JP", "root@KEK.JP", "host/a@KEK.JP", "taro@NII.JP", "taro"] {
            assert_eq!(account(none), None, "{none}");
        }
        let is_wildcard = |principal: &str| match mapping.of_kerberos(principal).unwrap().why {
            Why::Rule { is_wildcard, .. } => is_wildcard,
            other => panic!("{other}"),
        };
        assert!(is_wildcard("hana@KEK.JP") && !is_wildcard("taro@KEK.JP"));
        assert_eq!(mapping.rules()[1].to_string(), "krb:taro@KEK.JP yamada");
        assert_eq!(mapping.resolve(&Principal::parse("taro@kek").unwrap(), OwnUsers::NeedRule).account, None);
        for bad in ["krb:taro x", "krb:@KEK.JP x", "krb:taro@ x", "krb:t*@KEK.JP x"] {
            assert!(Mapping::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_stands_before_its_attributes_and_the_map_before_the_files() {
        let table = "\"dn:/C=JP/O=NII/CN=Taro Yamada\" taro # staff\nfqan:/belle/Role=production belleprd\nfqan:/belle/* belle\n\
                     dn:/C=JP/CN=Eve !\nfqan:/bad !\n";
        let mapping = Mapping::parse(table).unwrap();
        assert_eq!(mapping.rules()[0].to_string(), "\"dn:/C=JP/O=NII/CN=Taro Yamada\" taro");
        let files =
            [MapFile::parse("grid-mapfile", "\"/C=JP/CN=Eve\" eve\n\"/C=JP/CN=Hanako\" hanako,spare\n")];
        let account = |dn: &str, fqans: &[&str]| {
            let fqans: Vec<String> = fqans.iter().map(|fqan| (*fqan).into()).collect();
            mapping.of_grid(dn, &fqans, &files).and_then(|verdict| verdict.account)
        };
        let production = ["/belle/Role=production", "/belle/run7"];
        assert_eq!(account("/C=JP/O=NII/CN=Taro Yamada", &production).as_deref(), Some("taro"));
        assert_eq!(account("/C=JP/CN=Hanako", &production).as_deref(), Some("belleprd"));
        assert_eq!(account("/C=JP/CN=Hanako", &["/belle/run7"]).as_deref(), Some("belle"));
        assert_eq!(account("/C=JP/CN=Hanako", &[]).as_deref(), Some("hanako"));
        assert_eq!(account("/C=JP/CN=Hanako", &["/belle/run7", "/bad"]), None);
        assert_eq!(account("/C=JP/CN=Eve", &production), None, "a denial counts before all");
        assert!(mapping.of_grid("/C=JP/CN=Jiro", &[], &files).is_none());
        for bad in ["dn:C=JP x", "fqan:belle x", "dn:/CN=a *", "\"dn:/CN=a b x", "\"dn:/CN=a b\" x y"] {
            assert!(Mapping::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn the_rules_of_one_account_decide_about_it_as_all_rules(
            rules in proptest::collection::vec(("[*abc]", "[xy]", "[*!abc]"), 0..12),
            needs_rule in any::<bool>(),
        ) {
            let text: String = rules.iter().map(|(user, site, to)| format!("{user}@{site} {to}\n")).collect();
            let (all, x) = (Mapping::parse(&text).unwrap(), SiteName::parse("x").unwrap());
            let own = if needs_rule { OwnUsers::NeedRule } else { OwnUsers::SameName(&x) };
            for account in ["a", "b"] {
                let some = Mapping::parse(&all.of_account(account, own)).unwrap();
                for who in ["a@x", "b@x", "c@x", "d@x", "a@y", "b@y", "c@y", "d@y", "a@z"] {
                    let who = Principal::parse(who).unwrap();
                    let is = |map: &Mapping| map.resolve(&who, own).account.as_deref() == Some(account);
                    prop_assert_eq!(is(&all), is(&some), "{} for {}: {}", who, account, &text);
                }
            }
        }

        #[test]
        fn rules_round_trip(user in "[A-Za-z0-9._][A-Za-z0-9._-]{0,10}", site in "[a-z][a-z0-9-]{0,8}") {
            let text = format!("{user}@{site} *");
            let mapping = Mapping::parse(&text).unwrap();
            prop_assert_eq!(mapping.rules()[0].to_string(), text);
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,120}") {
            let _ = Mapping::parse(&text);
        }
    }
}
