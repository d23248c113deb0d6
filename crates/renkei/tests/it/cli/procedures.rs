//! The commands of README.md and docs/, typed as they stand there, in a shell, by root and by users of several machines.
//!
//! Each fenced block is typed by a test of this file or listed with the reason why not. Values that a page cannot contain,
//! as the line that `invite` prints, come from earlier output; the prerequisites of a page are made first.

use crate::cli::machines::{Machine, Machines, Terminal, missing};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGES: [&str; 8] = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/operations.md",
    "docs/mount.md",
    "docs/lab.md",
    "docs/semantics.md",
    "docs/security.md",
    "docs/architecture.md",
];

/// Page and first line of each block that a test types.
const TYPED: &[(&str, &str)] = &[
    ("README.md", "renkei init --site titech"),
    ("README.md", "renkei join titech@"),
    ("README.md", "renkei login"),
    ("README.md", "renkei volume create genome"),
    ("README.md", "install -d -o alice /lustre/data/genome"),
    ("README.md", "renkei ls -l /genome/2026"),
    ("docs/operations.md", "renkei init --site hub"),
    ("docs/operations.md", "renkei init --site left"),
    ("docs/operations.md", "renkei init --site right"),
    ("docs/operations.md", "renkei init --site titech"),
    ("docs/operations.md", "renkei backup "),
    ("docs/operations.md", "systemctl stop "),
    ("docs/operations.md", "systemctl start "),
    ("docs/operations.md", "renkei storage add scratch"),
    ("docs/operations.md", "renkei login --ssh"),
    ("docs/operations.md", "[buffer]"),
    ("docs/operations.md", "renkei rule add raw"),
    ("docs/operations.md", "renkei rule remove raw"),
    ("docs/operations.md", "renkei volume create genome"),
    ("docs/mount.md", "mkdir -p ~/run7"),
    ("docs/mount.md", "renkei mount-credential grant"),
    ("docs/mount.md", "getfattr "),
];

/// Page, first line and reason of each block that no test types.
const NOT_TYPED: &[(&str, &str, &str)] = &[
    ("README.md", "make demo", "builds, and runs all tests"),
    ("CONTRIBUTING.md", "make ", "the same"),
    ("docs/operations.md", "[web]", "lines for config.toml; console_web.rs puts them there"),
    ("docs/operations.md", "nft ", "a firewall is the machine's own; its table and chain are not known"),
    (
        "docs/operations.md",
        "renkei site rotate-authority",
        "waits for partners; rotation.rs gives these commands",
    ),
    ("docs/operations.md", "renkei site rename", "asks at a terminal; renaming.rs gives --yes"),
    (
        "docs/operations.md",
        "renkei site rotate-authority --now",
        "asks at a terminal; rotation.rs gives --yes",
    ),
    (
        "docs/operations.md",
        "scp /etc/renkei/pki/ca.pem",
        "needs a second machine of the same site; identity/rotation.rs brings the same files",
    ),
    ("docs/operations.md", "expr:", "a rule of Prometheus, not a command"),
    ("docs/operations.md", "[Unit]", "a unit of systemd, not a command"),
    ("docs/operations.md", "net.core", "settings of the whole machine's kernel"),
    ("docs/mount.md", "kek:/data  /mnt/kek", "a line of fstab; mount_user.rs mounts by it"),
    ("docs/mount.md", "[Unit]", "a unit of systemd, not a command"),
    ("docs/lab.md", "renkei lab up", "makes namespaces of its own; lab.rs types it"),
    ("docs/lab.md", "name =", "a lab's file; lab.rs reads it"),
    ("docs/architecture.md", "researcher ", "a drawing"),
    ("docs/architecture.md", "store, config", "a table"),
];

/// A command whose output another one needs: its beginning, the placeholder on the page, the beginning of the value.
const PRINTED: &[(&str, &str, &str)] = &[
    ("renkei invite   # prints LINE1", "LINE1", "hub@"),
    ("renkei invite   # prints LINE2", "LINE2", "hub@"),
    ("renkei invite   # prints LINE3", "LINE3", "left@"),
    ("renkei invite   ", "titech@pop.titech.ac.jp:7512/4f9c...", "titech@"),
];

/// A fenced block of a page.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Block {
    page: String,
    lines: Vec<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut blocks = Vec::new();
    let mut open: Option<Vec<String>> = None;
    for line in text.lines().map(str::trim_end) {
        match (&mut open, line.trim_start().starts_with("```")) {
            (None, true) => open = Some(Vec::new()),
            (Some(_), true) => {
                blocks.push(Block { page: page.into(), lines: open.take().unwrap_or_default() })
            }
            (Some(lines), false) => lines.push(line.trim_start().into()),
            (None, false) => {}
        }
    }
    assert!(open.is_none(), "{page}: a block does not end");
    blocks
}

/// A line that waits, a minute at most, until a command succeeds.
fn until(command: &str) -> String {
    format!("for n in $(seq 600); do {command} && break; sleep 0.1; done; {command}")
}

/// Page and beginning of each block that this file names.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    TYPED.iter().copied().chain(NOT_TYPED.iter().map(|&(page, first, _)| (page, first)))
}

/// The entry of a block with this first line: the longest that it begins with.
fn entry(page: &str, line: &str) -> Option<(&'static str, &'static str)> {
    let fits = entries().filter(|(of, first)| *of == page && line.starts_with(first));
    fits.max_by_key(|(_, first)| first.len())
}

/// The only block of `page` that begins so.
fn block(page: &str, first: &str) -> Vec<String> {
    assert!(TYPED.contains(&(page, first)), "{page}, {first}: not in TYPED");
    let mut found =
        blocks(page).into_iter().filter(|block| entry(page, &block.lines[0]) == Some((page, first)));
    let block = found.next().unwrap_or_else(|| panic!("{page} has no block that begins {first:?}"));
    assert!(found.next().is_none(), "{page}: two blocks begin {first:?}");
    block.lines
}

#[test]
fn every_block_of_commands_is_run_or_exempted_with_a_reason() {
    let mut unnamed = Vec::new();
    let mut seen = BTreeSet::new();
    for block in PAGES.iter().flat_map(|page| blocks(page)) {
        match entry(&block.page, &block.lines[0]) {
            Some(named) => assert!(seen.insert(named), "{named:?}: two blocks"),
            None => unnamed.push((block.page.clone(), block.lines[0].clone())),
        }
    }
    assert!(unnamed.is_empty(), "neither typed nor named: {unnamed:#?}");
    let gone: Vec<_> = entries().filter(|named| !seen.contains(named)).collect();
    assert!(gone.is_empty(), "no such block any more: {gone:#?}");
}

/// Earlier output that later lines need.
#[derive(Default)]
struct Filled(BTreeMap<&'static str, String>);

impl Filled {
    /// Types a line as it stands on the page.
    fn enter(&mut self, terminal: &mut Terminal, line: &str) -> String {
        let mut typed = line.to_owned();
        // A word that another word begins with must not be taken for it, so the longest comes first.
        for (placeholder, printed) in self.0.iter().rev() {
            typed = typed.replace(placeholder, printed);
        }
        let typed = typed.replace("renkei serve &", "renkei serve >>/root/serve.log 2>&1 &");
        let printed = terminal.ok(&typed);
        if let Some((_, placeholder, begins)) = PRINTED.iter().find(|(begin, ..)| line.starts_with(begin)) {
            let meant = printed.lines().find(|line| line.starts_with(begins));
            let meant = meant.unwrap_or_else(|| panic!("`{line}` prints no {begins}...:\n{printed}"));
            self.0.insert(placeholder, meant.trim().into());
        }
        if line.starts_with("renkei serve") {
            terminal.ok("until (exec 3<>/dev/tcp/127.0.0.1/7512) 2>/dev/null; do sleep 0.05; done");
        }
        printed
    }

    fn enter_all(&mut self, terminal: &mut Terminal, lines: &[String]) -> String {
        let mut printed = String::new();
        for line in lines {
            printed += &self.enter(terminal, line);
        }
        printed
    }
}

const README: &str = "README.md";
const OPERATIONS: &str = "docs/operations.md";

/// Two machines as the README has them: titech and kek, which trust each other, and Alice, who has files at titech.
struct TwoMachines {
    titech: Machine,
    kek: Machine,
    filled: Filled,
    _machines: Machines,
}

fn readme_setup() -> TwoMachines {
    let mut machines = Machines::new(&[("131.112.0.1", "pop.titech.ac.jp"), ("130.87.0.1", "pop.kek.jp")]);
    let mut titech = machines.start("titech", "131.112.0.1");
    let mut kek = machines.start("kek", "130.87.0.1");
    for (one, other) in [(&mut titech, "130.87.0.0/16"), (&mut kek, "131.112.0.0/16")] {
        one.root.ok(&format!("ip route add {other} dev eth0"));
        one.root.ok("mkdir -p /lustre/data");
    }
    let mut filled = Filled::default();
    let first = block(README, "renkei init --site titech");
    filled.enter_all(&mut titech.root, &first);
    // "At kek the same three."
    for line in &first[..3] {
        let line = line.replace("pop.titech.ac.jp", "pop.kek.jp").replace("titech", "kek");
        filled.enter(&mut kek.root, &line);
    }
    filled.enter_all(&mut kek.root, &block(README, "renkei join titech@"));
    TwoMachines { titech, kek, filled, _machines: machines }
}

#[test]
fn the_readme_by_hand_between_two_machines() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let TwoMachines { mut titech, mut kek, mut filled, _machines } = readme_setup();
    titech.root.ok("install -d -o alice /lustre/data/a && echo result > /lustre/data/a/r.dat");
    let mut alice = titech.login("alice");
    alice.ok("mkdir run7 && echo data > run7/a.dat");
    filled.enter_all(&mut alice, &block(README, "renkei login"));
    assert_eq!(kek.root.ok("cat /lustre/data/alice/run7/a.dat").trim(), "data");
    assert_eq!(alice.ok("cat a.dat").trim(), "data");
    // One tree over both sites.
    kek.root.ok("mkdir -p /lustre/data/genome/2026 && echo ACGT > /lustre/data/genome/2026/one.fa");
    kek.root.ok("chown -R alice /lustre/data/genome");
    filled.enter_all(&mut kek.root, &block(README, "renkei volume create genome"));
    filled.enter_all(&mut titech.root, &block(README, "install -d -o alice /lustre/data/genome"));
    alice.ok(&until("renkei ls /genome/2026/one.fa"));
    filled.enter_all(&mut alice, &block(README, "renkei ls -l /genome/2026"));
    kek.root.ok(&until("test -e /lustre/data/genome/2026/run7/a.dat"));
    assert_eq!(kek.root.ok("cat /lustre/data/genome/2026/run7/a.dat").trim(), "data");
    alice.ok("renkei umount ~/renkei");
}

#[test]
fn two_private_sites_and_a_hub() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&[("131.112.0.1", "hub.example.org")]);
    let mut filled = Filled::default();
    let [mut hub, mut left, mut right] =
        [("hub", "131.112.0.1"), ("left", "131.112.0.2"), ("right", "131.112.0.3")]
            .map(|(name, address)| machines.start(name, address));
    // Nothing comes in at the private ones: they do not see each other at all.
    left.root.ok("ip route add blackhole 131.112.0.3 && mkdir -p /srv/left && chmod 1777 /srv/left");
    right.root.ok("ip route add blackhole 131.112.0.2 && mkdir -p /srv/right");
    filled.enter_all(&mut hub.root, &block(OPERATIONS, "renkei init --site hub"));
    filled.enter_all(&mut left.root, &block(OPERATIONS, "renkei init --site left"));
    right.root.ok("install -d -o bob /home/bob/run7 && echo data > /home/bob/run7/a.dat");
    let lines = block(OPERATIONS, "renkei init --site right");
    let own = lines.iter().position(|line| line == "renkei login").expect("then bob types");
    filled.enter_all(&mut right.root, &lines[..own]);
    filled.enter_all(&mut right.login("bob"), &lines[own..]);
    assert_eq!(left.root.ok("cat /srv/left/run7/a.dat").trim(), "data");
}

/// A machine with accounts, at the address of a name, which serves the storage `data` in /lustre/data.
fn serving(machines: &mut Machines, name: &str, address: &str) -> Machine {
    let mut machine = machines.start(name, address);
    machine.root.ok("mkdir -p /lustre/data");
    machine
        .root
        .ok(&format!("renkei init --site {name} --endpoint {name}-pop:7512 --storage data=/lustre/data"));
    machine.root.ok("systemctl start renkei");
    machine
}

/// Lets ssh in: a server at `to`, and a key of an account at `from` that it knows.
fn set_up_ssh(from: &mut Terminal, to: &mut Machine, account: &str) {
    from.ok("mkdir -p ~/.ssh && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519");
    from.ok("echo 'StrictHostKeyChecking accept-new' > ~/.ssh/config && chmod 600 ~/.ssh/config");
    let key = from.ok("cat ~/.ssh/id_ed25519.pub");
    to.root.ok(&format!(
        "home=$(getent passwd {account} | cut -d: -f6) && install -d -o {account} -m 700 $home/.ssh &&
         echo '{}' > $home/.ssh/authorized_keys && chown {account} $home/.ssh/authorized_keys",
        key.trim()
    ));
    to.root.ok("mkdir -p /run/sshd && ssh-keygen -A >/dev/null && /usr/sbin/sshd -o PermitRootLogin=yes -o UsePAM=no");
}

#[test]
fn a_pop_is_installed_backed_up_and_restored_on_a_new_machine() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&[]);
    let (mut filled, mut titech) = (Filled::default(), machines.start("titech", "131.112.0.1"));
    titech.root.ok("mkdir -p /lustre/data /backup");
    let install = block(OPERATIONS, "renkei init --site titech");
    for line in &install {
        if line.starts_with("systemctl status") {
            titech.root.ok("systemctl start renkei"); // renkei.path does that.
        }
        filled.enter(&mut titech.root, line);
    }
    titech.root.ok("renkei volume create genome --storage data --account alice");
    filled.enter_all(&mut titech.root, &block(OPERATIONS, "renkei backup "));
    let saved = titech.root.ok("ls -d /backup/renkei-*").trim().to_owned();
    // The machine is lost; its data came back.
    titech.root.ok("systemctl stop renkei; rm -rf /etc/renkei /var/lib/renkei");
    filled.0.insert("/backup/renkei-2026-11-24", saved);
    filled.enter_all(&mut titech.root, &block(OPERATIONS, "systemctl stop "));
    let told = filled.enter_all(&mut titech.root, &block(OPERATIONS, "systemctl start "));
    assert!(told.contains("genome"), "{told}");
}

#[test]
fn an_agent_serves_what_the_pop_cannot_mount() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&[("131.112.0.1", "titech-pop")]);
    let (mut titech, mut node) =
        (serving(&mut machines, "titech", "131.112.0.1"), machines.start("node", "131.112.0.2"));
    let mut filled = Filled::default();
    node.root.ok("install -d -o alice /lustre/scratch && echo data > /lustre/scratch/a.dat");
    filled.enter_all(&mut titech.root, &block(OPERATIONS, "renkei storage add scratch"));
    let mut alice = node.login("alice");
    set_up_ssh(&mut alice, &mut titech, "alice");
    let lines = block(OPERATIONS, "renkei login --ssh");
    for line in &lines {
        // The agent stays; a second terminal goes on.
        let stays = if line.starts_with("renkei agent") { ">agent.log 2>&1 &" } else { "" };
        filled.enter(&mut alice, &format!("{line} {stays}"));
    }
    alice.ok(&until("renkei ls titech:/scratch"));
    assert!(alice.ok("renkei ls titech:/scratch").contains("a.dat"));
}

#[test]
fn a_buffer_is_given() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&[("131.112.0.1", "titech-pop")]);
    let mut titech = serving(&mut machines, "titech", "131.112.0.1");
    titech.root.ok("mkdir -p /scratch");
    let block = block(OPERATIONS, "[buffer]").join("\n");
    titech.root.ok(&format!("cat >> /etc/renkei/config.toml <<'END'\n{block}\nEND"));
    titech.root.ok("systemctl restart renkei");
    // The page's size is larger than this machine's disk, and doctor says so.
    let told = titech.root.enter("renkei doctor").printed;
    assert!(told.contains("/scratch/renkei-buffer"), "{told}");
    titech.root.ok("renkei buffer --all");
}

/// Two machines with PoPs that trust each other, and alice a user of both.
fn two_pops(machines: &mut Machines) -> (Machine, Machine) {
    let mut titech = serving(machines, "titech", "131.112.0.1");
    let mut kek = serving(machines, "kek", "131.112.0.2");
    let line = titech.root.ok("renkei invite 2>/dev/null");
    kek.root.ok(&format!("renkei join {}", line.trim()));
    kek.root.ok("renkei map add 'alice@titech' alice");
    titech.root.ok("renkei map add --yes 'alice@kek' alice");
    (titech, kek)
}

const TWO_POPS: [(&str, &str); 3] =
    [("131.112.0.1", "titech-pop"), ("131.112.0.2", "kek-pop"), ("131.112.0.3", "nig-pop")];

#[test]
fn a_drop_folder_is_forwarded() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&TWO_POPS);
    let (mut titech, mut kek) = two_pops(&mut machines);
    titech.root.ok("install -d -o alice /lustre/data/drop");
    kek.root.ok("install -d -o alice /lustre/raw && renkei storage add raw /lustre/raw");
    let mut filled = Filled::default();
    filled.enter_all(&mut titech.root, &block(OPERATIONS, "renkei rule add raw"));
    filled.enter_all(&mut titech.root, &block(OPERATIONS, "renkei rule remove raw"));
    titech.login("alice").ok("echo data > /lustre/data/drop/a.dat");
    titech.root.ok(&until("! test -e /lustre/data/drop/a.dat"));
    assert_eq!(kek.root.ok("cat /lustre/raw/a.dat").trim(), "data");
}

#[test]
fn volumes_are_administered() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&TWO_POPS);
    let (_titech, mut kek) = two_pops(&mut machines);
    let mut nig = serving(&mut machines, "nig", "131.112.0.3");
    let line = kek.root.ok("renkei invite 2>/dev/null");
    nig.root.ok(&format!("renkei join {}", line.trim()));
    kek.root.ok("mkdir -p /lustre/pool/genome-2025 && renkei storage add pool /lustre/pool");
    let mut filled = Filled::default();
    filled.enter_all(&mut kek.root, &block(OPERATIONS, "renkei volume create genome"));
}

#[test]
fn files_are_mounted_and_errors_explained() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&TWO_POPS);
    let (mut titech, mut kek) = two_pops(&mut machines);
    titech.root.ok("renkei volume create genome --storage data --account alice");
    titech.root.ok("renkei volume grant genome '*@titech' read && install -d -o alice /mnt/kek");
    kek.root.ok("install -d -o alice /lustre/data/run7 && install -d -m 700 /lustre/data/run7/closed");
    let mut filled = Filled::default();
    let mut alice = titech.login("alice");
    alice.ok("renkei login");
    filled.enter_all(&mut alice, &block("docs/mount.md", "mkdir -p ~/run7"));
    alice.ok("renkei mount kek:/data/run7 ~/run7");
    let refused = alice.enter("ls ~/run7/closed");
    assert_ne!(refused.status, 0, "{}", refused.printed);
    if alice.enter("command -v getfattr").status == 0 {
        let told = filled.enter_all(&mut alice, &block("docs/mount.md", "getfattr "));
        assert!(told.contains("RK-STORE-5"), "{told}");
    } else {
        eprintln!("SKIPPED: there is no getfattr here (package attr)");
    }
    alice.ok("renkei umount ~/genome && renkei umount ~/renkei && renkei umount /mnt/kek");
}

#[test]
fn a_mount_has_a_credential_of_its_own() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&[("131.112.0.2", "kek-pop")]);
    let mut kek = serving(&mut machines, "kek", "131.112.0.2");
    let mut node = machines.start("node17", "131.112.0.17");
    kek.root.ok("install -d -o alice /lustre/data/alice");
    set_up_ssh(&mut node.root, &mut kek, "root");
    let mut filled = Filled::default();
    filled.enter_all(&mut node.root, &block("docs/mount.md", "renkei mount-credential grant"));
    node.root.ok("mkdir -p /mnt/kek && renkei mount kek:/data /mnt/kek && ls /mnt/kek");
    assert!(kek.root.ok("renkei mount-credential list").contains("node17"));
    node.root.ok("renkei umount /mnt/kek");
}

/// The commands that a text prints on lines of their own, without their explanations.
fn commands(printed: &str) -> Vec<String> {
    let lines = printed.lines().map(str::trim).filter(|line| line.starts_with("renkei "));
    lines.map(|line| line.split("  ").next().unwrap_or(line).to_owned()).collect()
}

#[test]
fn commands_that_init_and_remedies_suggest_work() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&[("131.112.0.1", "titech-pop")]);
    let mut titech = machines.start("titech", "131.112.0.1");
    let next = commands(&titech.root.ok("renkei init --site titech --endpoint titech-pop:7512"));
    titech.root.ok("mkdir -p /lustre/data");
    assert!(next.len() >= 5, "{next:?}");
    for command in next {
        let typed = command.replace("NAME PATH", "data /lustre/data").replace("ACCOUNT", "alice");
        let typed = typed.replace("'USER@OTHER'", "--yes 'alice@kek'");
        match typed.ends_with(" serve") {
            true => titech.root.ok("systemctl start renkei"),
            false => titech.root.ok(&typed),
        };
    }
    // A read-only place: the command of the remedy can be typed.
    let refused = titech.login("alice").enter("renkei login && renkei mkdir titech:/data/x");
    assert_eq!(refused.status, 5, "{}", refused.printed);
    let named: Vec<&str> = refused.printed.split('`').skip(1).step_by(2).collect();
    for command in named.iter().filter(|named| named.starts_with("renkei ")) {
        titech.login("alice").ok(&command.replace("SITE", "titech"));
    }
}
