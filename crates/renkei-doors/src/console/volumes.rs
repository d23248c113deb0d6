//! Volumes: the list, and the page of one.

use super::failure;
use super::html::{Facts, Html, Table, counted, size as amount, text};
use super::page::{Page, Tab};
use renkei_core::error::Error;
use renkei_core::namespace::placement::Why;
use renkei_core::units::span;
use renkei_core::wire::volume::{Kept, KeptAt};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::inventory::{Followed, Follower, Level, RestoreReport, VolumeState, VolumeStatus};
use renkei_site::status::view::moment;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Maximum of names of one kind that are listed.
const SHOWN: usize = 10;

/// Makes the list.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let mut table = Table::new(&["Volume", "Home", "Size", "Replicas", "Changes", "Followers", "Trouble"]);
    for name in site.monitor().volumes_seen(visitor) {
        let followers = site.monitor().followers_seen(visitor, &name);
        table.row(match site.monitor().volume_seen(visitor, &name) {
            Ok(shown) => row(site, &shown, &followers),
            Err(error) => {
                let mut cells = vec![link(&name)];
                cells.extend(vec![Html::new(); 5]);
                [cells, vec![trouble(&error, visitor)]].concat()
            }
        });
    }
    Page::new(Tab::Volumes, "Volumes").every(10).part(
        "list",
        "Volumes",
        table.finish("Volumes", "There is no volume that you may see."),
    )
}

fn link(name: &str) -> Html {
    Html::of("<a id=\"v-{}\" href=\"/console/volumes/{}\">{}</a>", &[&name, &name, &name])
}

/// Only the administrator sees paths.
fn trouble(error: &Error, visitor: &Visitor) -> Html {
    match visitor.caller().user() {
        None => failure::brief(error),
        Some(_) => Html::of("<strong>{}: {}</strong>", &[&error.code, &error.code.row().title]),
    }
}

fn row(site: &Site, shown: &VolumeStatus, followers: &[Follower]) -> Vec<Html> {
    let home = match shown.home == site.name().as_str() {
        true => Html::of("here", &[]),
        false => Html::of("{} <small>followed here</small>", &[&shown.home]),
    };
    let none = VolumeState::default();
    let standing = shown.standing.as_ref().unwrap_or(&none);
    vec![
        link(&shown.name),
        home,
        size(standing),
        replicas(standing),
        changes(standing.followed.as_ref()),
        Html::of("{}", &[&followers.iter().map(|one| one.site.to_string()).collect::<Vec<_>>().join(", ")]),
        troubles(standing),
    ]
}

fn files(number: u64) -> String {
    counted(number, "file", "files")
}

fn size(standing: &VolumeState) -> Html {
    match standing.used.iter().find(|row| row.owner.is_none()) {
        Some(all) => Html::of("{}, {}", &[&amount(all.bytes), &counted(all.files, "entry", "entries")]),
        None => Html::new(),
    }
}

/// Missing replicas: here, and at a home those that its policies require.
fn replicas(standing: &VolumeState) -> Html {
    let short: u64 = standing.kept.iter().map(|kept| kept.short).sum();
    match &standing.holds {
        Some(holds) if holds.files_to_go > 0 => {
            Html::of("missing here: {}, {}", &[&files(holds.files_to_go), &amount(holds.bytes_to_go)])
        }
        _ if short > 0 => Html::of("missing: of up to {}", &[&files(short)]),
        _ if standing.kept.is_empty() && standing.holds.is_none() => Html::of("none asked for", &[]),
        _ => Html::of("complete", &[]),
    }
}

fn changes(followed: Option<&Followed>) -> Html {
    match followed.map(|followed| followed.pending) {
        None => Html::new(),
        Some(0) => Html::of("none pending", &[]),
        Some(count) => Html::of("{} pending for the home", &[&count]),
    }
}

fn troubles(standing: &VolumeState) -> Html {
    let held = standing.holds.as_ref().and_then(|holds| holds.trouble.as_ref());
    let mut html = Html::new();
    for error in [standing.trouble.as_ref(), held].into_iter().flatten() {
        html.add(failure::brief(error));
    }
    html
}

// ---- one -------------------------------------------------------------------------------------------------------------

/// Makes the page of one volume, if the visitor may see it.
pub(super) fn one(site: &Arc<Site>, visitor: &Visitor, name: &str) -> Option<Page> {
    if !site.monitor().volumes_seen(visitor).iter().any(|seen| seen == name) {
        return None;
    }
    let page = Page::new(Tab::Volumes, format!("Volume {name}")).every(10);
    let shown = match site.monitor().volume_seen(visitor, name) {
        Ok(shown) => shown,
        Err(error) => return Some(page.part("trouble", "Trouble", trouble(&error, visitor))),
    };
    let none = VolumeState::default();
    let standing = shown.standing.as_ref().unwrap_or(&none);
    let mut page = page;
    if !troubles(standing).is_empty() {
        page = page.part("trouble", "Trouble", troubles(standing));
    }
    page = page.part("facts", "Details", facts(&shown, standing, visitor));
    if !standing.kept.is_empty() {
        page = page.part("replicas", "Replicas", kept(&standing.kept));
    }
    let followers = site.monitor().followers_seen(visitor, name);
    if !followers.is_empty() {
        page = page.part("followers", "Followers", follower_table(&followers, standing.records));
    }
    if let Some(followed) = standing.followed.as_ref().filter(|one| !one.refused.is_empty()) {
        page = page.part("refused", "Changes that the home refused", refused(followed));
    }
    if let Some(restored) = standing.followed.as_ref().and_then(|one| one.restored.as_ref()) {
        page = page.part("reconciled", "What reconciling did", reconciled(restored, &shown.home));
    }
    if !standing.verified.examples.is_empty() {
        page = page.part("wrong", "Files that are wrong", wrong(standing));
    }
    Some(page.part("grants", "Grants", grants(&shown)))
}

fn facts(shown: &VolumeStatus, standing: &VolumeState, visitor: &Visitor) -> Html {
    let mut facts = Facts::new();
    facts.text("Home", &shown.home).text("Id", &shown.id).add("Size", size(standing));
    if visitor.caller().is_administrator() {
        let files = match shown.storage.as_str() {
            "" => "at the home; no replicas here".to_owned(),
            storage => format!("{storage}:/{}", shown.path),
        };
        facts.text("Files", &files).text("Account", &shown.account);
    }
    facts.add("Replicas", replicas(standing)).text("Records", &standing.records);
    if let Some(followed) = &standing.followed {
        let heard = followed.heard_s.map(|s| format!("{} ago", span(Duration::from_secs(s))));
        facts
            .text("Records of the home", &followed.last)
            .text("Home heard", &heard.unwrap_or_else(|| "not since the PoP started".into()))
            .add("Own changes", changes(Some(followed)));
    }
    for only in &standing.away {
        facts.text(
            "Only at another site",
            &format!("{}: {}, {}", only.site, files(only.files), amount(only.bytes)),
        );
    }
    if let Some(ended) = standing.verified.ended_unix {
        let at = moment(UNIX_EPOCH + Duration::from_secs(ended));
        let words =
            format!("{at}: {} good, {} wrong", files(standing.verified.files), standing.verified.wrong);
        facts.text("Last verified", &words);
    }
    if let Some(scan) = &standing.scan {
        let at = moment(UNIX_EPOCH + Duration::from_secs(scan.ended_unix));
        facts.text("Last scan", &format!("{at}: directories {}, failed {}", scan.dirs, scan.failed));
    }
    facts.finish()
}

fn kept(all: &[Kept]) -> Html {
    let mut table = Table::new(&["Folder", "Replicas", "Files", "With fewer", "Sites"]);
    for one in all {
        let mut sites = Html::of("<ul class=\"plain-list\">", &[]);
        for at in &one.sites {
            sites.put("<li><b>{}</b> {}</li>", &[&at.site, &told(at)]);
        }
        if one.unplaced > 0 {
            sites.put("<li>{} more: no site can take them</li>", &[&one.unplaced]);
        }
        sites.put("</ul>", &[]);
        let number = |number: u64| Html::of("{}", &[&number]);
        let folder = text(format!("/{}", one.folder));
        table.row(vec![folder, number(one.replicas.into()), number(one.files), number(one.short), sites]);
    }
    table.finish("Replicas that are asked for", "None are asked for.")
}

fn told(at: &KeptAt) -> String {
    let missing = match (at.missing_files, at.missing_bytes) {
        (Some(0), _) => "complete".to_owned(),
        (Some(files), bytes) => format!("missing {}, {}", self::files(files), amount(bytes.unwrap_or(0))),
        _ => "has not told yet what it holds".into(),
    };
    let heard =
        at.heard_s.map_or("never heard".into(), |s| format!("heard {} ago", span(Duration::from_secs(s))));
    let passed = match at.passed {
        Some(Why::Lost) => Some("lost"),
        Some(Why::NotFollowing) => Some("does not follow the volume"),
        Some(Why::Refuses) => Some("takes no replicas"),
        Some(Why::NoRoom) => Some("has no room"),
        None => None,
    };
    let why = at.trouble.as_ref().map(|error| format!("{}: {}", error.code, error.code.row().title));
    let words = [passed.map(str::to_owned), Some(missing), Some(heard), why];
    words.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn follower_table(all: &[Follower], records: u64) -> Html {
    let mut table = Table::new(&["Site", "Records", "Behind", "Last heard"]);
    for one in all {
        let heard = one.heard.map_or("not since the PoP started".into(), |ago| format!("{} ago", span(ago)));
        let of = one.record.map_or("not known".into(), |record| format!("{record} of {records}"));
        let behind =
            one.record.map_or("not known".into(), |record| records.saturating_sub(record).to_string());
        table.row([of, behind, heard].into_iter().fold(vec![text(&one.site)], |mut row, cell| {
            row.push(text(cell));
            row
        }));
    }
    table.finish("Sites that follow this volume", "No site follows it.")
}

fn refused(followed: &Followed) -> Html {
    let mut table = Table::new(&["Change", "When", "Cause"]);
    for one in &followed.refused {
        let at = moment(UNIX_EPOCH + Duration::from_secs(one.at_unix));
        table.row(vec![text(&one.change), text(at), failure::brief(&one.error)]);
    }
    table.finish("Changes made here that the home refused", "None.")
}

/// The report of the reconciliation with a home that was restored from a backup.
fn reconciled(done: &RestoreReport, home: &str) -> Html {
    let at = moment(UNIX_EPOCH + Duration::from_secs(done.at_unix));
    let mut html = Html::of(
        "<p>{} was restored from a backup, which was noticed here on {}: its log ended at record {}, and {} had been \
         followed.</p><ul class=\"plain-list\">",
        &[&home, &at, &done.records_now, &done.records_before],
    );
    for (what, names) in [
        ("only here, sent to the home", &done.kept),
        ("newer here, sent to the home", &done.renewed),
        ("different; stored beside the home's", &done.beside),
        ("removed here, and so at the home", &done.removed),
        ("at neither site any more", &done.lost),
        ("only here, put aside below the volume's directory", &done.aside),
    ] {
        if names.count > 0 {
            let shown: Vec<&str> = names.paths.iter().take(SHOWN).map(String::as_str).collect();
            let more = names.count.saturating_sub(shown.len() as u64);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            html.put(
                "<li><b>{} {}</b>: <bdi>{}</bdi>{}</li>",
                &[&names.count, &what, &shown.join(", "), &more],
            );
        }
    }
    html.put("</ul>", &[]);
    html
}

fn wrong(standing: &VolumeState) -> Html {
    let mut table = Table::new(&["File", "Cause"]);
    for (path, error) in &standing.verified.examples {
        table.row(vec![text(path), failure::brief(error)]);
    }
    table.finish("Files whose content is not what it should be", "None.")
}

fn grants(shown: &VolumeStatus) -> Html {
    let mut table = Table::new(&["To", "Level", "Folder"]);
    for grant in &shown.grants {
        let level = if grant.level == Level::Read { "read" } else { "write" };
        table.row(vec![text(&grant.to), text(level), text(format!("/{}", grant.on))]);
    }
    table.finish("Who may use it", "No grants that you may see.")
}
