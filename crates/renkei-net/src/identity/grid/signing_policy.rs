//! Signing policies: the names that an authority may issue, in the form of Globus (EACL).
//!
//! ```text
//! access_id_CA   X509    '/C=JP/O=NII/CN=Grid CA'
//! pos_rights     globus  CA:sign
//! cond_subjects  globus  '"/C=JP/O=NII/*" "/C=JP/O=KEK/*"'
//! ```

use renkei_core::identity::grid_name::{canonical_dn, matches};

/// Most subjects of a file.
const MAX_SUBJECTS: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    authority: String,
    signs: bool,
    subjects: Vec<String>,
}

/// The entries of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigningPolicy(Vec<Entry>);

impl SigningPolicy {
    /// Parses a file.
    ///
    /// # Errors
    /// The line that cannot be used, and why: a policy that is not understood allows nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries: Vec<Entry> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let bad = |cause: &str| format!("line {}: {cause}", index + 1);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (word, rest) = line.split_once(char::is_whitespace).ok_or_else(|| bad("a word alone"))?;
            let (_, value) = rest.trim().split_once(char::is_whitespace).ok_or_else(|| bad("no value"))?;
            match (word, entries.last_mut()) {
                ("access_id_CA", _) => {
                    let authority = quoted(value).into_iter().next().ok_or_else(|| bad("no name"))?;
                    entries.push(Entry { authority: canonical_pattern(authority), ..Entry::default() });
                }
                ("pos_rights", Some(entry)) => entry.signs |= value.trim() == "CA:sign",
                ("cond_subjects", Some(entry)) => {
                    entry.subjects.extend(quoted(value).into_iter().map(canonical_pattern));
                    if entry.subjects.len() > MAX_SUBJECTS {
                        return Err(bad("too many subjects"));
                    }
                }
                ("neg_rights", _) => return Err(bad("neg_rights is not supported")),
                _ => return Err(bad("not access_id_CA, pos_rights or cond_subjects after a name")),
            }
        }
        Ok(SigningPolicy(entries))
    }

    /// Whether an authority may issue a name.
    pub fn allows(&self, authority: &str, subject: &str) -> bool {
        let of_authority = self.0.iter().filter(|entry| entry.signs && entry.authority == authority);
        of_authority.flat_map(|entry| &entry.subjects).any(|pattern| matches(pattern, subject))
    }
}

fn canonical_pattern(text: &str) -> String {
    canonical_dn(text).unwrap_or_else(|| text.to_owned())
}

/// The texts in quotes: `'"a" "b"'`, `'a'` or `"a"`.
fn quoted(value: &str) -> Vec<&str> {
    let value = value.trim();
    let inner = value.strip_prefix('\'').and_then(|rest| rest.split('\'').next()).unwrap_or(value);
    match inner.contains('"') {
        true => inner.split('"').skip(1).step_by(2).collect(),
        false => vec![inner.trim()].into_iter().filter(|text| !text.is_empty()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_issues_the_names_of_its_entry() {
        let text = "# EACL\naccess_id_CA X509 '/C=JP/CN=Grid CA'\npos_rights globus CA:sign\n\
                    cond_subjects globus '\"/C=JP/O=NII/*\" \"/C=JP/O=KEK/CN=a b\"'\n\
                    access_id_CA X509 '/C=JP/CN=Other'\npos_rights globus CA:sign\ncond_subjects globus \"/O=x/*\"\n\
                    access_id_CA X509 '/C=JP/CN=Idle'\ncond_subjects globus '*'\n";
        let policy = SigningPolicy::parse(text).unwrap();
        let allows = |authority, subject| policy.allows(authority, subject);
        assert!(
            allows("/C=JP/CN=Grid CA", "/C=JP/O=NII/CN=Taro")
                && allows("/C=JP/CN=Grid CA", "/C=JP/O=KEK/CN=a b")
        );
        assert!(!allows("/C=JP/CN=Grid CA", "/O=x/CN=a") && allows("/C=JP/CN=Other", "/O=x/CN=a"));
        assert!(!allows("/C=JP/CN=Idle", "/O=x/CN=a"), "it has no right to sign");
        assert!(!allows("/C=JP/CN=Unknown", "/C=JP/O=NII/CN=Taro"));
    }

    #[test]
    fn a_policy_that_is_not_understood_is_an_error() {
        for bad in [
            "cond_subjects globus '*'",
            "access_id_CA X509",
            "x",
            "neg_rights globus CA:sign",
            "access_id_CA X509 ''",
        ] {
            assert!(SigningPolicy::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(SigningPolicy::parse("# nothing\n").unwrap(), SigningPolicy::default());
    }
}
