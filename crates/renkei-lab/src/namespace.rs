//! Network namespaces: made, configured, entered, emptied of processes and removed.
//!
//! A site's namespace is `rk-LAB.SITE` among those of `ip netns`, with `/etc/netns/rk-LAB.SITE/hosts`, so that `ip
//! netns exec` sees the same names as `renkei lab run`. A name cannot contain the dot, so the namespaces of lab `a`
//! are never confused with those of `a-b`. A running lab holds a lock on each of its namespaces: locked ones are not
//! swept. Changes go through the `ip` program.

use renkei_core::error::{Code, Error};
use rustix::fs::FlockOperation;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The folder of the handles of `ip netns`.
const HANDLES: &str = "/run/netns";
/// The folder of the files that replace those of /etc in `ip netns exec`.
const FILES: &str = "/etc/netns";
/// Timeout for a killed process to release its locks.
pub const LET_GO_WITHIN: Duration = Duration::from_secs(1);
/// Timeout for processes to end after SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(3);

/// The namespace of a site.
pub fn of_site(lab: &str, site: &str) -> String {
    format!("rk-{lab}.{site}")
}

/// The namespace of the NAT box before a site.
pub fn of_gateway(lab: &str, site: &str) -> String {
    format!("rk-{lab}.{site}.nat")
}

/// The namespace in which the kernel engine's devices meet; no site has such a name.
pub fn of_transit(lab: &str) -> String {
    format!("rk-{lab}._transit")
}

/// The existing namespaces of a lab.
pub fn of_lab(lab: &str) -> Vec<String> {
    let prefix = format!("rk-{lab}.");
    let mut found: Vec<String> = names().into_iter().filter(|name| name.starts_with(&prefix)).collect();
    found.sort();
    found
}

/// The labs that have namespaces.
pub fn labs() -> BTreeSet<String> {
    let lab = |name: &String| Some(name.strip_prefix("rk-")?.split_once('.')?.0.to_owned());
    names().iter().filter_map(lab).collect()
}

/// Names of handles, and of folders of files whose namespace is gone.
fn names() -> BTreeSet<String> {
    let entries = [HANDLES, FILES].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The handle of a namespace.
pub fn handle(name: &str) -> PathBuf {
    Path::new(HANDLES).join(name)
}

fn hosts_file(name: &str) -> PathBuf {
    Path::new(FILES).join(name).join("hosts")
}

/// Makes a namespace with loopback up and a hosts file; returns the lock that marks it as in use.
pub fn create(name: &str, hosts: &str) -> Result<File, Error> {
    ip(None, &format!("netns add {name}\n"))?;
    let lock =
        lock(name)?.ok_or_else(|| Error::new(Code::LabRunning, "lock namespace", name, "it is locked"))?;
    let path = hosts_file(name);
    let written = std::fs::create_dir_all(path.parent().unwrap_or(Path::new(FILES)))
        .and_then(|()| std::fs::write(&path, hosts));
    written.map_err(|error| renkei_config::home::file_error("write", &path, &error))?;
    ip(Some(name), "link set lo up\n")?;
    Ok(lock)
}

/// Locks a namespace; `None` if another process holds the lock.
fn lock(name: &str) -> Result<Option<File>, Error> {
    let path = handle(name);
    let file = File::open(&path)
        .map_err(|error| renkei_config::home::file_error("open namespace", &path, &error))?;
    let locked = try_lock(&file, &path)?;
    Ok(locked.then_some(file))
}

/// Takes the lock of a file without waiting; it is released with the file.
pub fn try_lock(file: &File, path: &Path) -> Result<bool, Error> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(Error::new(Code::SystemCall, "lock", path.display(), errno)),
    }
}

/// Waits for the lock of a namespace: a killed process releases its locks one after the other.
fn wait_unlocked(name: &str) -> Result<File, Error> {
    let start = Instant::now();
    // A handle on which nothing is mounted any more can be locked too, and has no processes.
    loop {
        if let Some(file) = lock(name)? {
            return Ok(file);
        }
        if start.elapsed() > LET_GO_WITHIN {
            return Err(Error::new(Code::LabRunning, "remove namespace", name, "a running lab holds it"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the processes in a namespace and removes it with its devices and files; idempotent.
///
/// # Errors
/// `LabRunning` if a running lab holds it, or if a process in it does not end.
pub fn remove(name: &str) -> Result<(), Error> {
    let path = handle(name);
    if path.exists() {
        // While it is open, its inode number is not reused.
        let open = wait_unlocked(name)?;
        let namespace = Id::of_file(&open);
        end_processes(name, namespace)?;
        let _ = rustix::mount::unmount(&path, UnmountFlags::DETACH);
        std::fs::remove_file(&path)
            .map_err(|error| renkei_config::home::file_error("remove", &path, &error))?;
        // A process that had opened the handle may have entered meanwhile; later ones see that it is gone.
        end_processes(name, namespace)?;
    }
    let files = Path::new(FILES).join(name);
    match std::fs::remove_dir_all(&files) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(renkei_config::home::file_error("remove", &files, &error))
        }
        _ => {
            // The last namespace removes the folder.
            let _ = std::fs::remove_dir(FILES);
            Ok(())
        }
    }
}

/// Runs lines of the `ip` program, in a namespace or in the thread's own.
pub fn ip(namespace: Option<&str>, lines: &str) -> Result<(), Error> {
    feed(iproute("ip", namespace).args(["-batch", "-"]), lines).map(drop)
}

/// Runs lines of the `tc` program, in a namespace or in the thread's own.
pub fn tc(namespace: Option<&str>, lines: &str) -> Result<(), Error> {
    feed(iproute("tc", namespace).args(["-batch", "-"]), lines).map(drop)
}

/// The queueing disciplines of a namespace with their counters, as JSON.
pub fn tc_show(namespace: &str) -> Result<String, Error> {
    feed(iproute("tc", Some(namespace)).args(["-s", "-j", "qdisc", "show"]), "")
}

/// Runs lines of the `bridge` program in a namespace.
pub fn bridge(namespace: &str, lines: &str) -> Result<(), Error> {
    feed(iproute("bridge", Some(namespace)).args(["-batch", "-"]), lines).map(drop)
}

fn iproute(program: &str, namespace: Option<&str>) -> Command {
    let mut command = Command::new(program);
    command.args(namespace.iter().flat_map(|name| ["-n", name]));
    command
}

/// Loads nftables rules in a namespace.
pub fn nft(namespace: &str, rules: &str) -> Result<(), Error> {
    feed(Command::new("ip").args(["netns", "exec", namespace, "nft", "-f", "-"]), rules).map(drop)
}

/// Runs a program with this input; returns its output, or its error output if it fails.
fn feed(command: &mut Command, input: &str) -> Result<String, Error> {
    let line = format!("{command:?}").replace('"', "");
    let failed = |cause: String| Error::new(Code::LabSetupFailed, "run", &line, cause);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program does not read, its error output says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{}; asked for: {}", words.trim().replace('\n', "; "), input.trim())))
}

/// Runs `work` on a thread of its own in a new network namespace, which ends with the thread.
pub fn in_new_network<T: Send>(
    name: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    on_thread(name, || {
        // SAFETY: file descriptors stay shared; only the network becomes this thread's own.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|errno| Error::new(Code::SystemCall, "make network", name, errno))?;
        work()
    })
}

fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| Error::new(Code::SystemCall, "start thread", name, error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work` on a thread of its own in the namespace.
pub fn inside<T: Send>(name: &str, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    on_thread(name, || {
        join_network(name)?;
        work()
    })
}

fn join_network(name: &str) -> Result<(), Error> {
    let path = handle(name);
    let file = File::open(&path)
        .map_err(|error| renkei_config::home::file_error("open namespace", &path, &error))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| Error::new(Code::SystemCall, "enter namespace", name, errno))?;
    // The process that removes it looks for processes again afterwards: either it finds this one, or this one ends
    // here.
    match Id::of_path(&path) == Id::of_file(&file) {
        true => Ok(()),
        false => Err(Error::new(Code::LabDied, "enter namespace", name, "it was removed since")),
    }
}

/// Sets sysctl settings of the network in a namespace: `net.ipv4.tcp_rmem` and the like.
pub fn set_sysctl<'a>(
    name: &str,
    settings: impl Iterator<Item = (&'a String, &'a String)> + Send,
) -> Result<(), Error> {
    inside(name, || {
        for (key, value) in settings {
            let path = Path::new("/proc/sys").join(key.replace('.', "/"));
            std::fs::write(&path, value).map_err(|error| {
                Error::new(
                    Code::TopologyInvalid,
                    "set sysctl",
                    key,
                    format!("cannot be set to `{value}`: {error}"),
                )
            })?;
        }
        Ok(())
    })
}

/// Moves this process into a site's namespace permanently: its network, its /etc/hosts, its host name, its /sys.
///
/// Like `ip netns exec`, and sets the host name. To be called while the process has one thread.
pub fn enter(name: &str, host_name: &str) -> Result<(), Error> {
    let failed =
        |what: &'static str| move |errno: rustix::io::Errno| Error::new(Code::SystemCall, what, name, errno);
    join_network(name)?;
    // SAFETY: file descriptors stay shared; only mounts and the host name become this process's own.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWUTS) }.map_err(failed("unshare"))?;
    let private = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(failed("make mounts private"))?;
    // Shows the devices of this namespace instead of the machine's.
    let _ = rustix::mount::unmount("/sys", UnmountFlags::DETACH);
    rustix::mount::mount(name, "/sys", "sysfs", MountFlags::empty(), None).map_err(failed("mount /sys"))?;
    rustix::mount::mount_bind(hosts_file(name), "/etc/hosts").map_err(failed("bind /etc/hosts"))?;
    rustix::system::sethostname(host_name.as_bytes()).map_err(failed("set host name"))
}

// ---- processes in a namespace ----------------------------------------------------------------------------------------

/// Device and inode number of a namespace's file: unique among existing ones.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Id(u64, u64);

impl Id {
    fn of_path(path: &Path) -> Option<Self> {
        path.metadata().ok().map(|metadata| Id(metadata.dev(), metadata.ino()))
    }

    fn of_file(file: &File) -> Option<Self> {
        file.metadata().ok().map(|metadata| Id(metadata.dev(), metadata.ino()))
    }

    /// Whether it is the machine's own, that of process 1.
    fn is_machine(self) -> bool {
        Id::of_path(Path::new("/proc/1/ns/net")) == Some(self)
    }
}

/// Ends all processes of a namespace except this one and its ancestors: SIGTERM first, then SIGKILL.
///
/// Never those of the machine's own network, whatever the handle is bound to.
fn end_processes(name: &str, namespace: Option<Id>) -> Result<(), Error> {
    let Some(namespace) = namespace.filter(|found| !found.is_machine()) else {
        return Ok(());
    };
    let spared = own_line();
    let others = || members(namespace).into_iter().filter(|pid| !spared.contains(pid)).collect::<Vec<_>>();
    let start = Instant::now();
    others().into_iter().for_each(|pid| signal(pid, namespace, Signal::TERM));
    while !others().is_empty() && start.elapsed() < END_WITHIN {
        std::thread::sleep(Duration::from_millis(10));
    }
    while !others().is_empty() && start.elapsed() < 2 * END_WITHIN {
        others().into_iter().for_each(|pid| signal(pid, namespace, Signal::KILL));
        std::thread::sleep(Duration::from_millis(10));
    }
    match others() {
        left if left.is_empty() => Ok(()),
        left => {
            let cause = format!("these processes in it do not end: {left:?}");
            Err(Error::new(Code::LabRunning, "remove namespace", name, cause))
        }
    }
}

fn is_member(pid: i32, namespace: Id) -> bool {
    Id::of_path(&Path::new("/proc").join(pid.to_string()).join("ns/net")) == Some(namespace)
}

fn members(namespace: Id) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_member(*pid, namespace)).collect()
}

/// Signals a process without a pid race: the pidfd is opened before the membership is checked.
fn signal(pid: i32, namespace: Id, signal: Signal) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if is_member(pid.as_raw_nonzero().get(), namespace) {
        let _ = pidfd_send_signal(process, signal);
    }
}

/// This process and its ancestors, so that a lab can be taken down from a shell in it.
fn own_line() -> Vec<i32> {
    let parent = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 1)
    };
    std::iter::successors(i32::try_from(std::process::id()).ok(), parent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_labs_are_distinct() {
        assert_eq!(of_site("a-b", "kek"), "rk-a-b.kek");
        assert!(!of_site("a-b", "kek").starts_with("rk-a."));
        assert!(of_gateway("a", "kek").starts_with(&of_site("a", "kek")));
    }

    #[test]
    fn a_process_finds_its_parents() {
        let line = own_line();
        assert_eq!(line[0], std::process::id() as i32);
        assert_eq!(line[1], std::os::unix::process::parent_id() as i32);
    }

    #[test]
    fn the_network_of_the_machine_is_recognised() {
        let Some(machine) = Id::of_path(Path::new("/proc/1/ns/net")) else {
            eprintln!("SKIPPED: the namespace of process 1 cannot be seen");
            return;
        };
        assert!(machine.is_machine() && !Id(machine.0, machine.1 + 1).is_machine());
    }

    #[test]
    fn the_error_contains_the_stderr_of_the_program() {
        let error =
            feed(Command::new("sh").args(["-c", "cat >/dev/null; echo bad >&2; false"]), "x").unwrap_err();
        assert!(error.code == Code::LabSetupFailed && error.cause.starts_with("bad"), "{error}");
        let error = feed(&mut Command::new("/none/such"), "x").unwrap_err();
        assert!(error.subject.contains("/none/such"), "{error}");
    }
}
