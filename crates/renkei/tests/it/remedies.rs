//! What to do is told by the case: who reads it, as which account it was tried, and exactly what to type.

use crate::fail_fast::with_daemon;
use crate::federation::{Federation, Site, account};
use renkei::identity::credential::KeyRequest;
use serde_json::Value;

/// What a command that fails says is to be done.
fn remedy(site: &Site, arguments: &[&str]) -> (Value, String) {
    let (status, told) = site.json(arguments);
    assert_ne!(status, 0, "{told}");
    // One that moved nothing reports what failed.
    let error = if told["error"].is_object() { &told["error"] } else { &told["failures"][0] };
    (error.clone(), error["remedy"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned())
}

#[test]
fn a_site_that_is_down_is_told_to_its_administrator_and_to_others() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    kek.stop();
    let (error, told) = remedy(titech, &["ls", &kek.root_place()]);
    assert_eq!(error["code"], "RK-NET-2");
    assert!(told.starts_with("kek is another site: its administrator"), "{told}");
    assert!(told.contains("`renkei doctor kek`") && told.contains("--detach"), "{told}");
    let (_, own) = remedy(kek, &["ls", &kek.root_place()]);
    let serve = format!("start your PoP: `renkei --dir {} serve`", kek.dir().display());
    assert!(own.starts_with(&serve), "{own}");
    let (_, running) = remedy(kek, &["status"]);
    assert_eq!(running, format!("start it: `renkei --dir {} serve`", kek.dir().display()));
}

#[test]
fn permission_denied_names_the_account_and_what_to_type() {
    let Some(federation) = with_daemon() else { return };
    let Federation { titech, kek, .. } = &federation;
    std::fs::create_dir(kek.root().join("closed")).unwrap();
    let file = federation.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    let (error, told) = remedy(titech, &["cp", file.to_str().unwrap(), &kek.place("closed/file")]);
    let cause = error["cause"].as_str().unwrap();
    assert!(cause.starts_with("daemon may not write in it: root:root drwxr-xr-x"), "{error}");
    assert!(told.starts_with("at kek you work as daemon: "), "{told}");
    assert!(told.ends_with("`setfacl -m u:daemon:rwx /data/closed`"), "{told}");
}

#[test]
fn a_read_only_grant_names_the_volume_and_the_grant_and_no_temporary_name() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let user = format!("{}@titech", account());
    // A guest: nobody maps the user, and a grant lets the user read.
    kek.ok(&["map", "remove", &user]);
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    kek.ok(&["volume", "grant", "genome", &user, "read"]);
    std::fs::write(kek.root().join("genome/a"), "a").unwrap();
    let file = federation.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    let (error, told) = remedy(titech, &["cp", file.to_str().unwrap(), "kek:/genome/file"]);
    assert_eq!(error["code"], "RK-AUTH-14", "{error}");
    assert!(!error.to_string().contains(".rk~"), "{error}");
    assert!(told.ends_with(&format!("`renkei volume grant genome {user} write`")), "{told}");
    assert!(told.contains("administrator of kek"), "{told}");
    // And at a site that follows with a read grant.
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    titech.ok(&["volume", "subscribe", "genome", "--from", "kek", "--storage", "data"]);
    let (error, told) = remedy(titech, &["cp", file.to_str().unwrap(), "titech:/genome/file"]);
    assert_eq!(error["code"], "RK-STORE-8", "{error}");
    assert!(!error.to_string().contains(".rk~"), "{error}");
    assert_eq!(told, "ask the administrator of kek for `renkei volume grant genome titech write`");
}

#[test]
fn names_that_are_nearly_right_are_corrected() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let file = federation.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, meant) in [
        (&["ls", "KEK:/data"][..], "did you mean kek:/data?"),
        (&["cp", "KEK:/data/x", file], "did you mean kek:/data/x?"),
        (&["doctor", "KEK"], "did you mean kek?"),
        (&["ls", "kekk:/data"], "did you mean kek?"),
        (&["lss", "kek:/data"], "did you mean `renkei ls`?"),
    ] {
        let (_, told) = remedy(titech, arguments);
        assert!(told.starts_with(meant), "{arguments:?}: {told}");
    }
    assert!(!kek.name.is_empty());
}

#[test]
fn a_login_that_has_expired_says_how_it_was_made() {
    let federation = Federation::two();
    let titech = &federation.titech;
    titech.ok(&["login", "--hours", "3", "--pop", titech.dir().to_str().unwrap()]);
    let home = crate::raw::home(titech);
    let authority = renkei::identity::authority::Authority::load(&home).unwrap();
    let yesterday = std::time::SystemTime::now() - std::time::Duration::from_secs(86_400);
    let request = KeyRequest::generate().unwrap();
    let issued = authority.issue_user(&account(), &request.request, 1, yesterday).unwrap();
    let key: &str = &request.key;
    std::fs::write(home.user_credential(), format!("{}{key}", issued.pem)).unwrap();
    let (error, told) = remedy(titech, &["ls", "kek:/data"]);
    assert_eq!(error["code"], "RK-AUTH-1", "{error}");
    let again = format!("`renkei login --pop {} --hours 3`", titech.dir().display());
    assert!(told.starts_with(&again), "{told}");
}

#[test]
fn a_laptop_without_a_pop_is_told_of_ssh() {
    let federation = Federation::two();
    let laptop = federation.scratch().join("laptop");
    std::fs::create_dir(&laptop).unwrap();
    if std::path::Path::new("/etc/renkei/config.toml").exists() {
        return eprintln!("SKIPPED: this machine has a PoP");
    }
    let mut command = federation.titech.command_in(&laptop);
    let output = command.args(["--json", "status"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let remedy = told["error"]["remedy"].as_str().unwrap();
    assert!(remedy.contains("`renkei login --ssh USER@HOST`"), "{told}");
}
