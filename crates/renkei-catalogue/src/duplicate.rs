//! A consistent copy of an SQLite database, also while a PoP uses it.

use super::database::{copy, create_private};
use super::failed;
use renkei_config::home::file_error;
use renkei_core::error::{Code, Error};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Copies the database in a file to a new file, which is durable when this returns.
///
/// # Errors
/// `CatalogueFailed`, and those of the file system.
pub fn duplicate(from: &Path, to: &Path) -> Result<(), Error> {
    create_private(from)?;
    let name = to.to_str().ok_or_else(|| {
        Error::new(Code::UsageInvalid, "copy database", to.display(), "the path must be UTF-8")
    })?;
    copy(from, name).map_err(|error| failed("copy", &from.display().to_string(), &error))?;
    let done = || {
        std::fs::set_permissions(to, Permissions::from_mode(0o600))?;
        File::open(to)?.sync_all()
    };
    done().map_err(|error| file_error("sync", to, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trees;
    use renkei_config::home::Home;

    #[test]
    fn a_tree_is_copied_while_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let (home, other) = (Home::at(&dir.path().join("it's")), Home::at(&dir.path().join("other")));
        let tree = Trees::open("", &home).unwrap().tree([7; 16]).unwrap();
        tree.set_note("key", b"value").unwrap();
        let file = |home: &Home| home.state_dir().join(format!("volumes/{}.sqlite", "07".repeat(16)));
        renkei_config::home::make_private_dir(file(&other).parent().unwrap()).unwrap();
        duplicate(&file(&home), &file(&other)).unwrap();
        assert_eq!(duplicate(&file(&home), &file(&other)).unwrap_err().code, Code::CatalogueFailed);
        tree.set_note("key", b"later").unwrap();
        let copy = Trees::open("", &other).unwrap().tree([7; 16]).unwrap();
        assert_eq!(copy.note("key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}
