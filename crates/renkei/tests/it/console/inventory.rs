//! The console's pages about the state of a PoP: their contents, their readers, and their changes.

use crate::console::{Answer, Running, ask, get, hand_in, log_in, user, wait_for};
use crate::federation::{Federation, Site, account};
use std::time::{Duration, Instant};

fn administrator(site: &Site) -> String {
    log_in(site, &site.ok(&["console"]))
}

/// The row of a table that is about something.
fn row<'p>(page: &'p Answer, about: &str) -> &'p str {
    let mut rows = page.body.split("</tr>");
    rows.find(|row| row.contains(about)).unwrap_or_else(|| panic!("no {about} in {}", page.body))
}

#[test]
fn volumes_show_their_replicas_followers_and_trouble() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    kek.ok(&["volume", "create", "runs", "--storage", "data", "--replicas", "3"]);
    std::fs::write(kek.root().join("runs/file"), "text").unwrap();
    kek.ok(&["volume", "check", "runs"]);
    let cookie = administrator(kek);
    let list = get(kek, "/console/volumes", &cookie);
    assert!(row(&list, "runs").contains("here") && list.body.contains("4 bytes"), "{}", list.body);
    kek.ok(&["volume", "grant", "runs", "titech", "read"]);
    titech.ok(&["volume", "subscribe", "runs", "--from", "kek", "--storage", "data"]);
    let one = wait_for(kek, "/console/volumes/runs", &cookie, |page| {
        page.body.contains("id=\"followers\"") && page.body.contains(">titech</bdi>")
    });
    assert!(
        one.body.contains("id=\"replicas\"") && one.body.contains("1 more: no site can take them"),
        "{}",
        one.body
    );
    let there = wait_for(titech, "/console/volumes/runs", &administrator(titech), |page| {
        page.body.contains("none pending")
    });
    assert!(there.body.contains("Home heard"), "{}", there.body);
    // A volume without permission looks like a volume that does not exist.
    kek.ok(&["map", "remove", &format!("{}@titech", account())]);
    assert_eq!(get(kek, "/console/volumes/none", &cookie).status, 404);
    std::fs::rename(kek.root(), kek.root().with_extension("gone")).unwrap();
    let lost = wait_for(kek, "/console/volumes", &cookie, |page| page.body.contains("RK-STORE-"));
    assert!(row(&lost, "runs").contains("class=\"cause\""), "{}", lost.body);
}

#[test]
fn trust_shows_reachable_partners_and_changed_cards() {
    let mut federation = Federation::two();
    let cookie = administrator(&federation.kek);
    let address = federation.titech.address.to_string();
    let both = |page: &Answer| page.body.matches(&address).count() == 2;
    let page = wait_for(&federation.kek, "/console/trust", &cookie, both);
    assert!(
        row(&page, "titech").contains(&address) && row(&page, "titech").contains("SHA256:"),
        "{}",
        page.body
    );
    let (_, changes) = page.body.split_once("id=\"changes\"").unwrap();
    assert!(changes.contains("not trusted") && changes.contains(&address), "{changes}");
    federation.titech.kill9();
    let kek = &federation.kek;
    std::fs::write(kek.root().join("file"), "text").unwrap();
    hand_in(kek, &[&kek.place("file"), "titech:/data/file"]);
    let page = wait_for(kek, "/console/trust", &cookie, |page| page.body.contains(">no since "));
    assert!(row(&page, "titech").contains("RK-NET-"), "{}", page.body);
    kek.ok(&["trust", "remove", "titech"]);
    wait_for(kek, "/console/trust", &cookie, |page| {
        let (sites, changes) = page.body.split_once("id=\"changes\"").unwrap();
        changes.contains("trust ended") && !sites.contains(&address)
    });
}

#[test]
fn the_map_resolves_a_user_to_an_account() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let own = account();
    kek.ok(&["map", "add", "--yes", "bob@titech", &own]);
    kek.ok(&["map", "deny", "mallory@titech"]);
    let cookie = administrator(kek);
    let page = wait_for(kek, "/console/mapping", &cookie, |page| page.body.contains("mallory@titech"));
    let (denied, rules) = page.body.split_once("id=\"rules\"").unwrap();
    assert!(denied.contains("mallory@titech") && rules.contains("bob@titech") && !rules.contains("mallory"));
    let first = rules.find(&format!("{own}@titech")).unwrap();
    assert!(first < rules.find("bob@titech").unwrap(), "in the order of the file");
    let answer = |who: &str| {
        let page = get(kek, &format!("/console/mapping?who={who}"), &cookie).body;
        let (_, said) = page.split_once("class=\"answer").unwrap_or_else(|| panic!("{page}"));
        said.split("</section>").next().unwrap().to_owned()
    };
    assert!(answer("bob@titech").contains(&format!("becomes <b><bdi>{own}</bdi></b>")));
    assert!(answer("mallory@titech").contains("is refused") && answer("eve@titech").contains("is refused"));
    assert!(get(kek, "/console/mapping?who=%3Cb%3E", &cookie).body.contains("RK-CONF-"));
    // A user sees the own account and no other, for every query.
    let page = get(kek, "/console/mapping?who=bob@titech", &user(kek, titech)).body;
    assert!(page.contains(&format!("{own}@titech")) && !page.contains("bob@titech"), "{page}");
}

#[test]
fn drop_folders_and_workers_are_shown_to_the_administrator_only() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    std::fs::create_dir(kek.root().join("inbox")).unwrap();
    kek.ok(&["rule", "add", "beam", "--settle", "1", &kek.place("inbox"), &titech.place("beam")]);
    kek.ok(&["rule", "add", "lost", "--settle", "1", &kek.place("none"), &titech.place("lost")]);
    std::fs::write(kek.root().join("inbox/frame"), "text").unwrap();
    let (cookie, own) = (administrator(kek), user(kek, kek));
    let queued = |page: &Answer| page.body.contains("1 file, 2") && page.body.contains(">fails<");
    let page = wait_for(kek, "/console/rules", &cookie, queued);
    assert!(row(&page, "id=\"r-beam\"").contains(">works<"), "{}", page.body);
    let lost = row(&page, "id=\"r-lost\"");
    assert!(lost.contains("RK-STORE-") && lost.contains("label=rule%20lost"), "{lost}");
    let page = get(kek, "/console/workers", &cookie);
    for worker in ["queue", "renewal", "following", "verifying", "rules", "cleanup", "conditions", "storages"]
    {
        let row = row(&page, &format!(">{worker}</bdi>"));
        assert!(row.contains(">idle<") || row.contains(">working<"), "{row}");
    }
    for page in ["/console/rules", "/console/workers"] {
        assert_eq!(get(kek, page, &own).status, 404);
        assert!(!get(kek, "/console", &own).body.contains(&format!("\"{page}\"")), "no tab leads there");
    }
}

#[test]
fn certificates_are_listed_and_revoked_ones_too() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let own = format!("{}@kek", account());
    let cookie = administrator(kek);
    let is_known = |page: &Answer| page.body.contains("authority of titech");
    let page = wait_for(kek, "/console/certificates", &cookie, is_known);
    assert!(row(&page, ">host<").contains("127.0.0.1"), "{}", page.body);
    assert!(row(&page, &own).contains(">1<"), "{}", page.body);
    let mine = get(kek, "/console/certificates", &user(kek, kek)).body;
    assert!(mine.contains(&own) && !mine.contains("authority of titech"), "{mine}");
    let foreign = get(kek, "/console/certificates", &user(kek, titech)).body;
    assert!(!foreign.contains(&own), "{foreign}");
    kek.ok(&["revoke", &own]);
    let page = get(kek, "/console/certificates", &cookie);
    let (_, revoked) = page.body.split_once("id=\"revoked\"").unwrap();
    assert!(revoked.contains(&own), "{revoked}");
}

#[test]
fn unfinished_transfers_are_dropped_by_their_owners() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let running = Running::start(titech, kek, "cut");
    let (owner, other, cookie) = (user(kek, titech), user(kek, kek), administrator(kek));
    wait_for(kek, "/console/unfinished", &owner, |page| page.body.contains(">running<"));
    // Something of it is stored.
    let begun = Instant::now();
    while kek.json(&["unfinished", "--all"]).1["unfinished"][0]["files_done"] != 1 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:#}", kek.json(&["unfinished", "--all"]).1);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(running);
    let page = wait_for(kek, "/console/unfinished", &owner, |page| page.body.contains("id=\"drop-all\""));
    let (_, link) = page.body.split_once("/console/unfinished/").unwrap();
    let (_, link) = link.split_once("/console/unfinished/").unwrap();
    let drop_it = format!("/console/unfinished/{}", link.split('"').next().unwrap());
    assert!(page.body.contains("/data/cut"), "{}", page.body);
    assert!(get(kek, "/console/unfinished", &cookie).body.contains(&format!("{}@titech", account())));
    assert!(!get(kek, "/console/unfinished", &other).body.contains("drop-all"));
    let token = |cookie: &str| format!("token={}", get(kek, "/console", cookie).form_token());
    let press = |cookie: &str, form: &str, at: &str| ask(kek, at, cookie, Some(form)).status;
    assert_eq!(press(&other, &token(&other), &drop_it), 409, "of another user");
    assert_eq!(press(&owner, &token(&other), &drop_it), 403, "a form of another page");
    assert_eq!(press("", &token(&owner), &drop_it), 401);
    assert_eq!(press(&other, &token(&other), "/console/unfinished/drop"), 303, "of which there is none");
    assert!(get(kek, "/console/unfinished", &owner).body.contains("drop-all"));
    assert_eq!(press(&owner, &token(&owner), &drop_it), 303);
    assert!(get(kek, "/console/unfinished", &owner).body.contains("Nothing is unfinished"));
    let log = kek.logged();
    assert!(log.lines().any(|line| line.contains("audit: dropped") && line.contains("@titech")), "{log}");
}
