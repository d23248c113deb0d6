//! Machines for procedures that speak of several of them: each has a network, accounts and a file system of its own, which
//! begins as this machine's and is thrown away (an overlay in memory). All of it ends with the process that holds it.

use crate::federation::binary;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long one typed line may take.
const LINE_WITHIN: Duration = Duration::from_secs(120);

/// The setup of a machine before the first command: its own file system, network and accounts.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs none "$DIR"
mkdir "$DIR"/upper "$DIR"/work "$DIR"/root
mount -t overlay overlay -o lowerdir=/,upperdir="$DIR"/upper,workdir="$DIR"/work "$DIR"/root
cd "$DIR"/root
mkdir -p old proc dev sys run tmp opt
mount --rbind /dev dev
for at in run opt; do mount -t tmpfs none $at; done
mount -t tmpfs -o mode=1777 none tmp
mkdir opt/bin
touch opt/bin/renkei
mount --bind "$BINARY" opt/bin/renkei
pivot_root . old
# As udev makes it, whatever the mode of this machine's.
if test -e /dev/fuse; then
  (umask 0; mknod /run/fuse c 10 229)
  mount --bind /run/fuse /dev/fuse
fi
mount -t proc proc /proc
mount -t sysfs sys /sys
umount -l old
cd /
rm -rf /etc/renkei /var/lib/renkei /lustre /backup
printf '%s\n' "$HOSTS" > /etc/hosts
hostname "$NAME"
for account in alice bob; do
  grep -q "^$account:" /etc/passwd || useradd $account -s /bin/bash -d /home/$account
  usermod -p '*' $account
  install -d -o $account -m 700 /home/$account
done
ln -sf /opt/bin/renkei /usr/local/bin/renkei
printf '%s\n' "$SYSTEMCTL" > /opt/bin/systemctl
chmod 755 /opt/bin/systemctl
export PATH=/opt/bin:$PATH HOME=/root LC_ALL=C.UTF-8
for name in $(compgen -v RENKEI_); do unset $name; done
unset DIR BINARY HOSTS SYSTEMCTL XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_STATE_HOME SUDO_UID
set +e
cd /root
"#;

/// Stands for the service manager, which needs the whole machine: starts and stops the PoP as `renkei.service` does.
const SYSTEMCTL: &str = r#"#!/bin/bash
running() { test -e /run/renkei.pid && kill -0 "$(cat /run/renkei.pid)" 2>/dev/null; }
case $1 in
  start) running && exit 0
    /opt/bin/renkei serve >>/root/serve.log 2>&1 & echo $! >/run/renkei.pid
    until (exec 3<>/dev/tcp/127.0.0.1/7512) 2>/dev/null; do running || exit 1; sleep 0.05; done ;;
  stop) running || exit 0
    kill "$(cat /run/renkei.pid)"
    while running; do sleep 0.05; done ;;
  restart) "$0" stop && "$0" start ;;
  status) running ;;
  *) echo "systemctl $1 is not known here" >&2; exit 1 ;;
esac
"#;

/// Why machines cannot be made here, if they cannot.
pub fn missing() -> Option<&'static str> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !root {
        return Some("machines of their own need root");
    }
    let tools = ["unshare", "nsenter", "ip", "useradd", "setpriv"];
    let found = |tool: &&str| Command::new("which").arg(tool).output().is_ok_and(|it| it.status.success());
    (!tools.iter().all(found)).then_some("unshare, nsenter, ip, useradd and setpriv are needed")
}

/// Machines that see each other, in one network.
pub struct Machines {
    switch: Terminal,
    hosts: String,
    count: u32,
}

impl Machines {
    /// No machine yet; `hosts` says which names have which addresses, as in `/etc/hosts`.
    pub fn new(hosts: &[(&str, &str)]) -> Machines {
        let switch = Terminal::open(Command::new("unshare").args([
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
        ]));
        let mut hosts: String = hosts.iter().map(|(address, names)| format!("{address} {names}\n")).collect();
        hosts.insert_str(0, "127.0.0.1 localhost\n");
        let mut machines = Machines { switch, hosts, count: 0 };
        machines.switch.ok("ip link set lo up && ip link add bridge type bridge && ip link set bridge up");
        machines
    }

    /// A machine at which root is logged in.
    pub fn start(&mut self, name: &str, address: &str) -> Machine {
        let dir = tempfile::tempdir().expect("a directory to mount on");
        let options = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "bash"];
        let mut command = Command::new("unshare");
        command.args(options).env("DIR", dir.path()).env("BINARY", binary());
        let mut root =
            Terminal::open(command.env("HOSTS", &self.hosts).env("NAME", name).env("SYSTEMCTL", SYSTEMCTL));
        let (pid, switch) = (root.shell(), self.switch.shell());
        self.count += 1;
        let (port, pid_text) = (format!("port{}", self.count), pid.to_string());
        let link = ["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &pid_text];
        in_network(switch, &link);
        in_network(switch, &["link", "set", &port, "master", "bridge", "up"]);
        in_network(pid, &["link", "set", "lo", "up"]);
        in_network(pid, &["address", "add", &format!("{address}/16"), "dev", "eth0"]);
        in_network(pid, &["link", "set", "eth0", "up"]);
        root.ok(BOOT);
        Machine { root, pid, _dir: dir }
    }
}

fn in_network(pid: u32, arguments: &[&str]) {
    let enter = ["-t", &pid.to_string(), "-n", "ip"].map(String::from);
    let output = Command::new("nsenter").args(enter).args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

/// A machine, and the terminal at which root is logged in.
pub struct Machine {
    /// Root's terminal.
    pub root: Terminal,
    pid: u32,
    _dir: tempfile::TempDir,
}

impl Machine {
    /// A terminal at which another account is logged in.
    pub fn login(&self, account: &str) -> Terminal {
        let mut command = Command::new("nsenter");
        let user = ["--init-groups", "--reuid", account, "--regid", account];
        command.args(["-t", &self.pid.to_string(), "-m", "-n", "-u", "-p", "setpriv"]).args(user).arg("bash");
        let mut terminal =
            Terminal::open(command.env("HOME", format!("/home/{account}")).env("USER", account));
        terminal.ok("export PATH=/opt/bin:$PATH LC_ALL=C.UTF-8; unset XDG_RUNTIME_DIR SUDO_UID; cd");
        terminal.ok("for name in $(compgen -v RENKEI_); do unset $name; done");
        terminal
    }
}

/// A shell at which lines are typed.
pub struct Terminal {
    shell: Child,
    keyboard: ChildStdin,
    screen: Receiver<String>,
    typed: u32,
}

/// The output of a typed line, and its exit status.
#[derive(Debug)]
pub struct Typed {
    /// Standard output and error, as on a screen.
    pub printed: String,
    /// Exit status.
    pub status: i32,
}

impl Terminal {
    fn open(command: &mut Command) -> Terminal {
        let mut shell =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (keyboard, printed) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let (show, screen) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(printed).split(b'\n').map_while(Result::ok) {
                let _ = show.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        let mut terminal = Terminal { shell, keyboard, screen, typed: 0 };
        terminal.ok("exec 2>&1");
        terminal
    }

    /// The process of the shell: the first child of the process that made its namespaces.
    fn shell(&self) -> u32 {
        let pid = self.shell.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().next().expect("unshare has a child").parse().unwrap()
    }

    /// Types one line, or several, and waits until the shell is back.
    pub fn enter(&mut self, line: &str) -> Typed {
        self.typed += 1;
        let end = format!("@@{}@@", self.typed);
        let text = format!("{{\n{line}\n}} </dev/null\nprintf '\\n{end}%s\\n' $?\n");
        self.keyboard.write_all(text.as_bytes()).unwrap();
        let (begun, mut printed) = (Instant::now(), String::new());
        loop {
            match self.screen.recv_timeout(LINE_WITHIN.saturating_sub(begun.elapsed())) {
                Ok(text) => match text.strip_prefix(&end) {
                    Some(status) => return Typed { printed, status: status.parse().unwrap() },
                    None => printed += &format!("{text}\n"),
                },
                Err(RecvTimeoutError::Timeout) => panic!("`{line}` does not end:\n{printed}"),
                Err(RecvTimeoutError::Disconnected) => panic!("`{line}` ended the shell:\n{printed}"),
            }
        }
    }

    /// Types a line that must succeed; returns its output.
    pub fn ok(&mut self, line: &str) -> String {
        let typed = self.enter(line);
        assert_eq!(typed.status, 0, "`{line}`:\n{}", typed.printed);
        typed.printed
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
