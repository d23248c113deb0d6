//! Dead properties: those that clients set, and the PoP only keeps (RFC 4918, section 4).
//!
//! All of an entry are one document in one extended attribute. So a change of several is atomic, and they travel with
//! renames and copies as other attributes of users do. Non-goal: places without extended attributes.

use super::xml::Element;
use renkei_core::entry::Xattr;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_mover::files::workspace::Workspace;

/// The attribute.
const ATTRIBUTE: &[u8] = b"user.dav.properties";
/// Longest value of an attribute (linux/limits.h).
const MAX_BYTES: usize = 64 << 10;

/// The dead properties of an entry. A value that is not of this form is none.
pub(super) fn read(files: &Workspace, path: &RelPath) -> Result<Vec<Element>, Error> {
    let value = match files.xattr(path, ATTRIBUTE) {
        Ok(value) => value.unwrap_or_default(),
        Err(error) if error.code == Code::Unsupported => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(parse(&value))
}

/// The dead properties among the attributes of an entry.
pub(super) fn among(xattrs: &[Xattr]) -> Vec<Element> {
    xattrs.iter().find(|xattr| xattr.name == ATTRIBUTE).map(|xattr| parse(&xattr.value)).unwrap_or_default()
}

fn parse(value: &[u8]) -> Vec<Element> {
    Element::parse(value).map(|root| root.elements().cloned().collect()).unwrap_or_default()
}

/// Sets the dead properties of an entry.
///
/// # Errors
/// `NoSpace` if they do not fit an attribute; those of [`Workspace::set_xattr`].
pub(super) fn write(files: &Workspace, path: &RelPath, properties: &[Element]) -> Result<(), Error> {
    if properties.is_empty() {
        return files.remove_xattr(path, ATTRIBUTE);
    }
    let all: String = properties.iter().map(Element::markup).collect();
    let value = format!("<properties version=\"1\">{all}</properties>");
    if value.len() > MAX_BYTES {
        let cause = format!("an entry has at most {MAX_BYTES} bytes of properties");
        return Err(Error::new(Code::NoSpace, "set property", path, cause));
    }
    files.set_xattr(path, ATTRIBUTE, value.as_bytes())
}
