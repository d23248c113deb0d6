//! Remedies depend on the case: the reader, the account of the attempt, and the exact command.

use crate::federation::{Federation, Site, account};
use crate::transfer::fail_fast::with_daemon;
use renkei_net::identity::credential::KeyRequest;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;

/// The remedy of a command that fails.
fn remedy(site: &Site, arguments: &[&str]) -> (Value, String) {
    let (status, told) = site.json(arguments);
    assert_ne!(status, 0, "{told}");
    // A command that moved nothing reports the failure.
    let error = if told["error"].is_object() { &told["error"] } else { &told["failures"][0] };
    (error.clone(), error["remedy"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned())
}

/// The same without the directory, which commands of tests always name.
fn plain(site: &Site, told: &str) -> String {
    told.replace(&format!(" --dir {}", site.dir().display()), "")
}

#[test]
fn an_unreachable_site_is_reported_to_its_administrator_and_to_others() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    kek.stop();
    let (error, told) = remedy(titech, &["ls", &kek.root_place()]);
    assert_eq!(error["code"], "RK-NET-2");
    assert!(told.starts_with("kek is another site: its administrator"), "{told}");
    let told = plain(titech, &told);
    assert!(told.contains("`renkei doctor kek`") && told.contains("--detach"), "{told}");
    let (_, own) = remedy(kek, &["ls", &kek.root_place()]);
    let serve = format!("start your PoP: `renkei --dir {} serve`", kek.dir().display());
    assert!(own.starts_with(&serve), "{own}");
    let (error, running) = remedy(kek, &["status"]);
    let own = kek.dir().to_str().unwrap();
    assert!(
        error["subject"].as_str().unwrap().starts_with(own),
        "no other PoP of the machine is asked: {error}"
    );
    assert_eq!(running, format!("start it: `renkei --dir {} serve`", kek.dir().display()));
}

#[test]
fn permission_denied_names_the_account_and_the_command() {
    let Some(federation) = with_daemon() else { return };
    let Federation { titech, kek, .. } = &federation;
    std::fs::create_dir(kek.root().join("closed")).unwrap();
    let file = federation.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    let (error, told) = remedy(titech, &["cp", file.to_str().unwrap(), &kek.place("closed/file")]);
    let cause = error["cause"].as_str().unwrap();
    assert!(cause.starts_with("daemon may not write in it: root:root drwxr-xr-x"), "{error}");
    assert!(told.starts_with("at kek you work as daemon: "), "{told}");
    assert!(told.ends_with("`setfacl -m u:daemon:rwx` on that directory"), "{told}");
}

#[test]
fn the_owner_of_a_directory_is_advised_to_use_chmod() {
    let Some(federation) = with_daemon() else { return };
    let Federation { titech, kek, .. } = &federation;
    let closed = kek.root().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let daemon = renkei_net::identity::account::Account::lookup("daemon").unwrap();
    std::os::unix::fs::chown(&closed, Some(daemon.uid), Some(0)).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    let file = federation.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    let copy = ["cp", file.to_str().unwrap(), &kek.place("closed/file")];
    let (error, told) = remedy(titech, &copy);
    let told = plain(titech, &told);
    assert!(told.ends_with("`renkei chmod u+rwx kek:/data/closed`"), "{told}: {error}");
    titech.ok(&["chmod", "u+rwx", "kek:/data/closed"]);
    titech.ok(&copy);
}

#[test]
fn a_name_that_is_not_utf_8_can_be_reported() {
    use std::os::unix::ffi::OsStrExt;
    let federation = Federation::two();
    let odd = std::ffi::OsStr::from_bytes(b"kek:/data/none\xff");
    let output = federation.titech.command().arg("ls").arg(odd).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && told.contains("what to do"), "{output:?}");
}

#[test]
fn each_refusal_names_account_directory_and_mode() {
    let Some(federation) = with_daemon() else { return };
    let Federation { titech, kek, .. } = &federation;
    let closed = kek.root().join("closed");
    std::fs::create_dir_all(closed.join("sub")).unwrap();
    std::fs::write(closed.join("file"), "x").unwrap();
    std::fs::write(closed.join("secret"), "x").unwrap();
    std::fs::write(kek.root().join("own"), "x").unwrap();
    for name in ["secret", "sub"] {
        std::fs::set_permissions(closed.join(name), std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let place = |name: &str| kek.place(name);
    let by_directory = "daemon may not write in it: root:root drwxr-xr-x";
    let cases = [
        (vec!["mkdir".to_owned(), place("closed/new")], "/data/closed", by_directory),
        (vec!["rm".into(), place("closed/file")], "/data/closed", by_directory),
        (vec!["mv".into(), place("own"), place("closed/")], "/data/closed", by_directory),
        (vec!["mv".into(), place("closed/file"), place("own2")], "/data/closed", by_directory),
        (vec!["put".into(), place("closed/put")], "/data/closed", by_directory),
        (vec!["ln".into(), "-s".into(), "own".into(), place("closed/link")], "/data/closed", by_directory),
        (
            vec!["ls".into(), place("closed/sub")],
            "/data/closed/sub",
            "daemon may not read it: root:root drwx------",
        ),
        (
            vec!["cat".into(), place("closed/secret")],
            "/data/closed/secret",
            "daemon may not read it: root:root -rwx------",
        ),
        (
            vec!["checksum".into(), place("closed/secret")],
            "/data/closed/secret",
            "daemon may not read it: root:root -rwx------",
        ),
        (
            vec!["chmod".into(), "700".into(), place("closed/file")],
            "/data/closed/file",
            "daemon may not change it: root:root -rw-r--r--",
        ),
    ];
    for (words, subject, cause) in cases {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (error, told) = remedy(titech, &words);
        assert_eq!(error["code"], "RK-STORE-5", "{words:?}: {error}");
        assert_eq!(
            (&error["subject"], &error["cause"]),
            (&subject.into(), &cause.into()),
            "{words:?}: {error}"
        );
        assert!(told.contains("kek") && told.contains("daemon"), "{words:?}: {told}");
    }
}

#[test]
fn suggested_commands_are_complete() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    std::fs::create_dir_all(kek.root().join("my run/sub")).unwrap();
    for (arguments, meant) in [
        (
            vec!["storage", "lst"],
            "did you mean `renkei storage list`? `renkei help storage` lists the commands",
        ),
        (
            vec!["cp", "--recursiv", "a", "b"],
            "did you mean --recursive? `renkei help cp` explains the command",
        ),
        (
            vec!["ls", "kek:/data/my run/x/y"],
            "check the path: `renkei ls 'kek:/data/my run/x'` lists what is there",
        ),
        (
            vec!["rm", "kek:/data/my run"],
            "`renkei rm -r 'kek:/data/my run'` removes it with all that is in it",
        ),
        (vec!["cat", "kek:/data/my run"], "name a file: `renkei ls 'kek:/data/my run'` lists those in it"),
        (vec!["ls", "kek:/dat"], "`renkei ls kek:/` lists the storages you may use"),
        (
            vec!["rmdir", "kek:/data/my run"],
            "`renkei rm -r 'kek:/data/my run'` removes it with all that is in it",
        ),
        (vec!["mkdir", "kek:/data/a/b/c"], "add -p to make the directories above it, too"),
        (vec!["ls", "kek:/Data"], "did you mean kek:/data? The names of storages are small letters"),
        (vec!["chmod", "9", "kek:/data/x"], "see `renkei help chmod`"),
        (vec!["rule", "remove", "none"], "`renkei rule list` lists the rules"),
    ] {
        let (error, told) = remedy(titech, &arguments);
        assert_eq!(plain(titech, &told), meant, "{arguments:?}: {error}");
    }
    let (error, _) = remedy(titech, &["ls", "kek:/dat"]);
    assert_eq!(error["cause"], "did you mean data?");
    let (error, _) = remedy(titech, &["ls", "kek:/elsewhere"]);
    assert_eq!(error["cause"], "there are data");
}

#[test]
fn printed_commands_name_the_given_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("pop").to_str().unwrap().to_owned();
    let run = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_renkei")).args(words).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let made = run(&["--dir", &dir, "init", "--site", "titech", "--endpoint", "127.0.0.1:7512"]);
    let next: Vec<&str> = made.lines().skip_while(|line| *line != "Next:").skip(1).map(str::trim).collect();
    assert!(
        next.contains(&&*format!(
            "renkei login --pop {dir}{}as any user of this machine: get a certificate",
            gap(&next, &dir)
        )),
        "{made}"
    );
    assert!(
        next.iter().filter(|line| line.starts_with(&format!("renkei --dir {dir} "))).count() == 4,
        "{made}"
    );
    let told = run(&["--dir", &dir, "ls", "kek:/data"]);
    assert!(told.contains(&format!("`renkei --dir {dir} login`")), "{told}");
}

/// The space between command and explanation of the line about the login.
fn gap(lines: &[&str], dir: &str) -> String {
    let line = lines.iter().find_map(|line| line.strip_prefix(&*format!("renkei login --pop {dir}")));
    line.unwrap_or_default().chars().take_while(|c| *c == ' ').collect()
}

#[test]
fn a_read_only_grant_names_the_volume_and_the_grant_and_no_temporary_name() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let user = format!("{}@titech", account());
    // A guest: no rule maps the user, and a grant lets the user read.
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
fn misspelt_names_get_a_suggestion() {
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
        assert!(plain(titech, &told).starts_with(meant), "{arguments:?}: {told}");
    }
    assert!(!kek.name.is_empty());
}

#[test]
fn an_expired_login_says_how_it_was_created() {
    let federation = Federation::two();
    let titech = &federation.titech;
    titech.ok(&["login", "--hours", "3", "--pop", titech.dir().to_str().unwrap()]);
    let home = crate::wire::raw::home(titech);
    let authority = renkei_net::identity::authority::Authority::load(&home).unwrap();
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
fn a_laptop_without_a_pop_is_referred_to_ssh() {
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
