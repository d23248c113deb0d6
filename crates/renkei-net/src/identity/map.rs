//! The file of the mapping from principals to accounts, and its use: from an authenticated principal to a local
//! account.

use super::account::Account;
use renkei_config::Config;
use renkei_config::home::{Home, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{AccountRule, Mapping, OwnUsers, Pattern, Principal, Rule, Verdict, Why};
use renkei_store::passwd::user_id;
use std::fmt::Display;

/// Largest file accepted.
const MAX_BYTES: u64 = 16 << 20;
/// The uid of `nobody` on Linux.
const NOBODY: u32 = 65_534;
/// Mode of the file: it holds no secret.
const MODE: u32 = 0o644;
/// The initial file of a PoP.
pub const TEMPLATE: &str = "\
# Who becomes which local account: one `PATTERN ACCOUNT` per line. Nobody else gets in.
#   alice@kek   alice      one user of another site
#   *@kek       guest      every other user of that site
#   *@osaka     *          users become the account of their own name (never root, nor one of the system)
#   eve@osaka   !          shut out, whatever else is said
";

/// Reads the mapping of `home`; an empty one if there is no file.
pub fn load(home: &Home) -> Result<Mapping, Error> {
    Mapping::parse(&text(home)?).map_err(|error| in_file(home, error))
}

fn text(home: &Home) -> Result<String, Error> {
    Ok(read_text(&home.map_file(), MAX_BYTES)?.unwrap_or_default())
}

fn in_file(home: &Home, mut error: Error) -> Error {
    error.subject = format!("{} ({})", home.map_file().display(), error.subject);
    error
}

/// Appends a rule; `false` if the same rule is there.
///
/// # Errors
/// `PathExists` if the pattern has another account.
pub fn add(home: &Home, pattern: &str, account: &str) -> Result<bool, Error> {
    let (pattern, account) = (Pattern::parse(pattern)?, AccountRule::parse(account)?);
    let same = rules_of(home, &pattern)?;
    if let Some(rule) = in_force(&same) {
        if rule.account == account {
            return Ok(false);
        }
        let cause = match rule.account {
            AccountRule::Nobody => {
                format!("line {} shuts it out; `renkei map remove {pattern}` first", rule.line)
            }
            _ if account == AccountRule::Nobody => return append(home, &pattern, &account),
            _ => format!("line {} maps it to {}; remove that first", rule.line, rule.account),
        };
        return Err(Error::new(Code::PathExists, "add rule", pattern, cause));
    }
    append(home, &pattern, &account)
}

fn append(home: &Home, pattern: &Pattern, account: &AccountRule) -> Result<bool, Error> {
    let text = text(home)?;
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let rule = Rule { pattern: pattern.clone(), account: account.clone(), line: 0 };
    write_file(&home.map_file(), format!("{text}{gap}{rule}\n").as_bytes(), MODE)?;
    Ok(true)
}

/// The rules with exactly this pattern, in the order of the file.
fn rules_of(home: &Home, pattern: &Pattern) -> Result<Vec<Rule>, Error> {
    Ok(load(home)?.rules().iter().filter(|rule| rule.pattern == *pattern).cloned().collect())
}

/// Of several rules with one pattern, the one in force.
fn in_force(rules: &[Rule]) -> Option<&Rule> {
    rules.iter().find(|rule| rule.account == AccountRule::Nobody).or(rules.first())
}

/// Denies a user, or with `*@SITE` all users of a site without a rule of their own. An existing rule with the same
/// pattern stays and has no effect as long as this one is there. `false` if the user is denied already.
///
/// # Errors
/// `UsageInvalid` for an invalid pattern.
pub fn deny(home: &Home, pattern: &str) -> Result<bool, Error> {
    add(home, pattern, "!")
}

/// Fails if a rule denies a principal.
///
/// # Errors
/// `ShutOut` if one does, and errors of the files.
pub fn refuse_shut_out(home: &Home, principal: &Principal) -> Result<(), Error> {
    let verdict = resolve(&load(home)?, &Config::load(home)?, principal);
    match verdict.why {
        Why::ShutOut { .. } => Err(Error::new(Code::ShutOut, "map", principal, verdict.why)),
        _ => Ok(()),
    }
}

/// Removes the rules with exactly this pattern; comments stay. If there are denials and other rules, only the denials
/// are removed, and the rule then in force is returned.
///
/// # Errors
/// `PathNotFound` if there is none.
pub fn remove(home: &Home, pattern: &str) -> Result<Option<Rule>, Error> {
    let pattern = Pattern::parse(pattern)?;
    let (denials, others): (Vec<Rule>, Vec<Rule>) =
        rules_of(home, &pattern)?.into_iter().partition(|rule| rule.account == AccountRule::Nobody);
    if denials.is_empty() && others.is_empty() {
        return Err(Error::new(Code::PathNotFound, "remove rule", pattern, "no rule has this pattern"));
    }
    if denials.is_empty() {
        remove_lines(home, &others)?;
        return Ok(None);
    }
    remove_lines(home, &denials)?;
    // Line numbers have changed.
    Ok(rules_of(home, &pattern)?.into_iter().next())
}

fn remove_lines(home: &Home, rules: &[Rule]) -> Result<(), Error> {
    let text = text(home)?;
    let doomed: Vec<usize> = rules.iter().map(|rule| rule.line).collect();
    let kept: String = text
        .split_inclusive('\n')
        .enumerate()
        .filter(|(index, _)| !doomed.contains(&(index + 1)))
        .map(|(_, line)| line)
        .collect();
    write_file(&home.map_file(), kept.as_bytes(), MODE)
}

/// Resolves a principal at the PoP with this configuration.
pub fn resolve(mapping: &Mapping, config: &Config, principal: &Principal) -> Verdict {
    let own = match &config.site {
        Some(site) if config.map_own_users => OwnUsers::SameName(site),
        _ => OwnUsers::NeedRule,
    };
    mapping.resolve(principal, own)
}

/// The account a principal works as here, if this process may serve it.
///
/// # Errors
/// `NotMapped`, `AccountUnknown` or `AccountNotServed`.
pub fn account_of(mapping: &Mapping, config: &Config, principal: &Principal) -> Result<Account, Error> {
    let verdict = resolve(mapping, config, principal);
    let Some(name) = verdict.account else {
        let code = if let Why::ShutOut { .. } = verdict.why { Code::ShutOut } else { Code::NotMapped };
        return Err(Error::new(code, "map", principal, verdict.why));
    };
    check_ordinary(principal, &verdict.why, &name, config)?;
    let account = Account::lookup(&name)?;
    account.check_servable()?;
    Ok(account)
}

/// Checks that a wildcard rule does not map to a system account.
///
/// # Errors
/// `NotMapped`.
pub fn check_ordinary(principal: &impl Display, why: &Why, name: &str, config: &Config) -> Result<(), Error> {
    let (Why::Rule { is_wildcard: true, .. }, Some(uid)) = (why, user_id(name)) else { return Ok(()) };
    let min = config.map_min_uid;
    if uid >= min && uid != NOBODY {
        return Ok(());
    }
    let cause = format!(
        "a rule with `*` leads to no account of the system: {name} has uid {uid}, `map_min_uid` is {min}; the administrator may name \
         the user: renkei map add {principal} {name}"
    );
    Err(Error::new(Code::NotMapped, "map", principal, cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::site;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        std::fs::write(home.map_file(), TEMPLATE).unwrap();
        (dir, home)
    }

    #[test]
    fn rules_are_added_and_removed_and_comments_are_preserved() {
        let (_dir, home) = home();
        assert!(add(&home, "alice@kek", "alice").unwrap());
        assert!(add(&home, "*@kek", "*").unwrap());
        assert!(!add(&home, "*@kek", "*").unwrap());
        let taro = "dn:/C=JP/O=NII/CN=Taro Yamada";
        assert!(add(&home, taro, "taro").unwrap() && !add(&home, taro, "taro").unwrap());
        remove(&home, taro).unwrap();
        assert_eq!(add(&home, "alice@kek", "bob").unwrap_err().code, Code::PathExists);
        assert_eq!(load(&home).unwrap().rules().len(), 2);
        remove(&home, "alice@kek").unwrap();
        assert_eq!(std::fs::read_to_string(home.map_file()).unwrap(), format!("{TEMPLATE}*@kek *\n"));
        assert_eq!(remove(&home, "alice@kek").unwrap_err().code, Code::PathNotFound);
    }

    #[test]
    fn a_blocked_user_stays_blocked_despite_other_rules() {
        let (_dir, home) = home();
        add(&home, "alice@kek", "alice").unwrap();
        add(&home, "*@kek", "*").unwrap();
        let account = |who: &str| {
            let config = Config { site: Some(site("osaka")), ..Config::default() };
            resolve(&load(&home).unwrap(), &config, &Principal::parse(who).unwrap()).account
        };
        assert!(deny(&home, "alice@kek").unwrap() && !deny(&home, "alice@kek").unwrap());
        assert_eq!((account("alice@kek"), account("bob@kek").as_deref()), (None, Some("bob")));
        let error = add(&home, "alice@kek", "alice").unwrap_err();
        assert!(error.code == Code::PathExists && error.cause.contains("shuts it out"), "{error}");
        // By hand, below a rule that allows.
        let text = std::fs::read_to_string(home.map_file()).unwrap();
        std::fs::write(home.map_file(), format!("{text}carol@kek carol\ncarol@kek !\n")).unwrap();
        assert_eq!(account("carol@kek"), None);
        // Users of the own site need no rule, and are denied by one.
        assert_eq!(account("dan@osaka").as_deref(), Some("dan"));
        deny(&home, "dan@osaka").unwrap();
        assert_eq!(account("dan@osaka"), None);
        remove(&home, "alice@kek").unwrap();
        assert_eq!(account("alice@kek").as_deref(), Some("alice"));
        remove(&home, "carol@kek").unwrap();
        assert_eq!(account("carol@kek").as_deref(), Some("carol"));
        deny(&home, "*@kek").unwrap();
        assert_eq!(account("bob@kek"), None);
    }

    #[test]
    fn a_rule_is_restored_when_its_user_is_unblocked() {
        let (_dir, home) = home();
        add(&home, "alice@kek", "guest").unwrap();
        let before = std::fs::read_to_string(home.map_file()).unwrap();
        deny(&home, "alice@kek").unwrap();
        assert!(!add(&home, "alice@kek", "!").unwrap());
        assert_eq!(add(&home, "alice@kek", "guest").unwrap_err().code, Code::PathExists, "it does not count");
        let again = remove(&home, "alice@kek").unwrap().unwrap();
        assert_eq!(again.to_string(), "alice@kek guest");
        assert_eq!(std::fs::read_to_string(home.map_file()).unwrap(), before);
        assert_eq!(remove(&home, "alice@kek").unwrap(), None);
        assert_eq!(load(&home).unwrap().rules().len(), 0);
    }

    #[test]
    fn invalid_rules_change_nothing() {
        let (_dir, home) = home();
        for (pattern, account) in [("alice", "alice"), ("a b@kek", "x"), ("a@kek", "-x"), ("a@kek", "")] {
            assert_eq!(add(&home, pattern, account).unwrap_err().code, Code::UsageInvalid);
        }
        std::fs::write(home.map_file(), "a@kek\n").unwrap();
        let error = add(&home, "b@kek", "b").unwrap_err();
        assert!(error.code == Code::ConfigInvalid && error.cause.contains("line 1"), "{error}");
    }

    #[test]
    fn a_principal_maps_to_an_account_or_gets_the_reason() {
        let mapping = Mapping::parse("a@kek root\nb@kek no-such-account\n").unwrap();
        let config = Config { site: Some(site("osaka")), ..Config::default() };
        let code = |who: &str| {
            account_of(&mapping, &config, &Principal::parse(who).unwrap()).map_err(|error| error.code)
        };
        assert_eq!(code("b@kek"), Err(Code::AccountUnknown));
        assert_eq!(code("c@kek"), Err(Code::NotMapped));
        assert_eq!(code("osaka"), Err(Code::NotMapped));
        let own = Account::own().unwrap();
        assert_eq!(code(&format!("{}@osaka", own.name)), Ok(own.clone()));
        let strict = Config { map_own_users: false, ..config.clone() };
        let me = Principal::parse(&format!("{}@osaka", own.name)).unwrap();
        assert_eq!(account_of(&mapping, &strict, &me).unwrap_err().code, Code::NotMapped);
    }
}
