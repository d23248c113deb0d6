//! Files in a browser: looked at, searched, uploaded, renamed, deleted and downloaded; nothing that users stored is executed.

use crate::console::browser::Browser;
use crate::federation::Site;
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A name that is markup.
const MARKUP: &str = "<img src=x onerror=\"window.pwned=1\">.txt";

fn pop() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    (dir, site)
}

/// A browser with a session of the site's user.
fn log_in(site: &Site) -> Browser {
    let mut browser = Browser::start();
    browser.open(site.ok(&["console", "kek"]).trim());
    browser.wait_for("location.pathname == '/console' && document.readyState == 'complete'");
    browser
}

fn url(site: &Site, path: &str) -> String {
    format!("https://{}{path}", site.address)
}

/// The names that the page shows, in their order.
const NAMES: &str = "[...document.querySelectorAll('.files tbody th bdi')].map((name) => name.innerText)";

fn shows(browser: &mut Browser, names: &[&str]) {
    browser.wait_for(&format!("JSON.stringify({NAMES}) == {:?}", json!(names).to_string()));
}

/// Clicks on something, and waits until a page is there.
fn follow(browser: &mut Browser, selector: &str) {
    browser.value(&format!("window.left = true; document.querySelector({selector:?}).click()"));
    browser.wait_for("!window.left && document.readyState == 'complete'");
}

fn fetch(site: &Site, path: &str, arguments: &[&str]) -> Vec<u8> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--insecure", "--fail", "--max-time", "60"]).args(arguments);
    let output = curl.arg(url(site, path)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn same(archive: &[u8], dir: &Path, original: &Path, name: &str) {
    std::fs::create_dir_all(dir).unwrap();
    let mut tar = Command::new("tar");
    let mut tar =
        tar.args(["--extract", "--file=-", "--directory"]).arg(dir).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut tar.stdin.take().unwrap(), archive).unwrap();
    assert!(tar.wait().unwrap().success());
    let mut diff = Command::new("diff");
    let output =
        diff.args(["-r", "--no-dereference", "--exclude=.rk~*"]).args([original, &dir.join(name)]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_folder_is_looked_at_sorted_and_searched() {
    let (_dir, site) = pop();
    std::fs::create_dir_all(site.root().join("run 7/deep")).unwrap();
    for (name, bytes) in [("a.txt", 5), ("B.dat", 3000), (MARKUP, 1)] {
        std::fs::write(site.root().join(name), "x".repeat(bytes)).unwrap();
    }
    std::fs::write(site.root().join(OsStr::from_bytes(b"\xff.bin")), "bytes").unwrap();
    let mut browser = log_in(&site);
    browser.open(&url(&site, "/console/files"));
    follow(&mut browser, "a[href='/data/']");
    shows(&mut browser, &["run 7", MARKUP, "\\xff.bin", "a.txt", "B.dat"]);
    follow(&mut browser, "thead .size a");
    shows(&mut browser, &["run 7", "B.dat", "\\xff.bin", "a.txt", MARKUP]);
    follow(&mut browser, "thead .size a");
    shows(&mut browser, &["run 7", MARKUP, "\\xff.bin", "a.txt", "B.dat"]);
    browser.value("document.querySelector('[name=q]').value = 'A'");
    follow(&mut browser, ".search button");
    shows(&mut browser, &["a.txt", "B.dat"]);
    browser.open(&url(&site, "/data/"));
    // The name that is no UTF-8 leads to its file, and the keyboard to a folder.
    follow(&mut browser, "a[href='%FF.bin?show']");
    browser.wait_for("document.querySelector('pre')?.innerText == 'bytes'");
    browser.open(&url(&site, "/data"));
    browser.wait_for("location.pathname == '/data/'");
    for (key, code) in [("ArrowDown", 40), ("Enter", 13)] {
        let text = if code == 13 { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event =
                json!({"type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code});
            browser.tell("Input.dispatchKeyEvent", event);
        }
    }
    browser.wait_for(
        "location.pathname == '/data/run%207/' && document.querySelector('h1')?.innerText == 'run 7'",
    );
    shows(&mut browser, &["deep"]);
    follow(&mut browser, ".crumbs li:nth-child(2) a");
    browser.wait_for("location.pathname == '/data/'");
    assert_eq!(browser.value("window.pwned"), json!(null));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn files_are_uploaded_renamed_and_deleted() {
    let (_dir, site) = pop();
    std::fs::write(site.root().join("old.txt"), "old").unwrap();
    let mut browser = log_in(&site);
    browser.open(&url(&site, "/data/"));
    let pick = "(() => { const all = new DataTransfer(); all.items.add(new File(['new'], 'n\u{e9}w #1.txt')); \
                all.items.add(new File(['newer'], 'old.txt')); const input = document.getElementById('pick-files'); \
                input.files = all.files; input.dispatchEvent(new Event('change')); })()";
    browser.value(pick);
    browser.wait_for("document.getElementById('ask').open");
    follow(&mut browser, "#ask-yes");
    shows(&mut browser, &["n\u{e9}w #1.txt", "old.txt"]);
    let read = |name: &str| std::fs::read_to_string(site.root().join(name)).unwrap();
    assert_eq!((read("n\u{e9}w #1.txt"), read("old.txt")), ("new".into(), "newer".into()));

    browser.value("document.querySelector('[data-act=make]').click()");
    browser.value("document.getElementById('ask-name').value = 'sub % dir'");
    follow(&mut browser, "#ask-yes");
    shows(&mut browser, &["sub % dir", "n\u{e9}w #1.txt", "old.txt"]);
    browser.value("document.querySelector('[value=\"old.txt\"]').click(); document.querySelector('[data-act=rename]').click()");
    browser.value("document.getElementById('ask-name').value = 'renamed?.txt'");
    follow(&mut browser, "#ask-yes");
    shows(&mut browser, &["sub % dir", "n\u{e9}w #1.txt", "renamed?.txt"]);
    std::fs::write(site.root().join("sub % dir/in"), "in").unwrap();
    browser
        .value("document.getElementById('all').click(); document.querySelectorAll('.pick input')[2].click()");
    browser.value("document.querySelector('[data-act=delete]').click()");
    browser.wait_for("document.getElementById('ask').open");
    follow(&mut browser, "#ask-yes");
    shows(&mut browser, &["n\u{e9}w #1.txt"]);
    assert!(!site.root().join("sub % dir").exists());
    // A folder, with its paths.
    let folder = "(() => { const file = new File(['deep'], 'f'); Object.defineProperty(file, 'webkitRelativePath', {value: 'top/sub/f'}); \
                  const input = document.getElementById('pick-folder'); Object.defineProperty(input, 'files', {value: [file]}); \
                  input.dispatchEvent(new Event('change')); })()";
    browser.value(folder);
    shows(&mut browser, &["top", "n\u{e9}w #1.txt"]);
    assert_eq!(read("top/sub/f"), "deep");
}

#[test]
fn the_cookie_alone_changes_nothing() {
    let (_dir, site) = pop();
    let mut browser = log_in(&site);
    browser.open(&url(&site, "/data/"));
    let put = |headers: &str| {
        format!(
            "fetch('/data/x', {{method: 'PUT', body: 'x', headers: {headers}}}).then((answer) => answer.status)"
        )
    };
    assert_eq!(browser.value(&put("{}")), json!(403));
    assert_eq!(browser.value(&put("{'X-Renkei-Token': 'x'}")), json!(403));
    assert!(!site.root().join("x").exists());
    let token = "{'X-Renkei-Token': document.getElementById('files').dataset.token}";
    assert_eq!(browser.value(&put(token)), json!(201));
    for method in ["DELETE", "MKCOL", "MOVE", "PROPPATCH", "LOCK"] {
        let sent = format!("fetch('/data/x', {{method: '{method}'}}).then((answer) => answer.status)");
        assert_eq!(browser.value(&sent), json!(403), "{method}");
    }
    assert_eq!(std::fs::read_to_string(site.root().join("x")).unwrap(), "x");
}

#[test]
fn what_users_store_is_never_executed() {
    let (_dir, site) = pop();
    let page =
        "<!doctype html><script>document.documentElement.dataset.pwned = 1; parent.pwned = 1</script>text";
    for name in ["evil.html", "evil.svg", "evil.txt", "evil.png"] {
        std::fs::write(site.root().join(name), page).unwrap();
    }
    let mut browser = log_in(&site);
    for name in ["evil.html", "evil.svg", "evil.txt", "evil.png"] {
        browser.open(&url(&site, &format!("/data/{name}?show")));
        assert_eq!(
            browser.value("document.documentElement.dataset.pwned ?? window.pwned"),
            json!(null),
            "{name}"
        );
        let heads = "fetch(location.pathname).then((answer) => ['content-type', 'content-security-policy', \
                     'content-disposition', 'x-content-type-options'].map((name) => answer.headers.get(name)))";
        let heads = browser.value(heads);
        assert_eq!(heads[0], "application/octet-stream", "{name}");
        assert!(heads[1].as_str().unwrap().starts_with("sandbox; default-src 'none'"), "{heads}");
        assert!(heads[2].as_str().unwrap().starts_with("attachment"), "{heads}");
        assert_eq!(heads[3], "nosniff");
    }
    browser.open(&url(&site, "/data/evil.html?show"));
    browser.wait_for("document.querySelector('pre').innerText.startsWith('<!doctype html><script>')");
    // What calls itself a picture is one, or nothing.
    browser.value("window.left = true");
    browser.tell("Page.navigate", json!({"url": url(&site, "/data/evil.png?view")}));
    browser.wait_for("!window.left && document.readyState == 'complete'");
    assert_eq!(browser.value("document.documentElement.dataset.pwned"), json!(null));
}

#[test]
fn a_folder_comes_as_one_archive() {
    let (dir, site) = pop();
    let run = site.root().join("run7");
    std::fs::create_dir_all(run.join("empty")).unwrap();
    std::fs::create_dir_all(run.join("d".repeat(200)).join("e".repeat(200))).unwrap();
    std::fs::write(run.join("d".repeat(200)).join("e".repeat(200)).join("f"), "deep").unwrap();
    std::fs::write(run.join("large"), (0..900_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
        .unwrap();
    std::fs::write(run.join(OsStr::from_bytes(b"\xff\xfe")), "bytes").unwrap();
    std::fs::write(run.join(MARKUP), "").unwrap();
    std::os::unix::fs::symlink("large", run.join("link")).unwrap();
    let token = site.ok(&["token", "kek:/data/run7", "--may", "read,list"]);
    let token = format!("authz={}", token.trim());
    let whole = fetch(&site, &format!("/data/run7/?archive&{token}"), &[]);
    same(&whole, &dir.path().join("out"), &run, "run7");
    // Chosen entries, as the form sends them, without a script.
    let chosen = ["--data", "n=%25FF%25FE", "--data", "n=empty", "--data", "n=large"];
    let chosen = fetch(&site, &format!("/data/run7/?archive&{token}"), &chosen);
    let list =
        Command::new("tar").args(["--list", "--file=-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut list = list.unwrap();
    std::io::Write::write_all(&mut list.stdin.take().unwrap(), &chosen).unwrap();
    let list = String::from_utf8(list.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(list, "\\377\\376\nempty/\nlarge\n");

    let mut browser = Browser::start();
    browser.tell("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(&url(&site, &format!("/data/run7/?{token}")));
    assert_eq!(browser.value("document.querySelectorAll('.files tbody tr').length"), json!(6));
    assert_eq!(browser.value("[...document.querySelectorAll('button')].every((button) => button.hidden || button.type == 'submit')"), json!(true));
    assert_eq!(
        browser.value("document.querySelector('a[href^=large]').search"),
        json!(format!("?show&{token}"))
    );
}

#[test]
fn large_folders_come_in_pages() {
    let (_dir, site) = pop();
    (0..450).for_each(|number| std::fs::write(site.root().join(format!("f{number:03}")), "").unwrap());
    let mut browser = log_in(&site);
    browser.open(&url(&site, "/data/?sort=name&order=down"));
    browser.wait_for(&format!("{NAMES}.length == 200 && {NAMES}[0] == 'f449'"));
    follow(&mut browser, "[rel=next]");
    follow(&mut browser, "[rel=next]");
    browser.wait_for(&format!(
        "{NAMES}.length == 50 && {NAMES}[49] == 'f000' && !document.querySelector('[rel=next]')"
    ));
    assert_eq!(browser.value("document.querySelector('.paging span').innerText"), json!("401 to 450 of 450"));
}

#[test]
fn browsers_without_a_session_are_told_how_to_get_one() {
    let (_dir, site) = pop();
    let mut browser = Browser::start();
    browser.open(&url(&site, "/data/"));
    browser.wait_for("document.body.innerText.includes('renkei console kek')");
    // The administrator has no files.
    browser.open(site.ok(&["console"]).trim());
    browser.wait_for("location.pathname == '/console'");
    browser.open(&url(&site, "/data/"));
    browser.wait_for("document.body.innerText.includes('Files are opened as the account of a user')");
}

#[test]
fn pages_of_files_fit_their_screen_and_can_be_read() {
    let (_dir, site) = pop();
    std::fs::create_dir_all(site.root().join("run7/raw")).unwrap();
    let text = "# Run 7\n\nBeam on target since 12:00; see the logbook.\n".repeat(40);
    for (name, bytes) in [
        ("README.md", text.len()),
        ("events-0001.root", 7_340_032),
        ("events-0002.root", 3_000_000),
        (MARKUP, 3),
    ] {
        std::fs::write(site.root().join("run7").join(name), &text.repeat(bytes / text.len() + 1)[..bytes])
            .unwrap();
    }
    std::fs::write(site.root().join("run7").join("long-name-".repeat(20)), "").unwrap();
    let mut browser = log_in(&site);
    for path in
        ["/console/files", "/data/run7/", "/data/run7/?q=nothing", "/data/run7/README.md?show", "/data/none/"]
    {
        browser.open(&url(&site, path));
        for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light"), (360, "dark")] {
            browser.set_width(width);
            browser.set_scheme(scheme);
            let wide = browser.value("document.documentElement.scrollWidth");
            assert!(wide.as_u64().unwrap() <= u64::from(width), "{path} is {wide} wide on {width}");
            assert_eq!(browser.value(super::pages::PALE), json!([]), "{path} {width} {scheme}");
        }
        assert_eq!(browser.value(super::pages::NAMELESS), json!([]), "{path}");
    }
}
