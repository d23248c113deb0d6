//! Extended attributes of the nodes of a volume.
//!
//! A node with extended attributes has a second node that holds them all. So its own row stays as short as those of
//! others, and the second one is logged, copied and laid over as any node. Peers of wire 3 know no such nodes, and are
//! told nothing of them.

use super::{Change, Delta, Kind, Node, NodeId, Record};
use crate::entry::Xattr;
use crate::error::{Code, Error};
use crate::path::printable;

/// Most bytes of the names and values of one node, as in common file systems.
pub const MAX_XATTRS_BYTES: usize = 64 << 10;

/// Longest name, as in Linux.
const MAX_XATTR_NAME_BYTES: usize = 255;

/// The beginning of the names.
const USER: &[u8] = b"user.";

/// Bit of the numbers of nodes with attributes: no site draws so many numbers.
const BIT: u64 = 1 << 46;

impl NodeId {
    /// The node with the extended attributes of this one.
    pub fn xattrs(self) -> NodeId {
        NodeId(self.0 | BIT)
    }

    /// The node whose extended attributes this one has, if it is such a node.
    pub fn described(self) -> Option<NodeId> {
        (self.0 & BIT != 0).then_some(NodeId(self.0 & !BIT))
    }
}

impl Node {
    /// Whether it has the extended attributes of another one.
    pub fn is_xattrs(&self) -> bool {
        matches!(self.kind, Kind::Xattrs(_))
    }

    /// The extended attributes in it.
    pub fn into_xattrs(self) -> Vec<Xattr> {
        match self.kind {
            Kind::Xattrs(xattrs) => xattrs,
            _ => Vec::new(),
        }
    }
}

/// Extended attributes after one of them was set, or removed.
///
/// # Errors
/// `Unsupported` for a name without `user.`, a name that is too long, and more than [`MAX_XATTRS_BYTES`].
pub fn with_xattr(before: Vec<Xattr>, name: &[u8], value: Option<&[u8]>) -> Result<Vec<Xattr>, Error> {
    let refused = |cause: String| Err(Error::new(Code::Unsupported, "set attribute", printable(name), cause));
    if !name.starts_with(USER) || name.contains(&0) {
        return refused("volumes keep the attributes of users, user.NAME".into());
    }
    if name.len() > MAX_XATTR_NAME_BYTES {
        return refused(format!("a name has at most {MAX_XATTR_NAME_BYTES} bytes"));
    }
    let mut after = before;
    after.retain(|xattr| xattr.name != name && xattr.name.starts_with(USER));
    after.extend(value.map(|value| Xattr { name: name.to_vec(), value: value.to_vec() }));
    after.sort_by(|a, b| a.name.cmp(&b.name));
    let bytes: usize = after.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
    match bytes > MAX_XATTRS_BYTES && value.is_some() {
        true => refused(format!("a file has at most {MAX_XATTRS_BYTES} bytes of attributes")),
        false => Ok(after),
    }
}

/// The changes that turn the extended attributes of a node into others; those of the system are left out.
pub fn changes_of(id: NodeId, before: &[Xattr], after: &[Xattr]) -> Vec<Change> {
    let change = |name: &[u8], value| Change::SetXattr { id, name: name.to_vec(), value };
    let is_users = |xattr: &&Xattr| xattr.name.starts_with(USER);
    let gone = before.iter().filter(is_users).filter(|old| after.iter().all(|new| new.name != old.name));
    let set = after.iter().filter(is_users).filter(|new| !before.contains(new));
    gone.map(|old| change(&old.name, None))
        .chain(set.map(|new| change(&new.name, Some(new.value.clone()))))
        .collect()
}

impl Record {
    /// The record as sites of wire 3 have it.
    #[must_use]
    pub fn without_xattrs(mut self) -> Record {
        if let Ok(Delta { nodes, .. }) = &mut self.outcome {
            nodes.retain(|(_, node)| !node.as_ref().is_some_and(Node::is_xattrs));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{Origin, ROOT};

    fn xattr(name: &str, value: &str) -> Xattr {
        Xattr { name: name.into(), value: value.into() }
    }

    #[test]
    fn attributes_have_a_node_that_no_site_draws() {
        for id in [ROOT, Origin(0).id(1), Origin::HOME.id(7)] {
            assert_eq!(id.xattrs().described(), Some(id));
            assert_eq!((id.described(), id.xattrs().drawn()), (None, None));
        }
    }

    #[test]
    fn attributes_are_bounded_and_those_of_users() {
        let set = |before, name: &str, value: &[u8]| with_xattr(before, name.as_bytes(), Some(value));
        let one = set(Vec::new(), "user.b", b"1").unwrap();
        let two = set(one.clone(), "user.a", b"2").unwrap();
        assert_eq!(two, [xattr("user.a", "2"), xattr("user.b", "1")]);
        assert_eq!(with_xattr(two.clone(), b"user.a", None).unwrap(), one);
        let most = MAX_XATTRS_BYTES - "user.a".len();
        assert!(set(Vec::new(), "user.a", &vec![0; most]).is_ok());
        for (name, bytes) in [("user.a", most + 1), ("trusted.a", 1), ("system.posix_acl_access", 1)] {
            assert_eq!(set(Vec::new(), name, &vec![0; bytes]).unwrap_err().code, Code::Unsupported);
        }
        let long = format!("user.{}", "n".repeat(250));
        assert!(set(Vec::new(), &long, b"").is_ok() && set(Vec::new(), &(long + "n"), b"").is_err());
    }

    #[test]
    fn changes_lead_from_one_state_to_the_other() {
        let before = [xattr("user.a", "1"), xattr("user.b", "1"), xattr("user.c", "1")];
        let acl = xattr("system.posix_acl_access", "x");
        let after = [acl, xattr("user.b", "2"), xattr("user.c", "1"), xattr("user.d", "1")];
        let changes = changes_of(ROOT, &before, &after);
        assert_eq!(changes.len(), 3);
        let mut reached = before.to_vec();
        for change in changes {
            let Change::SetXattr { id: ROOT, name, value } = change else { panic!("{change:?}") };
            reached = with_xattr(reached, &name, value.as_deref()).unwrap();
        }
        assert_eq!(reached, after[1..]);
    }
}
