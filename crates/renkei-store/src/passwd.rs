//! The system's passwd and group databases: names and numbers of accounts and groups, cached for a while.
//!
//! The cache is per thread, so that threads never contend. It is bounded in number and age; negative answers are
//! cached too.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Most cached entries per thread and table; a full table is cleared.
const MAX_REMEMBERED: usize = 1024;
/// How long an answer is cached.
const MAX_AGE: Duration = Duration::from_secs(300);
/// Initial buffer of one database record; doubled up to [`MAX_RECORD_BYTES`].
const RECORD_BYTES: usize = 2048;
/// Largest record accepted: a group with tens of thousands of members.
const MAX_RECORD_BYTES: usize = 4 << 20;

thread_local! {
    static USER_NAMES: RefCell<Table<u32, String>> = RefCell::default();
    static GROUP_NAMES: RefCell<Table<u32, String>> = RefCell::default();
    static USER_IDS: RefCell<Table<String, u32>> = RefCell::default();
    static GROUP_IDS: RefCell<Table<String, u32>> = RefCell::default();
}

/// The name of the account `uid`; `None` if it has none here.
pub fn user_name(uid: u32) -> Option<String> {
    USER_NAMES.with_borrow_mut(|table| table.find(&uid, |_| look_up_user_name(uid)))
}

/// The name of the group `gid`; `None` if it has none here.
pub fn group_name(gid: u32) -> Option<String> {
    GROUP_NAMES.with_borrow_mut(|table| table.find(&gid, |_| look_up_group_name(gid)))
}

/// The uid of the account `name`; `None` if it does not exist here.
pub fn user_id(name: &str) -> Option<u32> {
    if name.is_empty() {
        return None;
    }
    USER_IDS.with_borrow_mut(|table| table.find(name, look_up_user_id))
}

/// The gid of the group `name`; `None` if it does not exist here.
pub fn group_id(name: &str) -> Option<u32> {
    if name.is_empty() {
        return None;
    }
    GROUP_IDS.with_borrow_mut(|table| table.find(name, look_up_group_id))
}

struct Table<K, V>(HashMap<K, (Option<V>, Instant)>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table(HashMap::new())
    }
}

impl<K: Eq + Hash, V: Clone> Table<K, V> {
    fn find<Q>(&mut self, key: &Q, look_up: impl FnOnce(&Q) -> Option<V>) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        if let Some((value, since)) = self.0.get(key)
            && since.elapsed() < MAX_AGE
        {
            return value.clone();
        }
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        let value = look_up(key);
        self.0.insert(key.to_owned(), (value.clone(), Instant::now()));
        value
    }
}

/// Calls `read` with growing buffers until the record fits.
///
/// `read` fills record and buffer, and returns the error number and the record, if found.
fn with_room<T>(mut read: impl FnMut(&mut [libc::c_char]) -> (libc::c_int, Option<T>)) -> Option<T> {
    let mut room = vec![0; RECORD_BYTES];
    loop {
        let (errno, found) = read(&mut room);
        if errno != libc::ERANGE || room.len() >= MAX_RECORD_BYTES {
            return found;
        }
        room.resize(room.len() * 2, 0);
    }
}

fn look_up_user_name(uid: u32) -> Option<String> {
    with_room(|room| {
        // SAFETY: passwd is plain old data, for which all-zero bytes are valid.
        let mut record: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call and `room` has the length given.
        let errno = unsafe { libc::getpwuid_r(uid, &mut record, room.as_mut_ptr(), room.len(), &mut found) };
        // SAFETY: when a record was found, its name is a C string inside `room`.
        (errno, (!found.is_null()).then(|| unsafe { text(record.pw_name) }))
    })
}

fn look_up_group_name(gid: u32) -> Option<String> {
    with_room(|room| {
        // SAFETY: group is plain old data, for which all-zero bytes are valid.
        let mut record: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call and `room` has the length given.
        let errno = unsafe { libc::getgrgid_r(gid, &mut record, room.as_mut_ptr(), room.len(), &mut found) };
        // SAFETY: when a record was found, its name is a C string inside `room`.
        (errno, (!found.is_null()).then(|| unsafe { text(record.gr_name) }))
    })
}

fn look_up_user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    with_room(|room| {
        // SAFETY: passwd is plain old data, for which all-zero bytes are valid.
        let mut record: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (into, len) = (room.as_mut_ptr(), room.len());
        // SAFETY: `name` ends with NUL, all pointers are valid for the call, `room` has the length given.
        let errno = unsafe { libc::getpwnam_r(name.as_ptr(), &mut record, into, len, &mut found) };
        (errno, (!found.is_null()).then_some(record.pw_uid))
    })
}

fn look_up_group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    with_room(|room| {
        // SAFETY: group is plain old data, for which all-zero bytes are valid.
        let mut record: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        let (into, len) = (room.as_mut_ptr(), room.len());
        // SAFETY: `name` ends with NUL, all pointers are valid for the call, `room` has the length given.
        let errno = unsafe { libc::getgrnam_r(name.as_ptr(), &mut record, into, len, &mut found) };
        (errno, (!found.is_null()).then_some(record.gr_gid))
    })
}

/// # Safety
/// `name` points to a C string.
unsafe fn text(name: *const libc::c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_resolved_by_name_and_by_id() {
        for _ in 0..2 {
            assert_eq!(user_name(0).as_deref(), Some("root"));
            assert_eq!(user_id("root"), Some(0));
            assert_eq!(group_name(0).as_deref(), Some("root"));
            assert_eq!(group_id("root"), Some(0));
        }
        assert_eq!(user_id("no such account"), None);
        assert_eq!(user_id(""), None);
        assert_eq!(user_id("ro\0ot"), None);
        assert_eq!(user_name(3_999_999_999), None);
    }

    #[test]
    fn remembers_a_bounded_number_and_only_asks_once() {
        let mut table: Table<u32, u32> = Table::default();
        for key in 0..3000 {
            assert_eq!(table.find(&key, |_| Some(key + 1)), Some(key + 1));
            assert_eq!(table.find(&key, |_| unreachable!("remembered")), Some(key + 1));
            assert!(table.0.len() <= MAX_REMEMBERED);
        }
    }
}
