//! PROPFIND: properties of an entry and, with `Depth: 1`, of what is in a directory (RFC 4918, section 9.1).
//!
//! A directory is read once, in the order of the file system, while the client takes the response: memory is used for one
//! batch of entries. A whole tree in one response is refused.

use super::dead_properties;
use super::error::invalid;
use super::multistatus::{BEGIN, END, href, status_line, unmet};
use super::properties::{Entry, OF_ALL};
use super::request::{Depth, Target};
use super::session::Session;
use super::xml::{self, Element, XmlName};
use crate::http::activity::Activity;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::file::Item;
use renkei_mover::files::workspace::{Follow, Listing, Workspace};
use renkei_site::Site;
use renkei_site::files::body::{NextBlock, Streamed};
use std::fmt::Write as _;
use std::sync::Arc;

/// The properties that a client wants.
enum Wanted {
    /// The names of all.
    Names,
    /// All but costly ones, and these.
    All(Vec<XmlName>),
    /// These.
    These(Vec<XmlName>),
}

/// Answers PROPFIND.
pub(super) fn answer(
    session: &Session,
    target: Target,
    body: &[u8],
    activity: Activity,
) -> Result<Response, Error> {
    let wanted = Wanted::parse(body)?;
    let need = match target.depth()?.unwrap_or(Depth::Infinity) {
        Depth::Zero => Need::Look,
        Depth::One => Need::Examine,
        Depth::Infinity => return Ok(unmet(StatusCode::FORBIDDEN, "propfind-finite-depth", None)),
    };
    let body = Body::new(Streamed::new(responses(session, target, wanted, need)?, activity));
    Ok((StatusCode::MULTI_STATUS, [(CONTENT_TYPE, xml::TYPE)], body).into_response())
}

/// The response for an entry and, if it is to be examined, those for what is in it.
fn responses(session: &Session, target: Target, wanted: Wanted, need: Need) -> Result<NextBlock, Error> {
    let (files, path) = session.files(&target.place, need)?;
    let item = files.stat(&path, Follow::Yes)?;
    let is_listed = need == Need::Examine && item.entry.kind == EntryKind::Dir;
    let mut listing = is_listed.then(|| files.read_dir(&path)).transpose()?;
    let finder = Finder { site: session.site.clone(), files, place: target.place, path, wanted };
    let (mut own, mut is_done) = (Some(item), false);
    Ok(Box::new(move || {
        if is_done {
            return Ok(None);
        }
        let mut text = String::new();
        if let Some(item) = own.take() {
            text.push_str(BEGIN);
            let dead = finder.dead(&finder.path)?;
            finder.add(&mut text, &finder.place, &finder.path, &item, dead)?;
        }
        match listing.as_mut().map(Listing::next_batch).transpose()?.flatten() {
            Some(items) => finder.add_members(&mut text, items)?,
            None => {
                is_done = true;
                text.push_str(END);
            }
        }
        Ok(Some(text.into()))
    }))
}

impl Wanted {
    /// What a body asks for; without one all.
    fn parse(body: &[u8]) -> Result<Self, Error> {
        if body.is_empty() {
            return Ok(Wanted::All(Vec::new()));
        }
        let root = Element::parse(body)?;
        if !root.name.is_dav("propfind") {
            return Err(invalid("the document is no propfind"));
        }
        let names = |element: &Element| element.elements().map(|one| one.name.clone()).collect();
        match (root.child("propname"), root.child("allprop"), root.child("prop")) {
            (Some(_), None, None) => Ok(Wanted::Names),
            (None, Some(_), None) => Ok(Wanted::All(root.child("include").map(names).unwrap_or_default())),
            (None, None, Some(these)) => Ok(Wanted::These(names(these))),
            _ => Err(invalid("a propfind has one of propname, allprop and prop")),
        }
    }

    /// Whether dead properties are among them.
    fn is_of_clients(&self) -> bool {
        match self {
            Wanted::Names | Wanted::All(_) => true,
            Wanted::These(names) => names.iter().any(|name| !super::properties::is_live(name)),
        }
    }
}

/// The properties of an entry that are there, as markup, and the names of those that are not.
#[derive(Default)]
struct Properties {
    there: String,
    missing: String,
}

/// Finds the properties of a directory's entries.
struct Finder {
    site: Arc<Site>,
    files: Workspace,
    place: Place,
    path: RelPath,
    wanted: Wanted,
}

impl Finder {
    /// Adds the responses for entries of the directory.
    fn add_members(&self, text: &mut String, items: Vec<Item>) -> Result<(), Error> {
        let items = if self.wanted.is_of_clients() { self.with_attributes(items)? } else { items };
        items.into_iter().try_for_each(|item| self.add_member(text, item))
    }

    /// The entries with their extended attributes, but for symbolic links; those that are gone are left out.
    fn with_attributes(&self, items: Vec<Item>) -> Result<Vec<Item>, Error> {
        let (links, items): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| matches!(item.entry.kind, EntryKind::Symlink { .. }));
        let names: Vec<_> = items.iter().map(|item| item.entry.path.as_bytes().to_vec()).collect();
        let found = match self.files.stat_names(&self.path, &names) {
            Ok(found) => found,
            Err(error) if error.code == Code::Unsupported => items.into_iter().map(Some).collect(),
            Err(error) => return Err(error),
        };
        let mut all = links;
        for (name, item) in names.iter().zip(found) {
            let Some(mut item) = item else { continue };
            item.entry.path = RelPath::parse(name)?;
            all.push(item);
        }
        Ok(all)
    }

    /// Adds the response for an entry of the directory. A symbolic link is shown as the file that it leads to, or not.
    fn add_member(&self, text: &mut String, item: Item) -> Result<(), Error> {
        let name = item.entry.path.as_bytes();
        let path = self.path.child(name)?;
        let place = Place { path: self.place.path.child(name)?, ..self.place.clone() };
        let (item, dead) = match item.entry.kind {
            EntryKind::Symlink { .. } => match self.files.stat(&path, Follow::Yes) {
                Ok(item) => (item, self.dead(&path)?),
                Err(_) => return Ok(()),
            },
            _ => {
                let dead = dead_properties::among(&item.entry.meta.xattrs);
                (item, dead)
            }
        };
        match item.entry.kind {
            EntryKind::File { .. } | EntryKind::Dir => self.add(text, &place, &path, &item, dead),
            _ => Ok(()),
        }
    }

    /// The dead properties of an entry, if they are wanted.
    fn dead(&self, path: &RelPath) -> Result<Vec<Element>, Error> {
        match self.wanted.is_of_clients() {
            true => dead_properties::read(&self.files, path),
            false => Ok(Vec::new()),
        }
    }

    /// Adds the response for an entry with its dead properties.
    fn add(
        &self,
        text: &mut String,
        place: &Place,
        path: &RelPath,
        item: &Item,
        dead: Vec<Element>,
    ) -> Result<(), Error> {
        let entry = Entry { site: &self.site, files: &self.files, place, path, item };
        let Properties { there, missing } = self.find(&entry, &dead)?;
        write!(text, "<D:response>{}", href(place, entry.is_dir())).expect("a string takes everything");
        for (properties, status) in [(there, StatusCode::OK), (missing, StatusCode::NOT_FOUND)] {
            // A response without properties has an empty list that was found.
            if !properties.is_empty() || status == StatusCode::OK {
                let status = status_line(status);
                write!(text, "<D:propstat><D:prop>{properties}</D:prop>{status}</D:propstat>")
                    .expect("a string takes everything");
            }
        }
        text.push_str("</D:response>\n");
        Ok(())
    }

    fn find(&self, entry: &Entry<'_>, dead: &[Element]) -> Result<Properties, Error> {
        let mut found = Properties::default();
        let all = || OF_ALL.map(XmlName::dav);
        match &self.wanted {
            Wanted::Names => {
                for name in all() {
                    found.there.extend(entry.live(&name)?.map(|_| name.empty()));
                }
                found.there.extend(dead.iter().map(|property| property.name.empty()));
            }
            Wanted::All(more) => {
                for name in all().iter().chain(more) {
                    found.there.extend(entry.live(name)?);
                }
                found.there.extend(dead.iter().map(Element::markup));
            }
            Wanted::These(names) => {
                for name in names {
                    let of_client = || dead.iter().find(|one| one.name == *name).map(Element::markup);
                    match entry.live(name)?.or_else(of_client) {
                        Some(property) => found.there.push_str(&property),
                        None => found.missing.push_str(&name.empty()),
                    }
                }
            }
        }
        Ok(found)
    }
}
