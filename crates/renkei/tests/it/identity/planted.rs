//! Files that an unprivileged user of a PoP's machine plants where root's PoP will read or write: links, FIFOs,
//! directories that turn into links, names of any bytes, changed backups.

use crate::cli::machines::{Machine, Machines, missing};

const SECRET: &str = "root:secret";

/// titech and kek, which trust each other; alice and bob are users of both.
fn two(machines: &mut Machines) -> (Machine, Machine) {
    let [mut titech, mut kek] = [("titech", "131.112.0.1"), ("kek", "131.112.0.2")].map(|(name, address)| {
        let mut machine = machines.start(name, address);
        machine.root.ok("install -d -m 1777 /lustre/data");
        let init =
            format!("renkei init --site {name} --endpoint {name}-pop:7512 --storage data=/lustre/data");
        machine.root.ok(&init);
        machine.root.ok("systemctl start renkei");
        machine
            .root
            .ok(&format!("umask 077; echo {SECRET} > /root/secret; install -d -m 700 /lustre/data/closed"));
        machine.root.ok("cp /root/secret /lustre/data/closed/");
        machine
    });
    let line = titech.root.ok("renkei invite 2>/dev/null");
    kek.root.ok(&format!("renkei join {}", line.trim()));
    kek.root.ok("renkei map add alice@titech alice; renkei map add bob@titech bob");
    (titech, kek)
}

const NAMES: [(&str, &str); 2] = [("131.112.0.1", "titech-pop"), ("131.112.0.2", "kek-pop")];

/// A line that waits, a minute at most, until a command succeeds.
fn until(command: &str) -> String {
    format!("for n in $(seq 600); do {command} && break; sleep 0.1; done; {command}")
}

#[test]
fn a_drop_folder_neither_reads_nor_removes_files_of_others() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&NAMES);
    let (mut titech, mut kek) = two(&mut machines);
    titech.root.ok("install -d -m 1777 /lustre/data/drop");
    kek.root.ok("install -d -m 1777 /lustre/data/raw");
    let pid = titech.root.ok("cat /run/renkei.pid");
    let (mut alice, mut bob) = (titech.login("alice"), titech.login("bob"));
    alice.ok("cd /lustre/data/drop && ln -s /root/secret link && ln -s ../closed linked && mkfifo fifo && ln -s / top");
    alice.ok(
        r"echo x > '-rf'; echo x > '--remove'; echo x > $'new\nline'; echo x > $'\xff\xfe'; echo x > ' '",
    );
    // A file of bob's that only bob may read, under a second name where alice put it.
    bob.ok("umask 077; echo private > /lustre/data/of-bob");
    titech.root.ok("ln /lustre/data/of-bob /lustre/data/drop/hard");
    // A directory that is a link every other moment, to where root alone may look and something of that name is.
    alice.ok("mkdir real && echo x > real/secret && ln -s ../closed other");
    alice.ok("(while test -e go-on -o ! -e started; do touch started; mv -T real swap; mv -T other real; mv -T real other; mv -T swap real; done) >/dev/null 2>&1 & touch go-on");
    titech.root.ok("renkei rule add raw titech:/data/drop kek:/data/raw --remove --settle 1");
    for name in ["-rf", "--remove", "$'new\\nline'", "$'\\xff\\xfe'", "' '"] {
        kek.root.ok(&until(&format!("test -f /lustre/data/raw/{name}")));
        titech.root.ok(&until(&format!("test ! -e /lustre/data/drop/{name}")));
    }
    kek.root.ok(&until("test -f /lustre/data/raw/hard"));
    alice.ok("rm go-on; wait");
    let came = kek.root.ok("ls -l /lustre/data/raw; cat /lustre/data/raw/hard");
    assert_eq!(kek.root.ok("stat -c '%U %a' /lustre/data/raw/hard").trim(), "bob 600", "{came}");
    assert_eq!(kek.root.enter(&format!("grep -r '{SECRET}' /lustre/data/raw")).status, 1, "{came}");
    assert_eq!(kek.root.enter("find /lustre/data/raw ! -type f ! -type d | grep .").status, 1, "{came}");
    assert_eq!(
        titech.root.ok("cat /root/secret /lustre/data/closed/secret /lustre/data/of-bob"),
        format!("{SECRET}\n{SECRET}\nprivate\n\n")
    );
    titech.root.ok("test -p /lustre/data/drop/fifo && test -L /lustre/data/drop/link");
    assert_eq!(titech.root.ok("cat /run/renkei.pid"), pid);
    titech.root.ok("renkei status >/dev/null");
}

#[test]
fn a_backup_does_not_follow_planted_links() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&NAMES);
    let (mut titech, _kek) = two(&mut machines);
    let mut alice = titech.login("alice");
    alice.ok("mkdir ~/trap && chmod 755 ~ && ln -s ~/trap /tmp/link && ln -s /tmp/nowhere /tmp/dangling && mkfifo /tmp/fifo");
    alice.ok("mkdir -m 777 /tmp/hers && mkdir -m 777 /tmp/full && ln -s /root/secret /tmp/full/backup.json");
    for place in ["/tmp/link", "/tmp/dangling", "/tmp/fifo", "/tmp/full"] {
        let told = titech.root.enter(&format!("renkei backup {place}"));
        assert_ne!(told.status, 0, "{place}: {}", told.printed);
    }
    assert_eq!(titech.root.ok("ls ~alice/trap; cat /root/secret").trim(), SECRET);
    titech.root.ok("renkei backup /tmp/hers");
    assert_eq!(titech.root.ok("stat -c '%U %a' /tmp/hers").trim(), "root 700");
    assert_ne!(alice.enter("cat /tmp/hers/backup.json").status, 0);
    assert_eq!(titech.root.enter("ls -d /tmp/*.new").status, 2, "halves are left");
}

#[test]
fn links_and_fifos_planted_in_the_buffer_are_not_followed() {
    if let Some(why) = missing() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut machines = Machines::new(&NAMES);
    let (mut titech, mut kek) = two(&mut machines);
    titech
        .root
        .ok("printf '[buffer]\\nsize_mib = 100\\npath = \"/srv/buffer\"\\n' >> /etc/renkei/config.toml");
    titech.root.ok("systemctl restart renkei");
    let (mut alice, mut bob) = (titech.login("alice"), titech.login("bob"));
    kek.root.ok("systemctl stop renkei");
    alice.ok("renkei login && echo one > one && echo two > two");
    bob.ok("renkei login && echo three > three && renkei cp --detach three kek:/data/three");
    alice.ok("for name in one two; do renkei cp --detach $name kek:/data/$name; done");
    let mut piece = |name: &str| titech.root.ok(&format!("grep -rlx {name} /srv/buffer")).trim().to_owned();
    let (one, two, three) = (piece("one"), piece("two"), piece("three"));
    // Buffered files belong to their owner, by the modes of the folders.
    assert_ne!(alice.enter(&format!("cat {three}")).status, 0);
    assert_ne!(alice.enter("mkdir /srv/buffer/x").status, 0);
    let of_bob = three.trim_end_matches("/files/0");
    assert_ne!(alice.enter(&format!("echo x >> {of_bob}/reservation")).status, 0);
    // In the user's own folders, links, FIFOs and oversized files replace the uploaded files.
    titech.root.ok("systemctl stop renkei");
    titech.root.ok(&format!("rm {one} && ln -s /root/secret {one} && chown -h alice {one}"));
    titech.root.ok(&format!("rm {two} && mkfifo {two} && chown alice {two}"));
    for (number, plant) in ["ln -s /root/secret", "mkfifo", "mkdir", "truncate -s 1G"].iter().enumerate() {
        let folder = format!("/srv/buffer/{number:032x}");
        titech.root.ok(&format!("install -d -m 700 -o alice {folder} && {plant} {folder}/reservation"));
    }
    titech.root.ok("install -d -m 700 -o alice /root/kept && ln -s /root/kept /srv/buffer/ffffffffffffffffffffffffffffffff");
    titech.root.ok("ls -lR /srv/buffer; systemctl start renkei");
    kek.root.ok("systemctl start renkei");
    kek.root.ok(&until("test -f /lustre/data/three"));
    alice.ok(&until("! renkei transfers | grep -E 'waiting|running'"));
    assert_eq!(kek.root.enter("test -e /lustre/data/two").status, 1);
    assert_eq!(kek.root.enter(&format!("grep -rs --exclude-dir closed '{SECRET}' /lustre/data")).status, 1);
    let kept =
        titech.root.ok("renkei status >/dev/null; renkei buffer --all; cat /root/secret; ls -d /root/kept");
    assert!(kept.contains(SECRET), "{kept}");
}
