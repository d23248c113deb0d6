//! Names of files in the buffer: `/~buffer/TRANSFER/NUMBER`, the sources of a transfer by their index.
//!
//! To the mover this is a place like any other. No storage can have this name, and no user can write such a place on
//! a command line: a tilde is not allowed in labels.

use crate::ids::TransferId;
use crate::path::{Place, RelPath};

/// The buffer's name among the storages.
pub const STORAGE: &str = "~buffer";

/// The directory of a transfer's files in the buffer.
pub fn place(transfer: &TransferId) -> Place {
    Place { storage: STORAGE.into(), path: name(&digits(transfer)) }
}

/// One source of a transfer in the buffer.
pub fn source(transfer: &TransferId, number: usize) -> Place {
    let path = name(&format!("{}/{number}", digits(transfer)));
    Place { storage: STORAGE.into(), path }
}

/// Splits a place in the buffer into its transfer and the path among that transfer's files; `None` for any other
/// place.
pub fn split(place: &Place) -> Option<(TransferId, RelPath)> {
    if place.storage != STORAGE {
        return None;
    }
    let first = std::str::from_utf8(place.path.components().next()?).ok()?;
    let id = u128::from_str_radix(first, 16).ok()?.to_be_bytes();
    let top = name(&digits(&id));
    Some((id, place.path.below(&top)?)).filter(|_| digits(&id) == first)
}

fn digits(transfer: &TransferId) -> String {
    format!("{:032x}", u128::from_be_bytes(*transfer))
}

fn name(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).expect("digits and one slash are a path")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::is_label;

    #[test]
    fn places_name_their_transfer() {
        let id = [0xab; 16];
        assert_eq!(split(&place(&id)), Some((id, RelPath::root())));
        assert_eq!(split(&source(&id, 12)), Some((id, name("12"))));
        assert_eq!(source(&[0; 16], 3).to_string(), format!("/~buffer/{}/3", "0".repeat(32)));
        let at = |storage: &str, path: &str| Place { storage: storage.into(), path: name(path) };
        let upper = "AB".repeat(16);
        for other in [at("data", &digits(&id)), at(STORAGE, &upper), at(STORAGE, "ab"), at(STORAGE, "x/0")] {
            assert_eq!(split(&other), None, "{other}");
        }
        assert_eq!(split(&Place { storage: STORAGE.into(), path: RelPath::root() }), None);
    }

    #[test]
    fn buffer_places_cannot_be_written_by_users() {
        assert!(!is_label(STORAGE));
        assert!(Place::parse(place(&[1; 16]).to_string().as_bytes()).is_err());
    }
}
