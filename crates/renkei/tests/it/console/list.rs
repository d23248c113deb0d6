//! The one list of transfers: filters, search and pages of it, and the causes that it shows.

use crate::console::{Answer, get, hand_in, log_in, user, wait_for};
use crate::federation::{Federation, Site, account};

/// The rows of the list, as they stand in the page.
fn rows(page: &Answer) -> Vec<&str> {
    let (_, body) = page.body.split_once("<tbody>").unwrap_or(("", ""));
    body.split("</tr>").filter(|row| row.contains("<th")).collect()
}

/// A transfer from a site whose PoP does not run is not in this list; kek has one of each kind.
fn one_of_each(kek: &Site, titech: &Site) -> [String; 3] {
    std::fs::write(kek.root().join("good"), "text").unwrap();
    std::fs::create_dir_all(kek.root().join("tree")).unwrap();
    for name in ["a", "b"] {
        std::fs::write(kek.root().join("tree").join(name), name).unwrap();
    }
    // Where the file `a` shall be is a directory that is not empty.
    std::fs::create_dir_all(titech.root().join("tree/a/x")).unwrap();
    let done = hand_in(kek, &["--label", "night run", &kek.place("good"), &titech.place("good2")]);
    let partial = hand_in(kek, &["-r", "--label", "trees", &kek.place("tree"), &titech.root_place()]);
    let failed = hand_in(kek, &[&kek.place("good"), "titech:/nowhere/good"]);
    [done, partial, failed]
}

#[test]
fn all_transfers_are_in_one_list_that_is_filtered_without_a_script() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let [done, partial, failed] = one_of_each(kek, titech);
    // One that a client runs, and no queue has.
    titech.ok(&["cp", kek.root().join("good").to_str().unwrap(), &kek.place("by-hand")]);
    let administrator = log_in(kek, &kek.ok(&["console"]));
    let ended = |page: &Answer| {
        rows(page).len() == 4
            && [">done</span>", ">partial</span>", ">failed</span>"]
                .iter()
                .all(|state| page.body.contains(state))
    };
    let all = wait_for(kek, "/console/transfers", &administrator, ended);
    for id in [&done, &partial, &failed] {
        assert_eq!(all.body.matches(&format!("/console/queue/{id}\"")).count(), 1, "{}", all.body);
    }
    // The newest comes first.
    assert!(rows(&all)[0].contains("a client") && rows(&all)[3].contains(&done), "{}", all.body);
    let listed = |query: &str, cookie: &str| {
        let page = get(kek, &format!("/console/transfers?{query}"), cookie);
        assert_eq!(page.status, 200);
        rows(&page).iter().map(|row| (*row).to_owned()).collect::<Vec<String>>()
    };
    let only = |query: &str, id: &str| {
        let found = listed(query, &administrator);
        assert!(found.len() == 1 && found[0].contains(id), "{query}: {found:?}");
    };
    only("state=partial", &partial);
    only("state=failed", &failed);
    only("label=night+run&state=&q=", &done);
    only("q=TREES", &partial);
    only("q=rk-store-16", &failed);
    only(&format!("q={}%40TITECH&state=done", account()), "a client");
    only(&format!("q={}", &done[..12]), &done);
    assert_eq!(listed("state=done", &administrator).len(), 2);
    assert_eq!(listed("state=paused", &administrator).len(), 0);
    assert_eq!(listed("state=done&label=trees", &administrator).len(), 0);
    assert_eq!(listed("before=nonsense&state=nonsense", &administrator).len(), 4);
    // A user's list has the user's own.
    let foreign = user(kek, titech);
    assert_eq!(listed("", &foreign).len(), 1);
    assert_eq!(listed("state=failed", &foreign).len(), 0);
    let form = get(kek, "/console/transfers?label=%22%3E%3Cb%3E", &administrator).body;
    assert!(form.contains("value=\"&quot;&gt;&lt;b&gt;\""), "what was typed stays in its field: {form}");
}

#[test]
fn failures_show_their_causes() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let [_, partial, failed] = one_of_each(kek, titech);
    let own = user(kek, kek);
    let ended = |page: &Answer| page.body.contains(">failed</span>") && page.body.contains(">partial</span>");
    let list = wait_for(kek, "/console/transfers", &own, ended);
    let row = |id: &str| (*rows(&list).iter().find(|row| row.contains(id)).unwrap()).to_owned();
    let bad = row(&failed);
    for part in
        ["RK-STORE-16: the site has no storage of that name", "nowhere", "<code>renkei ls titech:/</code>"]
    {
        assert!(bad.contains(part), "{part}: {bad}");
    }
    let some = row(&partial);
    assert!(
        some.contains(">tree/a</bdi> <bdi>RK-STORE-") || some.contains(">a</bdi> <bdi>RK-STORE-"),
        "{some}"
    );
    let page = get(kek, &format!("/console/queue/{failed}"), &own).body;
    assert!(page.contains("RK-STORE-16") && page.contains("What to do"), "{page}");
    let page = get(kek, &format!("/console/queue/{partial}"), &own).body;
    assert!(page.contains("Entries that failed: 1") && page.contains("RK-STORE-"), "{page}");
    assert!(page.contains("failed entries: 1") && !page.contains(">done</span>"), "{page}");
}

#[test]
fn a_long_list_comes_in_pages() {
    let federation = Federation::two();
    let kek = &federation.kek;
    std::fs::write(kek.root().join("file"), "text").unwrap();
    // None of them runs: each waits for the one before, and the first for its destination.
    let gone = "titech:/data/x".to_owned();
    let from = kek.place("file");
    let mut federation = federation;
    federation.titech.kill9();
    let kek = &federation.kek;
    let first = hand_in(kek, &[&from, &gone]);
    let ids: Vec<String> =
        (0..54).map(|n| hand_in(kek, &["--after", &first, &from, &kek.place(&format!("copy{n}"))])).collect();
    let own = user(kek, kek);
    let page = get(kek, "/console/transfers?state=waiting", &own);
    assert_eq!(rows(&page).len(), 50, "{}", page.body);
    assert!(!page.body.contains("id=\"newest\"") && rows(&page)[0].contains(&ids[53]));
    let (_, link) = page.body.split_once("id=\"older\" href=\"").unwrap();
    let older = link.split('"').next().unwrap().replace("&amp;", "&");
    assert!(older.starts_with("/console/transfers?state=waiting&before="), "{older}");
    let rest = get(kek, &older, &own);
    let shown = rows(&rest);
    assert!((4..=5).contains(&shown.len()) && shown[3].contains(&ids[0]), "{}", rest.body);
    assert!(rest.body.contains("id=\"newest\"") && !rest.body.contains("id=\"older\""), "{}", rest.body);
}
