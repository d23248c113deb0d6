//! Live properties: those that the PoP computes (RFC 4918, section 15; RFC 4331; checksums as dCache and StoRM name them).

use super::digest;
use super::locks::described;
use super::request::{system_time, tag};
use super::xml::{DAV, XmlName, text};
use renkei_core::entry::EntryKind;
use renkei_core::error::Error;
use renkei_core::path::{Place, RelPath, printable};
use renkei_core::wire::file::{Freshness, Item};
use renkei_core::wire::message::Algorithm;
use renkei_mover::files::workspace::Workspace;
use renkei_net::identity::certificate::utc;
use renkei_site::Site;
use std::sync::Arc;

/// The properties of WebDAV that each entry has, as far as they apply to it.
pub(super) const OF_ALL: [&str; 9] = [
    "creationdate",
    "displayname",
    "getcontentlength",
    "getcontenttype",
    "getetag",
    "getlastmodified",
    "lockdiscovery",
    "resourcetype",
    "supportedlock",
];
/// Those that are costly, and so only given by name.
const BY_NAME: [(&str, &str); 4] = [
    (DAV, "quota-available-bytes"),
    (DAV, "quota-used-bytes"),
    ("http://www.dcache.org/2013/webdav", "Checksums"),
    ("http://storm.italiangrid.org/2014/webdav", "Checksum"),
];
/// The locks that can be had.
const LOCKS: &str = "<D:lockentry><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>\
    <D:lockentry><D:lockscope><D:shared/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>";

/// An entry whose properties are asked for.
pub(super) struct Entry<'a> {
    pub(super) site: &'a Arc<Site>,
    pub(super) files: &'a Workspace,
    pub(super) place: &'a Place,
    /// The path in `files`.
    pub(super) path: &'a RelPath,
    pub(super) item: &'a Item,
}

/// Whether clients cannot set a property.
pub(super) fn is_live(name: &XmlName) -> bool {
    OF_ALL.iter().any(|live| name.is_dav(live))
        || BY_NAME.iter().any(|(namespace, local)| name.namespace == *namespace && name.local == *local)
}

impl Entry<'_> {
    pub(super) fn is_dir(&self) -> bool {
        self.item.entry.kind == EntryKind::Dir
    }

    /// The markup of a property; none if the entry does not have it.
    ///
    /// # Errors
    /// Those of the files.
    pub(super) fn live(&self, name: &XmlName) -> Result<Option<String>, Error> {
        let XmlName { namespace, local } = name;
        let value = match (namespace.as_str(), local.as_str()) {
            (DAV, _) => self.dav(local)?,
            (_, "Checksums") if is_live(name) => self.checksums(&digest::ALL)?.map(|sums| sums.join(",")),
            (_, "Checksum") if is_live(name) => {
                let sums = self.checksums(&[Algorithm::Adler32])?;
                sums.map(|sums| sums.concat().trim_start_matches("adler32=").to_owned())
            }
            _ => None,
        };
        Ok(value.map(|value| match namespace.as_str() {
            DAV => format!("<D:{local}>{value}</D:{local}>"),
            _ => format!("<{local} xmlns=\"{namespace}\">{value}</{local}>"),
        }))
    }

    fn dav(&self, local: &str) -> Result<Option<String>, Error> {
        let Item { entry, ctime, .. } = self.item;
        Ok(Some(match (local, &entry.kind) {
            // The file system keeps no time of creation that is the same everywhere.
            ("creationdate", _) => utc(system_time(*ctime)).replacen(' ', "T", 1).replace(" UTC", "Z"),
            ("displayname", _) => {
                text(&printable(self.place.path.name().unwrap_or(self.place.storage.as_bytes())))
            }
            ("getcontentlength", EntryKind::File { .. }) => entry.size().to_string(),
            ("getcontenttype", EntryKind::File { .. }) => "application/octet-stream".into(),
            ("getcontenttype", _) => "httpd/unix-directory".into(),
            ("getetag", EntryKind::File { stamp, .. }) => text(&tag(stamp)),
            ("getlastmodified", _) => httpdate::fmt_http_date(system_time(entry.meta.mtime)),
            ("resourcetype", EntryKind::Dir) => "<D:collection/>".into(),
            ("resourcetype", _) => String::new(),
            ("supportedlock", _) => LOCKS.into(),
            ("lockdiscovery", _) => {
                let service = self.site.file_service();
                let now = service.web_time();
                let locks = service.web_locks().covering(self.place, now);
                locks.iter().map(|lock| described(lock, now)).collect()
            }
            ("quota-available-bytes", EntryKind::Dir) => self.files.space()?.available_bytes.to_string(),
            ("quota-used-bytes", EntryKind::Dir) => {
                let space = self.files.space()?;
                space.total_bytes.saturating_sub(space.available_bytes).to_string()
            }
            _ => return Ok(None),
        }))
    }

    /// The checksums that are remembered, as in the header `Digest`; none if there are none.
    fn checksums(&self, algorithms: &[Algorithm]) -> Result<Option<Vec<String>>, Error> {
        if self.is_dir() {
            return Ok(None);
        }
        let reader = self.files.open(self.path)?;
        let mut known = Vec::new();
        for &algorithm in algorithms {
            let sum = reader.checksum(algorithm, Freshness::Known)?;
            known.extend(sum.map(|sum| digest::instance(algorithm, &sum)));
        }
        Ok(Some(known).filter(|known| !known.is_empty()))
    }
}
