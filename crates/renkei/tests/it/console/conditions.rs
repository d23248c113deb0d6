//! Conditions for the administrator: `/healthz`, `/metrics`, `status`, `doctor` and the console have one list of problems,
//! each with its code, its begin and its remedy.

use crate::cli::errors::Mounted;
use crate::console::{get, log_in};
use crate::federation::{Federation, Site};
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(60);

/// The condition of a thing in `status`.
fn condition(site: &Site, what: &str, name: &str) -> Option<Value> {
    let (_, status) = site.json(&["status"]);
    let all = status["conditions"].as_array().expect("the administrator sees conditions").clone();
    all.into_iter().find(|one| one["what"] == what && one["name"] == name)
}

/// Waits for a condition.
pub fn comes(site: &Site, what: &str, name: &str) -> Value {
    let start = Instant::now();
    loop {
        if let Some(found) = condition(site, what, name) {
            return found;
        }
        assert!(start.elapsed() < WITHIN, "no {what} {name}: {}", site.json(&["status"]).1);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until there is none any more.
pub fn goes(site: &Site, what: &str, name: &str) {
    let start = Instant::now();
    while let Some(still) = condition(site, what, name) {
        assert!(start.elapsed() < WITHIN, "still: {still}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// All reports agree: `found` is the condition in `status`.
fn is_reported_everywhere(site: &Site, found: &Value) {
    is_reported_to(site, &log_in(site, &site.ok(&["console"])), found);
}

fn is_reported_to(site: &Site, cookie: &str, found: &Value) {
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    let (what, name, code, severity) = (text("what"), text("name"), text("code"), text("severity"));
    let subject = if name.is_empty() { what.clone() } else { format!("{what} {name}") };

    let health = get(site, "/healthz", "");
    let others = site.json(&["status"]).1["conditions"].as_array().unwrap().clone();
    let expected = if others.iter().any(|one| one["severity"] == "critical") { 503 } else { 200 };
    assert_eq!(health.status, expected, "{}", health.body);
    let body: Value = serde_json::from_str(&health.body).unwrap();
    let told = body["conditions"].as_array().unwrap().clone();
    let told = told.iter().find(|one| one["what"] == what.as_str() && one["code"] == code.as_str());
    let told = told.unwrap_or_else(|| panic!("{subject} is not in {body}"));
    assert_eq!((&told["severity"], &told["since_unix"]), (&found["severity"], &found["since_unix"]));

    let metrics = get(site, "/metrics", "").body;
    let labels = format!(
        "what=\"{what}\",name=\"{name}\",severity=\"{severity}\",code=\"{code}\"}} {}",
        found["since_unix"]
    );
    assert!(metrics.contains(&format!("renkei_condition_since_seconds{{{labels}")), "{labels}\n{metrics}");

    let (status, doctor) = site.json(&["doctor"]);
    let checks = doctor["checks"].as_array().unwrap().clone();
    let check = checks.iter().find(|one| one["what"] == subject.as_str());
    let check = check.unwrap_or_else(|| panic!("{subject} is not in {doctor}"));
    let level = if severity == "critical" { "fail" } else { "warn" };
    assert_eq!((&check["level"], &check["code"]), (&level.into(), &found["code"]), "{check}");
    assert_eq!(check["remedy"], found["remedy"]);
    assert_eq!(status != 0, checks.iter().any(|one| one["level"] == "fail"));

    let page = get(site, "/console", cookie).body;
    assert!(page.contains(&format!("{severity}, {subject}:")) && page.contains(&code), "{page}");
}

#[test]
fn a_healthy_pop_reports_no_condition() {
    let federation = Federation::two();
    let (status, told) = federation.titech.json(&["status"]);
    assert_eq!((status, &told["conditions"]), (0, &Value::Array(Vec::new())));
    let health = get(&federation.titech, "/healthz", "");
    assert!(health.status == 200 && health.body.contains("\"status\":\"ok\""), "{}", health.body);
}

#[test]
fn a_rejected_configuration_is_reported_until_it_is_fixed() {
    let federation = Federation::two();
    let titech = &federation.titech;
    let config = titech.dir().join("config.toml");
    let cookie = log_in(titech, &titech.ok(&["console"]));
    let good = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("nonsense = 1\n{good}")).unwrap();
    let found = comes(titech, "configuration", "");
    assert_eq!((&found["code"], &found["severity"]), (&"RK-CONF-1".into(), &"critical".into()));
    is_reported_to(titech, &cookie, &found);
    let health = get(titech, "/healthz", "").body;
    assert!(!health.contains("nonsense"), "strangers hear of no content: {health}");
    std::fs::write(&config, good).unwrap();
    goes(titech, "configuration", "");
    assert!(titech.logged().contains("condition cleared"), "{}", titech.logged());
}

#[test]
fn a_missing_storage_is_reported_everywhere_and_its_time_survives_a_restart() {
    let mut federation = Federation::two();
    let titech = &mut federation.titech;
    titech.stop();
    let aside = titech.root().with_extension("aside");
    std::fs::rename(titech.root(), &aside).unwrap();
    titech.restart();
    let found = comes(titech, "storage", "data");
    assert_eq!((&found["code"], &found["severity"]), (&"RK-STORE-17".into(), &"critical".into()));
    is_reported_everywhere(titech, &found);
    // A second later it is another second.
    let since = found["since_unix"].as_u64().unwrap();
    let start = Instant::now();
    while std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() <= since + 1 {
        assert!(start.elapsed() < WITHIN);
        std::thread::sleep(Duration::from_millis(50));
    }
    titech.restart();
    assert_eq!(comes(titech, "storage", "data")["since_unix"], found["since_unix"]);
    std::fs::rename(&aside, titech.root()).unwrap();
    goes(titech, "storage", "data");
}

#[test]
fn an_expiring_certificate_is_reported_with_growing_severity() {
    let federation = Federation::two();
    let titech = &federation.titech;
    let home = crate::wire::raw::home(titech);
    // Without the authority's key at hand nothing renews it.
    let authority = renkei_net::identity::authority::Authority::load(&home).unwrap();
    let (key, away) = (home.ca_key(), titech.dir().join("away.key"));
    std::fs::rename(&key, &away).unwrap();
    for (days, severity) in [(20, "info"), (5, "warning")] {
        // As if it had been made so long ago that it has so many days left.
        let made = std::time::SystemTime::now() - Duration::from_secs((365 - days) * 86_400);
        let names = [titech.address.to_string()];
        renkei_net::identity::authority::renew_host(&home, &authority, &names, false, made).unwrap();
        let start = Instant::now();
        loop {
            let found = comes(titech, "certificate", "host");
            if found["severity"] == severity {
                assert_eq!(found["code"], "RK-SYS-5");
                break is_reported_everywhere(titech, &found);
            }
            assert!(start.elapsed() < WITHIN, "{found}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    std::fs::rename(&away, &key).unwrap();
    titech.ok(&["renew"]);
    goes(titech, "certificate", "host");
}

#[test]
fn a_line_that_is_down_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Site::start(dir.path(), "hub");
    let lonely = Site::start_private(dir.path(), "lonely", &hub);
    hub.kill9();
    let found = comes(&lonely, "line", "hub");
    assert_eq!((&found["code"], &found["severity"]), (&"RK-NET-2".into(), &"critical".into()));
    assert!(found["remedy"].as_str().unwrap().contains("doctor hub"), "{found}");
    is_reported_everywhere(&lonely, &found);
    hub.restart();
    goes(&lonely, "line", "hub");
}

#[test]
fn a_failing_volume_its_follower_and_a_partner_that_is_down_are_reported() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    titech.ok(&["volume", "create", "genome", "--storage", "data"]);
    titech.ok(&["volume", "grant", "genome", "kek", "read"]);
    kek.ok(&["volume", "subscribe", "genome", "--from", "titech", "--storage", "data"]);
    titech.stop();
    let volume = comes(kek, "volume", "genome");
    assert!(volume["found"].as_str().unwrap().contains("titech is no longer followed"), "{volume}");
    is_reported_everywhere(kek, &volume);
    let partner = comes(kek, "partner", "titech");
    assert_eq!((&partner["code"], &partner["severity"]), (&"RK-NET-2".into(), &"warning".into()));
    is_reported_everywhere(kek, &partner);
    titech.restart();
    goes(kek, "volume", "genome");
    goes(kek, "partner", "titech");
    // The other way round: the home misses its follower.
    kek.stop();
    let follower = comes(titech, "follower", "genome at kek");
    assert_eq!(follower["code"], "RK-SYS-7");
    is_reported_everywhere(titech, &follower);
    kek.restart();
    goes(titech, "follower", "genome at kek");
    // Its directory goes.
    titech.stop();
    std::fs::rename(titech.root().join("genome"), titech.root().join("elsewhere")).unwrap();
    titech.restart();
    let trouble = comes(titech, "volume", "genome");
    assert_eq!(trouble["severity"], "critical", "{trouble}");
    is_reported_everywhere(titech, &trouble);
}

#[test]
fn a_stalled_queue_and_a_failing_rule_are_reported() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    std::fs::create_dir(titech.root().join("drop")).unwrap();
    titech.ok(&["rule", "add", "raw", "titech:/data/drop", "kek:/data/raw", "--settle", "1"]);
    std::fs::write(titech.root().join("file"), "x").unwrap();
    kek.stop();
    titech.ok(&["cp", "--detach", &titech.place("file"), &kek.place("file")]);
    let queue = comes(titech, "queue", "titech to kek");
    assert_eq!((&queue["code"], &queue["severity"]), (&"RK-NET-2".into(), &"warning".into()));
    is_reported_everywhere(titech, &queue);
    std::fs::remove_dir(titech.root().join("drop")).unwrap();
    let rule = comes(titech, "rule", "raw");
    assert_eq!(rule["code"], "RK-STORE-1");
    is_reported_everywhere(titech, &rule);
    std::fs::create_dir(titech.root().join("drop")).unwrap();
    kek.restart();
    goes(titech, "rule", "raw");
    goes(titech, "queue", "titech to kek");
}

#[test]
fn low_space_is_reported() {
    let federation = Federation::two();
    let titech = &federation.titech;
    let small = federation.scratch().join("small");
    let Some(_mounted) = Mounted::tmpfs(&small, "size=4m") else { return };
    titech.ok(&["storage", "add", "small", small.to_str().unwrap()]);
    std::fs::write(small.join("fill"), vec![0; 4_100_000]).unwrap();
    let room = comes(titech, "room", "small");
    assert_eq!((&room["code"], &room["severity"]), (&"RK-SYS-6".into(), &"warning".into()));
    is_reported_everywhere(titech, &room);
    std::fs::remove_file(small.join("fill")).unwrap();
    goes(titech, "room", "small");
}

#[test]
fn a_dead_partner_without_traffic_is_reported() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(kek.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    let cookie = log_in(titech, &titech.ok(&["console"]));
    assert!(condition(titech, "partner", "kek").is_none());
    signal(rustix::process::Signal::STOP);
    // The page says two minutes; a busy machine gets some more.
    let start = Instant::now();
    let found = loop {
        match condition(titech, "partner", "kek") {
            Some(found) => break found,
            None => assert!(start.elapsed() < 4 * WITHIN, "not told"),
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    let links = get(titech, "/console/links", &cookie).body;
    signal(rustix::process::Signal::CONT);
    assert_eq!(found["code"], "RK-NET-1", "{found}");
    // Both the map and the table say so.
    assert_eq!(links.matches("not reached: RK-NET-1").count(), 2, "{links}");
    // It is over by itself, too.
    goes(titech, "partner", "kek");
}

#[test]
fn the_background_threads_are_listed_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    let begun = Instant::now();
    // The first turns come within seconds of the start.
    let watch = loop {
        let workers = site.json(&["status", "--workers"]).1["workers"].clone();
        let found = workers.as_array().unwrap().iter().find(|worker| worker["name"] == "watch").cloned();
        if let Some(watch) = found.filter(|watch| watch["turns"].as_u64().is_some_and(|turns| turns > 1)) {
            break watch;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{workers}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(watch["last_run_unix"].is_u64() && watch["error"].is_null(), "{watch}");
    assert!(watch["task"].as_str().unwrap().contains("configuration"), "{watch}");
    assert!(site.ok(&["status", "--workers"]).lines().any(|line| line.starts_with("watch ")));
    let metrics = get(&site, "/metrics", "").body;
    for metric in ["renkei_worker_turns", "renkei_worker_last_turn_seconds", "renkei_worker_failed"] {
        assert!(metrics.contains(&format!("{metric}{{worker=\"watch\"}}")), "{metric}: {metrics}");
    }
}
