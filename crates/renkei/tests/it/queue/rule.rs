//! Drop folders: files from ordinary tools arrive at another site, once they are complete, with their owner's rights.
//! The tools are real ones, over a real sshd.

use crate::federation::{Federation, Site, free_address};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(60);

/// Waits until something holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WITHIN, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A rule `raw` from titech's folder `drop` to kek's folder `raw`.
fn with_rule(options: &[&str]) -> (Federation, PathBuf, PathBuf) {
    let federation = Federation::two();
    let (drop, raw) = (federation.titech.root().join("drop"), federation.kek.root().join("raw"));
    std::fs::create_dir(&drop).unwrap();
    let rule = ["rule", "add", "raw", "titech:/data/drop", "kek:/data/raw", "--settle", "1"];
    federation.titech.ok(&[&rule[..], options].concat());
    (federation, drop, raw)
}

fn has(path: &Path, content: &[u8]) -> bool {
    std::fs::read(path).is_ok_and(|found| found == content)
}

/// An sshd of this account alone, with a key that lets it in.
struct Sshd {
    process: Child,
    port: u16,
    key: PathBuf,
}

impl Sshd {
    fn start(dir: &Path) -> Sshd {
        let (host_key, key) = (dir.join("host_key"), dir.join("key"));
        for path in [&host_key, &key] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
            assert!(made.unwrap().success());
        }
        let keys = dir.join("authorized_keys");
        std::fs::copy(dir.join("key.pub"), &keys).unwrap();
        let port = free_address().port();
        let config = dir.join("sshd_config");
        let text = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             PermitRootLogin yes\nUsePAM no\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n",
            host_key.display(),
            keys.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut sshd = Command::new("/usr/sbin/sshd");
        // It keeps its unprivileged part there.
        if rustix::process::geteuid().is_root() {
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        let process = sshd.args(["-D", "-e", "-f"]).arg(&config).stderr(Stdio::null()).spawn().unwrap();
        wait_until("sshd listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Sshd { process, port, key }
    }

    fn options(&self) -> Vec<String> {
        let option = |text: String| ["-o".to_owned(), text];
        [
            option(format!("Port={}", self.port)),
            option(format!("IdentityFile={}", self.key.display())),
            option("StrictHostKeyChecking=no".into()),
            option("UserKnownHostsFile=/dev/null".into()),
            option("LogLevel=ERROR".into()),
            option("BatchMode=yes".into()),
        ]
        .concat()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn files_from_scp_sftp_and_rsync_are_forwarded() {
    let (federation, drop, raw) = with_rule(&[]);
    let scratch = federation.scratch();
    let sshd = Sshd::start(&scratch);
    let run7 = scratch.join("run7/a/b");
    std::fs::create_dir_all(&run7).unwrap();
    std::fs::write(run7.join("c.dat"), vec![7; 300_000]).unwrap();
    std::fs::write(scratch.join("run7/d.dat"), "d").unwrap();
    let odd = std::ffi::OsString::from_vec(b"caf\xe9.dat".to_vec());
    std::fs::write(scratch.join(&odd), "odd").unwrap();
    let there = format!("127.0.0.1:{}/", drop.display());
    run(Command::new("scp").args(sshd.options()).args(["-r", "-q"]).arg(scratch.join("run7")).arg(&there));
    let batch = scratch.join("batch");
    std::fs::write(
        &batch,
        format!("put {} {}/by-sftp", scratch.join("run7/d.dat").display(), drop.display()),
    )
    .unwrap();
    run(Command::new("sftp").args(sshd.options()).arg("-q").arg("-b").arg(&batch).arg("127.0.0.1"));
    let shell = format!("ssh {}", sshd.options().join(" "));
    run(Command::new("rsync").args(["-t", "-e", &shell]).arg(scratch.join(&odd)).arg(&there));
    for (name, content) in
        [("run7/a/b/c.dat", vec![7; 300_000]), ("run7/d.dat", b"d".to_vec()), ("by-sftp", b"d".to_vec())]
    {
        wait_until(name, || has(&raw.join(name), &content));
    }
    wait_until("the name that is not UTF-8", || has(&raw.join(&odd), b"odd"));
    let stamp = |path: &Path| path.metadata().map(|metadata| (metadata.mtime(), metadata.mode())).unwrap();
    assert_eq!(stamp(&raw.join("run7/a/b/c.dat")), stamp(&drop.join("run7/a/b/c.dat")));
    let (_, listed) = federation.titech.json(&["transfers", "--all", "--ended"]);
    let labels: Vec<_> =
        listed["transfers"].as_array().unwrap().iter().map(|one| one["label"].clone()).collect();
    assert!(!labels.is_empty() && labels.iter().all(|label| label == "rule raw"), "{labels:?}");
}

#[test]
fn a_file_being_written_waits_and_a_changed_one_is_forwarded_again() {
    let (_federation, drop, raw) = with_rule(&[]);
    let mut slow = File::create(drop.join("slow")).unwrap();
    slow.write_all(b"first ").unwrap();
    std::fs::write(drop.join(".hidden"), "x").unwrap();
    std::fs::write(drop.join("done"), "x").unwrap();
    wait_until("the complete one", || has(&raw.join("done"), b"x"));
    // It had the time to settle that the other had, and more.
    std::thread::sleep(Duration::from_secs(3));
    assert!(!raw.join("slow").exists() && !raw.join(".hidden").exists());
    slow.write_all(b"second").unwrap();
    std::mem::drop(slow);
    wait_until("the slow one", || has(&raw.join("slow"), b"first second"));
    std::fs::write(drop.join("done"), "changed").unwrap();
    wait_until("the changed one", || has(&raw.join("done"), b"changed"));
}

#[test]
fn forwarded_files_are_removed_if_the_rule_says_so() {
    let (mut federation, drop, raw) = with_rule(&["--remove"]);
    federation.kek.stop();
    std::fs::write(drop.join("a"), "a").unwrap();
    wait_until("a transfer waits", || {
        let (_, listed) = federation.titech.json(&["transfers"]);
        listed["transfers"].as_array().is_some_and(|all| all.iter().any(|one| one["state"] == "waiting"))
    });
    // Neither a PoP that was killed nor a site that is away loses it, and it stays until it has arrived.
    federation.titech.restart();
    assert!(drop.join("a").exists());
    federation.kek.restart();
    wait_until("it arrives", || has(&raw.join("a"), b"a"));
    wait_until("it is removed", || !drop.join("a").exists());
}

#[test]
fn missing_or_symlinked_folders_do_not_block_others() {
    let (mut federation, drop, raw) = with_rule(&[]);
    federation.kek.stop();
    // All of it appears at once, so that it is one transfer.
    let (hidden, run) = (drop.join(".run"), drop.join("run"));
    for name in ["gone/f", "linked/f", "stays/f"] {
        std::fs::create_dir_all(hidden.join(name).parent().unwrap()).unwrap();
        std::fs::write(hidden.join(name), "x").unwrap();
    }
    std::fs::create_dir(federation.titech.root().join("other")).unwrap();
    std::fs::write(federation.titech.root().join("other/f"), "of another folder").unwrap();
    std::fs::rename(&hidden, &run).unwrap();
    wait_until("a transfer waits", || {
        let (_, listed) = federation.titech.json(&["transfers"]);
        listed["transfers"].as_array().is_some_and(|all| all.iter().any(|one| one["state"] == "waiting"))
    });
    std::fs::remove_dir_all(run.join("gone")).unwrap();
    std::fs::remove_dir_all(run.join("linked")).unwrap();
    std::os::unix::fs::symlink("../../other", run.join("linked")).unwrap();
    federation.kek.restart();
    let transfers = || {
        federation.titech.json(&["transfers", "--all", "--ended"]).1["transfers"].as_array().unwrap().clone()
    };
    wait_until("the transfer ends", || transfers().iter().all(|one| !one["ended"].is_null()));
    assert!(has(&raw.join("run/stays/f"), b"x"), "{:?}", transfers());
    assert!(!raw.join("run/linked").is_symlink() && !raw.join("run/linked/f").exists());
}

#[test]
fn files_are_forwarded_with_the_rights_of_their_owners() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: this is not root, whose PoP alone serves other accounts");
    }
    let (federation, drop, raw) = with_rule(&[]);
    let (titech, kek) = (&federation.titech, &federation.kek);
    let open = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::create_dir(&raw).unwrap();
    [titech.root(), kek.root(), &drop, &raw].into_iter().for_each(open);
    open(titech.root().parent().unwrap());
    kek.ok(&["map", "add", "--yes", "daemon@titech", "daemon"]);
    let give = |path: &Path, user: &str| {
        std::fs::write(path, user).unwrap();
        run(Command::new("chown").arg(user).arg(path));
    };
    give(&drop.join("of-daemon"), "daemon");
    // Kek knows no such user.
    give(&drop.join("of-games"), "games");
    wait_until("daemon's", || has(&raw.join("of-daemon"), b"daemon"));
    assert_eq!(raw.join("of-daemon").metadata().unwrap().uid(), 1);
    wait_until("games' transfer says why", || {
        let (_, listed) = titech.json(&["transfers", "--all", "--ended"]);
        listed["transfers"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["owner"] == "games@titech" && one["reason"]["code"] == "RK-AUTH-7")
    });
    assert!(!raw.join("of-games").exists());
}

#[test]
fn circular_rules_are_refused() {
    let (federation, _, _) = with_rule(&[]);
    let refused = |site: &Site, arguments: &[&str]| {
        let (status, answer) = site.json(arguments);
        assert_ne!(status, 0);
        assert_eq!(answer["error"]["code"], "RK-CONF-10", "{answer}");
    };
    refused(&federation.titech, &["rule", "add", "b", "titech:/data/x", "titech:/data/x/y"]);
}

#[test]
fn circular_rules_of_two_sites_end_at_their_origin() {
    let (federation, drop, raw) = with_rule(&["--remove"]);
    let (titech, kek) = (&federation.titech, &federation.kek);
    std::fs::create_dir(&raw).unwrap();
    kek.ok(&["rule", "add", "back", "kek:/data/raw", "titech:/data/drop", "--settle", "1", "--remove"]);
    std::fs::write(drop.join("a"), "a").unwrap();
    wait_until("kek's transfer says why", || {
        let (_, listed) = kek.json(&["transfers", "--all", "--ended"]);
        let circle = |one: &serde_json::Value| one["reason"]["code"] == "RK-CONF-10";
        listed["transfers"].as_array().unwrap().iter().any(circle)
    });
    assert!(has(&raw.join("a"), b"a") && !drop.join("a").exists());
    let (_, listed) = titech.json(&["transfers", "--all", "--ended"]);
    assert_eq!(listed["transfers"].as_array().unwrap().len(), 1, "{listed}");
}
