//! `renkei volume` from another machine: requests to the PoP of a site, as the user of the certificate.

use crate::cli::Context;
use crate::cli::connect::{own_site, session, unexpected};
use crate::cli::output::Report;
use renkei_config::Config;
use renkei_core::error::Error;
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Manage, VolumeReply, VolumeStatus};
use renkei_mover::connect::dial::Session;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Write};

/// A client for a volume of a site.
pub(crate) struct Far {
    session: Session,
    name: String,
}

/// A volume in a list.
#[derive(Serialize)]
struct Row {
    name: String,
    home: SiteName,
    records: u64,
    behind: u64,
}

/// The volumes of a site that the user may see.
#[derive(Serialize)]
pub(crate) struct Rows {
    volumes: Vec<Row>,
}

impl Far {
    /// The site to ask, if any: the given one, as `--at` or before the volume's name, else the user's own where this
    /// is not the directory of a PoP. There, the PoP's own site is not asked over the network.
    pub(crate) fn wanted(
        at: Option<&str>,
        name: Option<&str>,
        context: &Context,
    ) -> Result<Option<Self>, Error> {
        let (before, name) = divided(name.unwrap_or_default());
        let here = Config::load(&context.home()?)?.site;
        let site = match at.or(before) {
            Some(site) if before.is_none() && here.as_ref().is_some_and(|here| here.as_str() == site) => {
                return Ok(None);
            }
            Some(site) => SiteName::parse(site)?,
            None if here.is_some() => return Ok(None),
            None => own_site(context)?,
        };
        Ok(Some(Far { session: session(context, &site)?, name: name.into() }))
    }

    /// The volume's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a request, and parses the reply.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, what: Manage) -> Result<T, Error> {
        let about = AboutVolume::Manage { name: self.name.clone(), what };
        match self.about(about)? {
            VolumeReply::Told(text) => serde_json::from_str(&text).map_err(|error| violation("reply", error)),
            other => Err(unexpected(&Reply::Volume(other))),
        }
    }

    /// Sends a request without a result.
    pub(crate) fn done(&mut self, what: Manage) -> Result<(), Error> {
        self.ask(what)
    }

    /// The visible volumes there.
    pub(crate) fn list(&mut self) -> Result<Rows, Error> {
        match self.about(AboutVolume::List)? {
            VolumeReply::Volumes(volumes) => Ok(Rows { volumes: volumes.into_iter().map(row).collect() }),
            other => Err(unexpected(&Reply::Volume(other))),
        }
    }

    fn about(&mut self, about: AboutVolume) -> Result<VolumeReply, Error> {
        match self.session.ask(Request::Volume(about))? {
            Reply::Volume(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }
}

/// The site and the name in `SITE:/NAME`, `/NAME` or `NAME`.
fn divided(written: &str) -> (Option<&str>, &str) {
    let (site, name) = match written.split_once(':') {
        Some((site, name)) => (Some(site), name),
        None => (None, written),
    };
    (site, name.strip_prefix('/').unwrap_or(name))
}

fn row(volume: VolumeStatus) -> Row {
    let VolumeStatus { name, home, seq, last, .. } = volume;
    Row { name, home, records: seq, behind: last.saturating_sub(seq) }
}

impl Report for Rows {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.volumes.iter().try_for_each(|row| {
            write!(out, "{:<16} {:<12} {:>10} records", row.name, row.home.as_str(), row.records)?;
            match row.behind {
                0 => writeln!(out),
                behind => writeln!(out, ", {behind} behind its home"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_with_its_site_or_without() {
        assert_eq!(divided("kek:/genome"), (Some("kek"), "genome"));
        assert_eq!(divided("/genome"), (None, "genome"));
        assert_eq!(divided("genome"), (None, "genome"));
        assert_eq!(divided(""), (None, ""));
    }
}
