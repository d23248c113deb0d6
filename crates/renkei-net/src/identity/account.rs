//! Local accounts, and threads that work as one.
//!
//! A daemon that runs as root does each principal's I/O as the mapped account, on threads of its own:
//! [`Account::assume`] drops root on the calling thread alone, by raw system calls (the C library's would change all
//! threads). A daemon without root serves its own account only. Guarantee: after `assume` returned `Ok`, the kernel
//! checks everything the thread does against exactly the account's uid, gid and groups, without capabilities. The
//! real and the saved uid stay root's: with the account's own, that account could signal the thread, and a fatal
//! signal to one thread ends the whole daemon. Non-goals: the umask, which belongs to the whole process; confining
//! hostile code on the thread, which shares all memory with threads that are root.

use renkei_core::error::{Code, Error};
use renkei_store::privileges;
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// Most groups an account may have (NGROUPS_MAX of Linux).
const MAX_GROUPS: usize = 65_536;
/// To setresuid and setresgid, -1 means "leave as it is", which would leave root.
const NO_CHANGE: u32 = u32::MAX;
/// Largest passwd entry accepted.
const MAX_ENTRY_BYTES: usize = 1 << 20;

/// A local Unix account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its user id.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// All its groups, the primary one among them.
    pub groups: Vec<u32>,
    /// Whether it works for a user whose own account it is not, and who must not gain its privileges
    /// ([`renkei_store::privileges`]).
    pub is_lent: bool,
}

impl Account {
    /// Finds an account by name, with its groups.
    pub fn lookup(name: &str) -> Result<Self, Error> {
        let unknown = |cause: &str| Error::new(Code::AccountUnknown, "look up account", name, cause);
        let c_name = CString::new(name).map_err(|_| unknown("a NUL in the name"))?;
        let entry = entry(|buffer, pwd, result| {
            // SAFETY: all pointers are valid for the call, the length is the buffer's.
            unsafe { libc::getpwnam_r(c_name.as_ptr(), pwd, buffer.as_mut_ptr(), buffer.len(), result) }
        });
        match entry.map_err(|error| unknown(&error.to_string()))? {
            Some((_, uid, gid)) => Self::with_groups(name.into(), &c_name, uid, gid),
            None => Err(unknown("no such account")),
        }
    }

    /// Finds an account by user id, with its groups.
    pub fn lookup_uid(uid: u32) -> Result<Self, Error> {
        let unknown = |cause: &str| Error::new(Code::AccountUnknown, "look up uid", uid, cause);
        let entry = entry(|buffer, pwd, result| {
            // SAFETY: all pointers are valid for the call, the length is the buffer's.
            unsafe { libc::getpwuid_r(uid, pwd, buffer.as_mut_ptr(), buffer.len(), result) }
        });
        match entry.map_err(|error| unknown(&error.to_string()))? {
            Some((name, uid, gid)) => Self::with_groups(name.to_string_lossy().into_owned(), &name, uid, gid),
            None => Err(unknown("no account has this uid")),
        }
    }

    /// The account of that name, to work for other users.
    pub fn lookup_to_lend(name: &str) -> Result<Self, Error> {
        Ok(Self::lookup(name)?.lent())
    }

    /// The same account, to work for other users.
    pub fn lent(self) -> Self {
        Account { is_lent: true, ..self }
    }

    /// The account this process runs as; named `uid-N` where the system has no name for it.
    pub fn own() -> Result<Self, Error> {
        let uid = rustix::process::geteuid().as_raw();
        Self::lookup_uid(uid).or_else(|_| {
            let groups = rustix::process::getgroups().map_err(|errno| refused("getgroups", &errno))?;
            Ok(Account {
                name: format!("uid-{uid}"),
                uid,
                gid: rustix::process::getegid().as_raw(),
                groups: groups.into_iter().map(Gid::as_raw).collect(),
                is_lent: false,
            })
        })
    }

    /// Whether this process may work as the account: root as any, other processes only as their own.
    pub fn check_servable(&self) -> Result<(), Error> {
        let own = rustix::process::geteuid();
        if own.is_root() || own.as_raw() == self.uid {
            return Ok(());
        }
        let cause = format!("this PoP runs with uid {}, {} has uid {}", own.as_raw(), self.name, self.uid);
        Err(Error::new(Code::AccountNotServed, "assume account", &self.name, cause))
    }

    /// Makes the calling thread, and it alone, work as the account from now on. Idempotent.
    ///
    /// # Errors
    /// The thread must not do the account's work then: its identity may have changed in part.
    pub fn assume(&self) -> Result<(), Error> {
        self.check_servable()?;
        if self.is_lent {
            privileges::lend();
        }
        if rustix::process::geteuid().as_raw() == self.uid {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        // Groups first: without root the others could not be changed any more.
        set_thread_groups(&groups).map_err(|errno| refused("setgroups", &errno))?;
        set_thread_res_gid(gid, gid, gid).map_err(|errno| refused("setresgid", &errno))?;
        set_thread_res_uid(Uid::ROOT, uid, Uid::ROOT).map_err(|errno| refused("setresuid", &errno))
    }

    /// Starts a thread that works as the account; fails if it cannot.
    pub fn spawn<T: Send + 'static>(
        &self,
        thread: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<AccountThread<T>, Error> {
        let account = self.clone();
        let (report, assumed) = sync_channel(1);
        let body = move || {
            let outcome = account.assume();
            let assumed = outcome.is_ok();
            // The spawning thread waits for this; if it is gone, the work is not done.
            let wanted = report.send(outcome).is_ok();
            (assumed && wanted).then(work)
        };
        let handle = std::thread::Builder::new()
            .name(thread.into())
            .spawn(body)
            .map_err(|error| Error::new(Code::SystemCall, "start thread", thread, error))?;
        if let Err(error) = assumed.recv().expect("the thread reports before it works") {
            // All that the work owns is dropped before the error is returned.
            let _ = handle.join();
            return Err(error);
        }
        Ok(AccountThread(handle))
    }

    fn with_groups(name: String, c_name: &CStr, uid: u32, gid: u32) -> Result<Self, Error> {
        if uid == NO_CHANGE || gid == NO_CHANGE {
            return Err(Error::new(
                Code::AccountUnknown,
                "look up account",
                name,
                "its ids mean \"no change\"",
            ));
        }
        let mut groups: Vec<libc::gid_t> = vec![0; 64];
        loop {
            let mut count = c_int::try_from(groups.len()).expect("at most NGROUPS_MAX");
            // SAFETY: `groups` has room for `count` entries, `c_name` ends with NUL.
            let found =
                unsafe { libc::getgrouplist(c_name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
            if found >= 0 {
                groups.truncate(usize::try_from(found).unwrap_or_default());
                return Ok(Account { name, uid, gid, groups, is_lent: false });
            }
            if groups.len() >= MAX_GROUPS {
                return Err(Error::new(Code::SystemCall, "getgrouplist", name, "too many groups"));
            }
            groups.resize((groups.len() * 4).min(MAX_GROUPS), 0);
        }
    }
}

/// A running thread that works as an account.
#[derive(Debug)]
pub struct AccountThread<T>(JoinHandle<Option<T>>);

impl<T> AccountThread<T> {
    /// Waits for the thread's result; `Err` if it panicked.
    pub fn join(self) -> std::thread::Result<T> {
        self.0.join().map(|done| done.expect("a thread that did not assume its account is never handed out"))
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

type PasswdEntry = Option<(CString, u32, u32)>;

/// Calls one of the `getpw*_r` functions with a buffer that grows until the entry fits.
fn entry(
    call: impl Fn(&mut [libc::c_char], *mut libc::passwd, *mut *mut libc::passwd) -> c_int,
) -> std::io::Result<PasswdEntry> {
    let mut buffer = vec![0; 4096];
    loop {
        let mut pwd = MaybeUninit::<libc::passwd>::uninit();
        let mut result = std::ptr::null_mut();
        match call(&mut buffer, pwd.as_mut_ptr(), &mut result) {
            libc::ERANGE if buffer.len() < MAX_ENTRY_BYTES => buffer.resize(buffer.len() * 4, 0),
            libc::EINTR => {}
            0 | libc::ENOENT | libc::ESRCH if result.is_null() => return Ok(None),
            // SAFETY: a result that is not null points to `pwd`, which the call filled; its name lies in `buffer`.
            0 => return Ok(Some(unsafe { read_entry(&*result) })),
            errno => return Err(std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// # Safety
/// `pwd.pw_name` must point to a text that ends with NUL.
unsafe fn read_entry(pwd: &libc::passwd) -> (CString, u32, u32) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(pwd.pw_name) };
    (name.to_owned(), pwd.pw_uid, pwd.pw_gid)
}

fn refused(call: &str, errno: &rustix::io::Errno) -> Error {
    Error::new(Code::SystemCall, call, "", std::io::Error::from(*errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("skipped: needs root to become another account");
        }
        root
    }

    #[test]
    fn accounts_are_found_by_name_and_uid() {
        let root = Account::lookup("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(Account::lookup_uid(0).unwrap(), root);
        for missing in ["no-such-account", "", "a\0b"] {
            assert_eq!(Account::lookup(missing).unwrap_err().code, Code::AccountUnknown);
        }
        assert_eq!(Account::lookup_uid(4_000_000_000).unwrap_err().code, Code::AccountUnknown);
    }

    #[test]
    fn switching_to_the_own_account_does_nothing() {
        let own = Account::own().unwrap();
        own.check_servable().unwrap();
        assert_eq!(own.spawn("self", || 7).unwrap().join().unwrap(), 7);
    }

    #[test]
    fn only_the_thread_switches_its_account() {
        if !is_root() {
            return;
        }
        let nobody = Account::lookup("nobody").unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.path().join("file");
        let inner = path.clone();
        let work = move || {
            std::fs::write(inner, "x").unwrap();
            let groups = rustix::process::getgroups().unwrap();
            let capabilities = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            (capabilities, groups.into_iter().map(Gid::as_raw).collect::<Vec<_>>())
        };
        let (status, groups) = nobody.spawn("nobody", work).unwrap().join().unwrap();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        assert_eq!(u64::from_str_radix(effective, 16).unwrap(), 0, "capabilities are left");
        assert_eq!(groups, nobody.groups);
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (nobody.uid, nobody.gid));
        assert!(rustix::process::geteuid().is_root());
        assert!(std::fs::write(dir.path().join("by-root"), "x").is_ok());
    }

    #[test]
    fn the_account_itself_cannot_end_the_daemon() {
        use std::os::unix::process::CommandExt;
        if !is_root() {
            return;
        }
        let nobody = Account::lookup("nobody").unwrap();
        let (started, thread) = std::sync::mpsc::channel();
        let (finish, wait) = std::sync::mpsc::channel::<()>();
        let work = move || {
            started.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            let _ = wait.recv();
        };
        let worker = nobody.spawn("nobody", work).unwrap();
        let thread = thread.recv().unwrap();
        // Signal 0 asks whether any other would be delivered.
        let mut kill = std::process::Command::new("sh");
        kill.args(["-c", &format!("kill -0 {thread}")]).uid(nobody.uid).gid(nobody.gid);
        let asked = kill.output().unwrap();
        drop(finish);
        worker.join().unwrap();
        assert!(!asked.status.success(), "the account may signal a thread of the daemon");
        let said = String::from_utf8_lossy(&asked.stderr).to_lowercase();
        assert!(said.contains("permitted") || said.contains("permission"), "{said}");
    }

    #[test]
    fn without_root_only_the_own_account_is_served() {
        if !is_root() {
            return;
        }
        let nobody = Account::lookup("nobody").unwrap();
        let refused = nobody.spawn("nobody", || Account::lookup("root").unwrap().assume()).unwrap();
        assert_eq!(refused.join().unwrap().unwrap_err().code, Code::AccountNotServed);
        let refused = nobody
            .spawn("nobody", || Account::lookup("root").unwrap().spawn("root", || ()).map(|_| ()))
            .unwrap();
        assert_eq!(refused.join().unwrap().unwrap_err().code, Code::AccountNotServed);
    }
}
