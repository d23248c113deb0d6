//! Edits config.toml for commands, preserving comments, order and blank lines.

use super::{Config, LABEL_RULE, Rule, Storage, Then};
use crate::home::{Home, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, SiteName, is_label};
use renkei_core::wire::message::Class;
use std::net::SocketAddr;
use std::path::Path;
use toml_edit::{DocumentMut, Item, Table, value};

/// Mode of config.toml: it holds no secret.
const MODE: u32 = 0o644;

/// The initial config.toml of a PoP.
pub fn template(site: &SiteName, listen: &[SocketAddr], endpoints: &[String]) -> String {
    // Commented keys precede `site`: tables are appended later, and a key after them would belong to the last table.
    let line = |key: &str, texts: Vec<String>, example: &str| match texts.is_empty() {
        true => format!("# {key} = {example}\n"),
        false => format!("{key} = {}\n", toml::Value::from(texts)),
    };
    let listen = listen.iter().map(SocketAddr::to_string).collect();
    format!(
        "# Configuration of the PoP of site {site}; docs/config.md has every field.\n{}{}site = \"{site}\"\n",
        line("listen", listen, "\"0.0.0.0:7512\""),
        line(
            "endpoints",
            endpoints.to_vec(),
            "[\"pop.example.org:7512\"]  # as other sites reach it; partners learn a change by themselves"
        ),
    )
}

/// Adds a storage to the file of `home`.
pub fn add_storage(home: &Home, name: &str, storage: &Storage) -> Result<(), Error> {
    add(home, "storage", name, to_table(storage)?)
}

/// Removes a storage from the file of `home`; its data is not touched.
pub fn remove_storage(home: &Home, name: &str) -> Result<(), Error> {
    let unknown = Error::new(Code::StorageUnknown, "remove storage", name, "not in config.toml");
    remove(home, "storage", name, unknown)
}

/// Sets whether a storage is stopped while nothing is mounted at its root.
pub fn set_require_mount(home: &Home, name: &str, is_required: bool) -> Result<(), Error> {
    let unknown = || Error::new(Code::StorageUnknown, "change storage", name, "not in config.toml");
    change(home, |document| {
        let table = tables(document, "storage")?.get_mut(name).and_then(Item::as_table_like_mut);
        table.ok_or_else(unknown)?.insert("require_mount", value(is_required));
        Ok(())
    })
}

/// Adds a rule to the file of `home`.
pub fn add_rule(home: &Home, name: &str, rule: &Rule) -> Result<(), Error> {
    let mut table = Table::new();
    table.insert("from", value(in_utf8("add rule", &rule.from)?));
    table.insert("to", value(in_utf8("add rule", &rule.to)?));
    table.insert("settle_s", value(i64::try_from(rule.settle_s).unwrap_or(i64::MAX)));
    if rule.then == Then::Remove {
        table.insert("then", value("remove"));
    }
    if rule.class == Class::Background {
        table.insert("class", value("background"));
    }
    add(home, "rule", name, table)
}

/// Removes a rule from the file of `home`.
pub fn remove_rule(home: &Home, name: &str) -> Result<(), Error> {
    let unknown = Error::new(Code::PathNotFound, "remove rule", name, "config.toml has no rule of that name");
    remove(home, "rule", name, unknown)
}

/// Adds the table `[KIND.NAME]`.
fn add(home: &Home, kind: &str, name: &str, table: Table) -> Result<(), Error> {
    let op = format!("add {kind}");
    if !is_label(name) {
        return Err(Error::new(Code::UsageInvalid, &op, name, LABEL_RULE));
    }
    change(home, |document| {
        let named = tables(document, kind)?;
        if named.contains_key(name) {
            return Err(Error::new(Code::PathExists, &op, name, format!("there is a {kind} of that name")));
        }
        named.insert(name, Item::Table(table));
        Ok(())
    })
}

fn remove(home: &Home, kind: &str, name: &str, unknown: Error) -> Result<(), Error> {
    change(home, |document| match tables(document, kind)?.remove(name) {
        Some(_) => Ok(()),
        None => Err(unknown),
    })
}

fn in_utf8(op: &str, place: &EndpointPath) -> Result<String, Error> {
    let text = place.to_string();
    // A path that is not UTF-8 is printed with escapes, which would not be parsed back.
    let read_back = EndpointPath::parse(text.as_bytes()).ok().flatten();
    if read_back.is_some_and(|read| (read.site, read.place) == (place.site.clone(), place.place.clone())) {
        return Ok(text);
    }
    Err(Error::new(Code::UsageInvalid, op, text, "config.toml can only hold a path in UTF-8"))
}

/// Sets the site's name; returns whether it was another one.
pub fn set_site(home: &Home, site: &SiteName) -> Result<bool, Error> {
    let mut changed = false;
    change(home, |document| {
        changed = document.get("site").and_then(Item::as_str).is_some_and(|name| name != site.as_str());
        if changed {
            document["site"] = value(site.as_str());
        }
        Ok(())
    })?;
    Ok(changed)
}

/// Adds a site to the hubs that lines are kept to.
pub fn add_reverse(home: &Home, site: &SiteName) -> Result<(), Error> {
    add_to_list(home, "reverse", site.as_str())
}

/// Adds a site to those whose PoPs may have private addresses.
pub fn allow_private(home: &Home, site: &str) -> Result<(), Error> {
    add_to_list(home, "relay_private", site)
}

/// Removes a site from those whose PoPs may have private addresses.
pub fn disallow_private(home: &Home, site: &str) -> Result<(), Error> {
    let is_listed = Config::load(home)?.relay_private.iter().any(|listed| listed == site);
    if !is_listed {
        return Ok(());
    }
    change(home, |document| {
        if let Some(list) = document.get_mut("relay_private").and_then(Item::as_array_mut) {
            list.retain(|listed| listed.as_str() != Some(site));
        }
        Ok(())
    })
}

/// Adds a text to a top-level list of the file.
fn add_to_list(home: &Home, key: &str, text: &str) -> Result<(), Error> {
    change(home, |document| {
        let before = document.get(key).cloned();
        let mut texts: Vec<String> = match &before {
            Some(item) => item.as_array().map_or_else(
                || item.as_str().map(str::to_owned).into_iter().collect(),
                |list| list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect(),
            ),
            None => Vec::new(),
        };
        if !texts.iter().any(|known| known == text) {
            texts.push(text.to_owned());
        }
        document[key] = value(texts.into_iter().collect::<toml_edit::Array>());
        Ok(())
    })
}

/// Adds a folder of grid authorities; `false` if it is there.
pub fn add_grid_authorities(home: &Home, dir: &Path) -> Result<bool, Error> {
    if Config::load(home)?.grid.authorities.iter().any(|known| known == dir) {
        return Ok(false);
    }
    let text = dir.to_str().ok_or_else(|| {
        let cause = "config.toml can only hold a path in UTF-8";
        Error::new(Code::UsageInvalid, "add authorities", dir.display(), cause)
    })?;
    change(home, |document| {
        let list = tables(document, "grid")?.entry("authorities").or_insert(value(toml_edit::Array::new()));
        let bad = || Error::new(Code::ConfigInvalid, "edit configuration", "grid.authorities", "not a list");
        list.as_array_mut().ok_or_else(bad)?.push(text);
        Ok(())
    })?;
    Ok(true)
}

/// Removes a folder of grid authorities.
pub fn remove_grid_authorities(home: &Home, dir: &Path) -> Result<(), Error> {
    if !Config::load(home)?.grid.authorities.iter().any(|known| known == dir) {
        let cause = "`grid.authorities` does not name it; the folder below `grid.directory` is used as long as that is set";
        return Err(Error::new(Code::PathNotFound, "remove authorities", dir.display(), cause));
    }
    change(home, |document| {
        if let Some(list) = tables(document, "grid")?.get_mut("authorities").and_then(Item::as_array_mut) {
            list.retain(|listed| listed.as_str().map(Path::new) != Some(dir));
        }
        Ok(())
    })
}

fn to_table(storage: &Storage) -> Result<Table, Error> {
    let path = storage.path.to_str().ok_or_else(|| {
        let cause = "config.toml can only hold a path in UTF-8";
        Error::new(Code::UsageInvalid, "add storage", storage.path.display(), cause)
    })?;
    let mut table = Table::new();
    if !path.is_empty() {
        table.insert("path", value(path));
    }
    if let Some(agent) = &storage.agent {
        table.insert("agent", value(agent.as_str()));
    }
    if storage.read_only {
        table.insert("read_only", value(true));
    }
    if storage.require_mount {
        table.insert("require_mount", value(true));
    }
    if let Some(account) = &storage.account {
        table.insert("account", value(account.as_str()));
    }
    Ok(table)
}

/// The tables of one kind, such as `[storage.NAME]`.
fn tables<'a>(document: &'a mut DocumentMut, kind: &str) -> Result<&'a mut Table, Error> {
    let mut implicit = Table::new();
    implicit.set_implicit(true);
    document.entry(kind).or_insert(Item::Table(implicit)).as_table_mut().ok_or_else(|| {
        let cause = format!("write each as a table: [{kind}.NAME]");
        Error::new(Code::ConfigInvalid, "edit configuration", kind, cause)
    })
}

/// Applies one change and writes the file atomically, if the result is a valid configuration.
fn change(home: &Home, edit: impl FnOnce(&mut DocumentMut) -> Result<(), Error>) -> Result<(), Error> {
    let path = home.config_file();
    let text = read_text(&path, super::MAX_FILE_BYTES)?.unwrap_or_default();
    Config::parse(&text, &path)?.site(home)?;
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        Error::new(Code::ConfigInvalid, "edit configuration", path.display(), error.message())
    })?;
    edit(&mut document)?;
    let edited = document.to_string();
    Config::parse(&edited, &path)?;
    write_file(&path, edited.as_bytes(), MODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(text: &str) -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.toml"), text).unwrap();
        let home = Home::at(dir.path());
        (dir, home)
    }

    fn storage(path: &str) -> Storage {
        Storage { path: path.into(), ..Storage::default() }
    }

    #[test]
    fn folders_of_grid_authorities_are_added_once_and_removed() {
        let (_dir, home) = home("site = 'kek'\n# kept\n");
        let dir = Path::new("/etc/authorities");
        assert!(add_grid_authorities(&home, dir).unwrap() && !add_grid_authorities(&home, dir).unwrap());
        assert_eq!(Config::load(&home).unwrap().grid.authorities, [dir]);
        remove_grid_authorities(&home, dir).unwrap();
        assert!(Config::load(&home).unwrap().grid.authorities.is_empty());
        assert_eq!(remove_grid_authorities(&home, dir).unwrap_err().code, Code::PathNotFound);
        assert!(std::fs::read_to_string(home.config_file()).unwrap().contains("# kept"));
    }

    #[test]
    fn comments_survive_adding_and_removing() {
        let text = "# mine\nsite = 'kek' # ours\n\n[storage.old] # the old one\npath = '/old'\n";
        let (_dir, home) = home(text);
        add_storage(&home, "data", &Storage { read_only: true, ..storage("/lustre/data") }).unwrap();
        let added = std::fs::read_to_string(home.config_file()).unwrap();
        assert!(added.starts_with(text), "{added}");
        assert!(Config::load(&home).unwrap().storage["data"].read_only);
        remove_storage(&home, "data").unwrap();
        let of_agent = Storage { agent: Some("alice".into()), ..Storage::default() };
        add_storage(&home, "scratch", &of_agent).unwrap();
        assert_eq!(Config::load(&home).unwrap().storage["scratch"], of_agent);
        remove_storage(&home, "scratch").unwrap();
        assert_eq!(std::fs::read_to_string(home.config_file()).unwrap(), text);
    }

    #[test]
    fn a_trailing_slash_of_a_place_is_ignored() {
        for place in ["kek:/data/drop", "kek:/data/drop/"] {
            let place = EndpointPath::parse(place.as_bytes()).unwrap().unwrap();
            assert_eq!(in_utf8("add rule", &place).unwrap().trim_end_matches('/'), "kek:/data/drop");
        }
        let place = EndpointPath::parse(b"kek:/data/\xff").unwrap().unwrap();
        assert_eq!(in_utf8("add rule", &place).unwrap_err().code, Code::UsageInvalid);
    }

    #[test]
    fn require_mount_is_set_and_cleared() {
        let (_dir, home) = home("site = 'kek'\n[storage.a]\npath = '/a' # there\n");
        assert!(!Config::load(&home).unwrap().storage["a"].require_mount);
        set_require_mount(&home, "a", true).unwrap();
        assert!(Config::load(&home).unwrap().storage["a"].require_mount);
        set_require_mount(&home, "a", false).unwrap();
        assert!(!Config::load(&home).unwrap().storage["a"].require_mount);
        assert!(std::fs::read_to_string(home.config_file()).unwrap().contains("'/a' # there"));
        assert_eq!(set_require_mount(&home, "b", true).unwrap_err().code, Code::StorageUnknown);
        let mounted = Storage { require_mount: true, ..storage("/b") };
        add_storage(&home, "b", &mounted).unwrap();
        assert_eq!(Config::load(&home).unwrap().storage["b"], mounted);
    }

    #[test]
    fn the_template_is_a_good_configuration() {
        let site = SiteName::parse("kek").unwrap();
        let (_dir, home) = home(&template(&site, &["127.0.0.1:9".parse().unwrap()], &["a:1".into()]));
        let config = Config::load(&home).unwrap();
        assert_eq!((config.listen[0].port(), config.endpoints[0].as_str()), (9, "a:1"));
        assert_eq!(config.site(&home).unwrap(), &site);
        add_storage(&home, "data", &storage("/d")).unwrap();
        assert_eq!(Config::load(&home).unwrap().storage.len(), 1);
    }

    #[test]
    fn settings_commented_out_in_the_template_can_be_enabled_after_an_edit() {
        let (_dir, home) = home(&template(&SiteName::parse("kek").unwrap(), &[], &[]));
        add_storage(&home, "data", &storage("/d")).unwrap();
        let text = std::fs::read_to_string(home.config_file()).unwrap();
        std::fs::write(
            home.config_file(),
            text.replace("# endpoints", "endpoints").replace("# listen", "listen"),
        )
        .unwrap();
        assert_eq!(Config::load(&home).unwrap().endpoints, ["pop.example.org:7512"]);
    }

    #[test]
    fn invalid_values_are_refused_and_change_nothing() {
        let (_dir, home) = home("site = 'kek'\n[storage.a]\npath = '/a'\n");
        let before = std::fs::read(home.config_file()).unwrap();
        assert_eq!(add_storage(&home, "a", &storage("/b")).unwrap_err().code, Code::PathExists);
        assert_eq!(add_storage(&home, "A", &storage("/b")).unwrap_err().code, Code::UsageInvalid);
        assert_eq!(add_storage(&home, "b", &storage("b")).unwrap_err().code, Code::ConfigInvalid);
        assert_eq!(remove_storage(&home, "c").unwrap_err().code, Code::StorageUnknown);
        assert_eq!(std::fs::read(home.config_file()).unwrap(), before);
    }

    #[test]
    fn editing_without_a_configuration_fails() {
        let dir = tempfile::tempdir().unwrap();
        let error = add_storage(&Home::at(dir.path()), "a", &storage("/b")).unwrap_err();
        assert_eq!(error.code, Code::NotInitialised);
    }
}
