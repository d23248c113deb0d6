//! The console over real HTTPS: logins, the contents for each user, and security headers.

pub(crate) mod browser;
pub(crate) mod conditions;
pub(crate) mod files;
pub(crate) mod inventory;
pub(crate) mod list;
pub(crate) mod pages;
pub(crate) mod web;

use crate::federation::{Federation, Site, account};
use crate::wire::records::TrustsAll;
use renkei_net::identity::tls::provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The response of the PoP.
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    head: String,
    /// The page.
    pub body: String,
}

impl Answer {
    /// The value of a header, which must be there once.
    pub fn header(&self, name: &str) -> &str {
        let named = |line: &&str| line.to_ascii_lowercase().starts_with(&format!("{name}: "));
        let mut found = self.head.lines().filter(named);
        let line = found.next().unwrap_or_else(|| panic!("no {name} in {}", self.head));
        assert!(found.next().is_none(), "{name} twice in {}", self.head);
        &line[name.len() + 2..]
    }

    /// The cookie of the response, as the browser sends it back.
    fn cookie(&self) -> String {
        self.header("set-cookie").split(';').next().unwrap().to_owned()
    }

    /// The token of the page's forms.
    pub fn form_token(&self) -> String {
        let (_, rest) = self.body.split_once("name=\"token\" value=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    }
}

/// Sends a request as a browser would, with a cookie if it has one, and a form if it posts.
pub fn ask(site: &Site, page: &str, cookie: &str, form: Option<&str>) -> Answer {
    ask_with(site, page, &format!("Cookie: other=1; {cookie}\r\n"), form)
}

/// The same, with these lines in the head.
fn ask_with(site: &Site, page: &str, lines: &str, form: Option<&str>) -> Answer {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustsAll))
        .with_no_client_auth();
    let name = ServerName::try_from("kek.internal").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut sock = TcpStream::connect(site.address).unwrap();
    sock.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut sock);
    let (method, form) = form.map_or(("GET", ""), |form| ("POST", form));
    let request = format!(
        "{method} {page} HTTP/1.1\r\nHost: kek\r\n{lines}Connection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.into(), body: body.into() }
}

/// Asks for a page.
pub fn get(site: &Site, page: &str, cookie: &str) -> Answer {
    ask(site, page, cookie, None)
}

/// The secret in a link printed by `renkei console`.
fn secret(link: &str) -> &str {
    link.trim().split_once("?t=").unwrap().1
}

/// Logs in by a link and gives the cookie.
pub fn log_in(site: &Site, link: &str) -> String {
    let answer = ask(site, "/console/login", "", Some(&format!("t={}", secret(link))));
    assert_eq!((answer.status, answer.header("location")), (303, "/console"), "{}", answer.head);
    answer.cookie()
}

/// The cookie of a user of one site at another.
pub fn user(at: &Site, of: &Site) -> String {
    log_in(at, &of.ok(&["console", &at.name]))
}

/// A transfer that takes long, until it is dropped.
pub struct Running(Child);

impl Running {
    /// From `of`'s user into a new directory of that name at `at`, slowly.
    pub fn start(of: &Site, at: &Site, name: &str) -> Running {
        let folder = of.dir().join("slow");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), vec![7; 64 << 20]).unwrap();
        std::fs::write(folder.join("a small one"), "soon there").unwrap();
        of.ok(&["mkdir", &at.place(name)]);
        let mut command = of.command();
        command.args(["-q", "cp", "-r", "--limit", "1M", folder.to_str().unwrap(), &at.place(name)]);
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until the page says so.
pub fn wait_for(site: &Site, page: &str, cookie: &str, is_there: impl Fn(&Answer) -> bool) -> Answer {
    let start = Instant::now();
    loop {
        let answer = get(site, page, cookie);
        if is_there(&answer) {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{page}: {}\n{}", answer.status, answer.body);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_login_link_works_once() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let link = kek.ok(&["console"]);
    assert!(link.starts_with(&format!("https://{}/console/login?t=", kek.address)), "{link}");
    let page = get(kek, link.trim().split_once(&kek.address.to_string()).unwrap().1, "");
    assert!(page.status == 200 && page.body.contains(secret(&link)), "looking does not use it up");
    let cookie = log_in(kek, &link);
    assert!(get(kek, "/console", &cookie).body.contains("PoP of kek"));
    let again = ask(kek, "/console/login", "", Some(&format!("t={}", secret(&link))));
    assert_eq!(again.status, 403, "{}", again.body);
    for wrong in ["t=", "", "t=%3Cscript%3E", "u=1", &format!("t={}", &secret(&link)[1..])] {
        assert_eq!(ask(kek, "/console/login", "", Some(wrong)).status, 403, "{wrong}");
    }
}

/// The pages, as they follow `/console`.
pub const PAGES: [&str; 13] = [
    "",
    "/links",
    "/transfers",
    "/transfers/x-1",
    "/storages",
    "/volumes",
    "/volumes/x",
    "/trust",
    "/mapping?who=a@kek",
    "/rules",
    "/certificates",
    "/unfinished",
    "/workers",
];

#[test]
fn a_stranger_sees_a_page_that_explains_the_login() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let answer = get(kek, "/", "");
    assert_eq!((answer.status, answer.header("location")), (303, "/console"));
    let page = get(kek, "/console", "").body;
    assert!(
        page.contains("a renkei PoP") && page.contains("<code class=\"type\">renkei console kek</code>"),
        "{page}"
    );
    let missing = get(kek, "/index.php", "");
    assert_eq!((missing.status, missing.header("content-type")), (404, "text/html; charset=utf-8"));
    assert!(missing.body.contains("There is no such page") && missing.body.contains("href=\"/console\""));
}

#[test]
fn pages_need_a_session() {
    let federation = Federation::two();
    let kek = &federation.kek;
    for page in PAGES {
        let page = format!("/console{page}");
        for cookie in ["", "__Host-renkei-kek=", "__Host-renkei-kek=00"] {
            let answer = get(kek, &page, cookie);
            assert_eq!(answer.status, 401, "{page}");
            assert!(!answer.body.contains("data-live") && answer.body.contains("renkei console kek"));
        }
    }
}

#[test]
fn security_headers_are_sent() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let link = kek.ok(&["console"]);
    let answer = ask(kek, "/console/login", "", Some(&format!("t={}", secret(&link))));
    let cookie = answer.header("set-cookie");
    for part in
        ["__Host-renkei-kek=", "; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict", "; Max-Age=43200"]
    {
        assert!(cookie.contains(part), "{cookie}");
    }
    for page in [
        "/console",
        "/console/login?t=1",
        "/console/style.css",
        "/console/script.js",
        "/console/nothing",
        "/x.y/z",
    ] {
        let answer = get(kek, page, &answer.cookie());
        assert_eq!(
            answer.status,
            if page.contains("nothing") || page == "/x.y/z" { 404 } else { 200 },
            "{page}"
        );
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert!(!answer.body.contains("style=\"") && !answer.body.contains("<script>"), "{}", answer.body);
    }
}

#[test]
fn users_see_their_own_transfers_and_the_administrator_all() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let _running = Running::start(titech, kek, "run42");
    let (own, other, all) = (user(kek, titech), user(kek, kek), log_in(kek, &kek.ok(&["console"])));
    let page = wait_for(kek, "/console/transfers", &own, |page| page.body.contains("/data/run42"));
    let (_, key) = page.body.split_once("/console/transfers/").unwrap();
    let one = format!("/console/transfers/{}", key.split('"').next().unwrap());
    assert!(get(kek, &one, &own).body.contains("Events"));
    let page = get(kek, "/console/transfers", &all);
    assert!(page.body.contains("run42") && page.body.contains(&format!("{}@titech", account())));
    assert!(get(kek, &one, &all).body.contains("data streams open"));
    assert!(!get(kek, "/console/transfers", &other).body.contains("run42"));
    assert_eq!(get(kek, &one, &other).status, 404);
    // Users of other sites do not see the trusted partners of this one, except their own site.
    for (cookie, knows) in [(&own, true), (&other, true), (&all, true)] {
        assert_eq!(get(kek, "/console/links", cookie).body.contains("titech"), knows);
    }
}

#[test]
fn names_are_escaped() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let name = "a<script>alert(1)<!--'\" onx='&amp;";
    let _running = Running::start(titech, kek, name);
    let cookie = user(kek, titech);
    let page = wait_for(kek, "/console/transfers", &cookie, |page| page.body.contains("alert"));
    assert!(!page.body.contains("<script>") && !page.body.contains("<!--'"), "{}", page.body);
    let shown = "a&lt;script&gt;alert(1)&lt;!--&#39;&quot; onx=&#39;&amp;amp;";
    assert!(page.body.contains(shown), "{}", page.body);
}

#[test]
fn cross_site_forms_are_refused() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let (cookie, other) = (log_in(kek, &kek.ok(&["console"])), user(kek, kek));
    let foreign = get(kek, "/console", &other).form_token();
    for form in ["", "token=", "token=1", &format!("token={foreign}")] {
        assert_eq!(ask(kek, "/console/logout", &cookie, Some(form)).status, 403, "{form}");
    }
    let own = format!("token={}", get(kek, "/console", &cookie).form_token());
    let out = ask(kek, "/console/logout", &cookie, Some(&own));
    assert!(out.status == 200 && out.header("set-cookie").contains("Max-Age=0"), "{}", out.head);
    assert_eq!(get(kek, "/console", &cookie).status, 401);
    assert_eq!(get(kek, "/console", &other).status, 200);
    assert_eq!(get(kek, "/console/logout", &other).status, 405, "a link ends no session");
}

#[test]
fn revoked_and_unmapped_users_lose_their_session() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let out = |answer: &Answer| answer.status == 401;
    let foreign = user(kek, titech);
    assert_eq!(get(kek, "/console", &foreign).status, 200);
    kek.ok(&["map", "remove", &format!("{}@titech", account())]);
    wait_for(kek, "/console", &foreign, out);
    let own = user(kek, kek);
    assert_eq!(get(kek, "/console", &own).status, 200);
    kek.ok(&["revoke", &format!("{}@kek", account())]);
    wait_for(kek, "/console", &own, out);
}

#[test]
fn ended_transfers_are_shown_with_their_cause() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    std::fs::write(titech.root().join("file"), vec![7; 1 << 20]).unwrap();
    titech.ok(&["cp", &titech.place("file"), &kek.place("file")]);
    let cookie = user(kek, titech);
    let page = wait_for(kek, "/console/transfers", &cookie, |page| page.body.contains(">done</span>"));
    assert!(page.body.contains("from titech") && page.body.contains("1.0M"), "{}", page.body);
    let links = get(kek, "/console/links", &cookie).body;
    assert!(links.contains("1.0M") && links.contains("<svg"), "{links}");
    let running = Running::start(titech, kek, "cut");
    wait_for(kek, "/console/transfers", &cookie, |page| page.body.contains("/data/cut"));
    drop(running);
    let page = wait_for(kek, "/console/transfers", &cookie, |page| page.body.contains("class=\"cause\""));
    let (_, key) = page.body.split_once("/console/transfers/").unwrap();
    let one = get(kek, &format!("/console/transfers/{}", key.split('"').next().unwrap()), &cookie);
    assert!(one.body.contains("What to do") && one.body.contains("RK-"), "{}", one.body);
}

/// Hands a copy to a site's queue; gives its id.
pub fn hand_in(site: &Site, arguments: &[&str]) -> String {
    site.ok(&[&["cp", "--detach"][..], arguments].concat()).trim().to_owned()
}

#[test]
fn a_queued_transfer_is_shown_and_changed() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    std::fs::write(kek.root().join("file"), vec![7; 64 << 20]).unwrap();
    let label = "\"><script>alert(1)</script>";
    let (from, to) = (kek.place("file"), titech.place("file"));
    let id = hand_in(kek, &["--limit", "1M", "--label", label, &from, &to]);
    let (own, foreign) = (user(kek, kek), user(kek, titech));
    let page = format!("/console/queue/{id}");
    let shown = wait_for(kek, &page, &own, |page| page.body.contains(">running<"));
    assert!(shown.body.contains("&quot;&gt;&lt;script&gt;alert(1)") && !shown.body.contains("<script>"));
    assert!(get(kek, "/console/transfers", &own).body.contains(&format!("/console/queue/{id}")));
    // Another user can neither see nor change it, and a cross-site form changes nothing.
    assert_eq!(get(kek, &page, &foreign).status, 404);
    let token = |cookie: &str| format!("token={}", get(kek, "/console", cookie).form_token());
    let press = |cookie: &str, form: &str, change: &str| {
        ask(kek, &format!("{page}/{change}"), cookie, Some(form)).status
    };
    assert_eq!(press(&foreign, &token(&foreign), "cancel"), 409);
    assert_eq!(press(&own, &token(&foreign), "cancel"), 403);
    assert_eq!(press("", &token(&own), "cancel"), 401);
    assert_eq!(press(&own, &token(&own), "pause"), 303);
    wait_for(kek, &page, &own, |page| page.body.contains(">paused<"));
    assert_eq!(press(&own, &token(&own), "nonsense"), 409);
    assert_eq!(press(&own, &token(&own), "resume"), 303);
    wait_for(kek, &page, &own, |page| page.body.contains(">running<"));
    let administrator = log_in(kek, &kek.ok(&["console"]));
    assert_eq!(press(&administrator, &token(&administrator), "cancel"), 303);
    wait_for(kek, &page, &own, |page| page.body.contains(">cancelled<"));
    assert_eq!(press(&own, &token(&own), "pause"), 409, "it has ended");
}

#[test]
fn a_waiting_transfer_shows_its_cause() {
    let mut federation = Federation::two();
    federation.titech.kill9();
    let kek = &federation.kek;
    std::fs::write(kek.root().join("file"), "text").unwrap();
    let first = hand_in(kek, &[&kek.place("file"), &federation.titech.place("file")]);
    let second = hand_in(kek, &["--after", &first, &kek.place("file"), &kek.place("copy")]);
    let own = user(kek, kek);
    let page = format!("/console/queue/{first}");
    let shown = wait_for(kek, &page, &own, |page| page.body.contains("What to do"));
    assert!(shown.body.contains("RK-NET-") && shown.body.contains(">waiting<"), "{}", shown.body);
    let list = get(kek, "/console/transfers", &own).body;
    assert!(list.contains("Waits for other transfers: 1") && list.contains("Tried again in"), "{list}");
    let shown = get(kek, &format!("/console/queue/{second}"), &own);
    assert!(shown.body.contains(&format!("/console/queue/{first}")), "{}", shown.body);
    federation.titech.restart();
    let kek = &federation.kek;
    let token = format!("token={}", get(kek, "/console", &own).form_token());
    assert_eq!(ask(kek, &format!("{page}/retry"), &own, Some(&token)).status, 303);
    wait_for(kek, &page, &own, |page| page.body.contains(">done<"));
    wait_for(kek, &format!("/console/queue/{second}"), &own, |page| page.body.contains(">done<"));
}

#[test]
fn a_cross_site_form_logs_nobody_in() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let link = kek.ok(&["console"]);
    let form = format!("t={}", secret(&link));
    for from in [
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://kek\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\nOrigin: https://kek\r\n",
    ] {
        let answer = ask_with(kek, "/console/login", from, Some(&form));
        assert_eq!(answer.status, 403, "{from}");
        assert!(!answer.head.to_ascii_lowercase().contains("set-cookie"), "{}", answer.head);
    }
    // The link was not used up by that.
    let own = "Origin: https://kek\r\nSec-Fetch-Site: same-origin\r\n";
    assert_eq!(ask_with(kek, "/console/login", own, Some(&form)).status, 303);
}
