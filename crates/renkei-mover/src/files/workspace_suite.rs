//! What every workspace must do, whatever files are behind it: one suite for storages, volumes, agents and far sites.
#![allow(clippy::unwrap_used)] // a fixture that fails is a failed test

use super::workspace::{AccessList, Create, Follow, ListFrom, Replace, Upload, Workspace};
use super::workspace_suite_places;
use renkei_core::entry::{EntryKind, FileTime, Xattr};
use renkei_core::error::Code;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Alteration, Freshness, Precondition, Start};
use renkei_core::wire::message::Algorithm;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn put(workspace: &Workspace, name: &str, content: &[u8]) {
    let writer = workspace.create(&path(name), Create::default()).unwrap();
    writer.write_at(content, 0).unwrap();
    writer.publish(None, None).unwrap();
}

fn read(workspace: &Workspace, name: &str) -> Vec<u8> {
    let reader = workspace.open(&path(name)).unwrap();
    let mut all = vec![0; reader.size() as usize + 1];
    let count = reader.read_at(&mut all, 0).unwrap();
    all.truncate(count);
    all
}

fn names(workspace: &Workspace, dir: &str) -> Vec<String> {
    let page = workspace.list(&path(dir), Follow::Yes, ListFrom::default()).unwrap();
    page.items.iter().map(|item| item.entry.path.to_string()).collect()
}

/// Runs the suite in an empty, writable place.
pub fn all(workspace: &Workspace) {
    a_version_is_invisible_until_it_is_published(workspace);
    content_is_verified_before_it_is_published(workspace);
    a_reader_keeps_its_version(workspace);
    lists_are_ordered_and_paged(workspace);
    names_change_as_the_caller_says(workspace);
    links_are_followed_inside_alone(workspace);
    attributes_change(workspace);
    a_known_checksum_is_that_of_the_content(workspace);
    attributes_of_users_are_set_or_refused(workspace);
    an_abandoned_upload_leaves_nothing(workspace);
    parts_become_one_file(workspace);
    workspace_suite_places::handles(workspace);
    workspace_suite_places::own_content_is_online(workspace);
    workspace_suite_places::changes_are_told_or_refused(workspace);
    assert!(workspace.space().unwrap().total_bytes > 0);
}

fn a_version_is_invisible_until_it_is_published(workspace: &Workspace) {
    let writer = workspace.create(&path("new"), Create { mode: 0o640, ..Create::default() }).unwrap();
    writer.write_at(b"world", 6).unwrap();
    writer.write_at(b"hello ", 0).unwrap();
    assert!(!names(workspace, "").contains(&"new".to_owned()));
    let published = writer.publish(Some(FileTime { secs: 1_000_000_000, nanos: 5 }), None).unwrap();
    assert_eq!((published.entry.size(), published.entry.meta.mode & 0o7777), (11, 0o640));
    assert_eq!(read(workspace, "new"), b"hello world");
    let found = workspace.stat(&path("new"), Follow::No).unwrap();
    assert_eq!(found.entry.meta.mtime, FileTime { secs: 1_000_000_000, nanos: 5 });
    let abandoned = workspace.create(&path("abandoned"), Create::default()).unwrap();
    abandoned.write_at(b"x", 0).unwrap();
    abandoned.abandon();
    assert_eq!(names(workspace, ""), ["new"]);
    let longer =
        workspace.create(&path("new"), Create { start: Start::Content, ..Create::default() }).unwrap();
    longer.write_at(b"!", 11).unwrap();
    longer.publish(None, None).unwrap();
    assert_eq!(read(workspace, "new"), b"hello world!");
    workspace.remove(&path("new")).unwrap();
    let gone = workspace.stat(&path("new"), Follow::Yes).unwrap_err();
    assert_eq!(gone.code, Code::PathNotFound);
}

fn content_is_verified_before_it_is_published(workspace: &Workspace) {
    let content = vec![7; 3 << 20];
    let mut sum = renkei_store::checksum::Checksum::new(Algorithm::Md5);
    sum.update(&content);
    let sum = sum.finish();
    let create = Create { checksum: Some(Algorithm::Md5), ..Create::default() };
    let half = content.len() / 2;
    // In order the checksum follows the writes, else the content is read back.
    for order in [[0, half], [half, 0]] {
        let writer = workspace.create(&path("sum"), create).unwrap();
        for offset in order {
            writer.write_at(&content[offset..offset + half], offset as u64).unwrap();
        }
        writer.publish(None, Some(&sum)).unwrap();
    }
    assert_eq!(
        workspace.open(&path("sum")).unwrap().checksum(Algorithm::Md5, Freshness::Read).unwrap(),
        Some(sum.clone())
    );
    let writer = workspace.create(&path("sum"), create).unwrap();
    writer.write_at(b"other", 0).unwrap();
    assert_eq!(writer.publish(None, Some(&sum)).unwrap_err().code, Code::DigestMismatch);
    assert_eq!(read(workspace, "sum"), content);
    workspace.remove(&path("sum")).unwrap();
}

fn a_reader_keeps_its_version(workspace: &Workspace) {
    put(workspace, "kept", b"first");
    let reader = workspace.open(&path("kept")).unwrap();
    put(workspace, "kept", b"second version");
    let mut buf = [0; 32];
    let count = reader.read_at(&mut buf, 0).unwrap();
    assert_eq!(&buf[..count], b"first");
    let now = workspace.open(&path("kept")).unwrap();
    assert_ne!(now.version().unwrap(), reader.version().unwrap());
    workspace.remove(&path("kept")).unwrap();
}

fn lists_are_ordered_and_paged(workspace: &Workspace) {
    workspace.mkdir(&path("list"), 0o755).unwrap();
    for name in ["b2", "a", "b10", "c", "b1"] {
        put(workspace, &format!("list/{name}"), name.as_bytes());
    }
    assert_eq!(names(workspace, "list"), ["a", "b1", "b10", "b2", "c"]);
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let from = ListFrom { prefix: b"b", after: after.as_deref(), most: 2 };
        let page = workspace.list(&path("list"), Follow::Yes, from).unwrap();
        assert!(page.items.len() <= 2);
        found.extend(page.items.iter().map(|item| item.entry.path.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, ["b1", "b10", "b2"]);
    assert_eq!(
        workspace.list(&path("list/a"), Follow::Yes, ListFrom::default()).unwrap_err().code,
        Code::NotADirectory
    );
    for name in ["b2", "a", "b10", "c", "b1"] {
        workspace.remove(&path(&format!("list/{name}"))).unwrap();
    }
    workspace.rmdir(&path("list")).unwrap();
}

fn names_change_as_the_caller_says(workspace: &Workspace) {
    workspace.mkdir(&path("dir"), 0o750).unwrap();
    assert_eq!(workspace.mkdir(&path("dir"), 0o750).unwrap_err().code, Code::PathExists);
    put(workspace, "dir/one", b"one");
    put(workspace, "two", b"two");
    let kept = workspace.rename(&path("dir/one"), &path("two"), Replace::No);
    assert_eq!(kept.unwrap_err().code, Code::PathExists);
    workspace.rename(&path("dir/one"), &path("two"), Replace::Yes).unwrap();
    assert_eq!(read(workspace, "two"), b"one");
    workspace.link(&path("two"), &path("dir/three")).unwrap();
    assert_eq!(workspace.stat(&path("two"), Follow::No).unwrap().links, 2);
    assert_eq!(workspace.rmdir(&path("dir")).unwrap_err().code, Code::NotEmpty);
    workspace.remove(&path("dir/three")).unwrap();
    workspace.rmdir(&path("dir")).unwrap();
    workspace.remove(&path("two")).unwrap();
    assert!(names(workspace, "").is_empty());
}

fn links_are_followed_inside_alone(workspace: &Workspace) {
    workspace.mkdir(&path("real"), 0o755).unwrap();
    put(workspace, "real/file", b"content");
    workspace.symlink(b"real", &path("way")).unwrap();
    workspace.symlink(b"../way/file", &path("real/link")).unwrap();
    assert_eq!(read(workspace, "way/link"), b"content");
    assert_eq!(workspace.stat(&path("way/link"), Follow::Yes).unwrap().entry.size(), 7);
    let link = workspace.stat(&path("way"), Follow::No).unwrap();
    assert!(matches!(link.entry.kind, EntryKind::Symlink { .. }));
    let refused = [
        workspace.list(&path("way"), Follow::No, ListFrom::default()).map(drop),
        workspace.set_attr(&path("way/file"), Follow::No, Alteration::default()).map(drop),
    ];
    assert!(refused.iter().all(|one| one.as_ref().is_err_and(|error| error.code == Code::NotADirectory)));
    put(workspace, "real/link", b"content by a link");
    assert_eq!(read(workspace, "real/file"), b"content by a link");
    put(workspace, "way/second", b"2");
    assert_eq!(names(workspace, "way"), ["file", "link", "second"]);
    for (target, code) in [
        (&b"/etc/passwd"[..], Code::OutsideStorage),
        (b"../up", Code::OutsideStorage),
        (b"loop", Code::BadPath),
    ] {
        workspace.symlink(target, &path("loop")).unwrap();
        assert_eq!(workspace.open(&path("loop")).map(drop).unwrap_err().code, code);
        workspace.remove(&path("loop")).unwrap();
    }
    for name in ["real/file", "real/link", "real/second", "way"] {
        workspace.remove(&path(name)).unwrap();
    }
    workspace.rmdir(&path("real")).unwrap();
}

fn attributes_change(workspace: &Workspace) {
    put(workspace, "attr", b"x");
    let mtime = FileTime { secs: 1_234_567_890, nanos: 0 };
    let change = Alteration { mode: Some(0o600), mtime: Some(mtime), ..Alteration::default() };
    workspace.set_attr(&path("attr"), Follow::No, change).unwrap();
    let found = workspace.stat(&path("attr"), Follow::No).unwrap();
    assert_eq!((found.entry.meta.mode & 0o7777, found.entry.meta.mtime), (0o600, mtime));
    workspace.remove(&path("attr")).unwrap();
}

/// Whether or not the place keeps extended attributes.
fn attributes_of_users_are_set_or_refused(workspace: &Workspace) {
    put(workspace, "xattr", b"x");
    let at = path("xattr");
    for change in [
        workspace.set_xattr(&at, b"user.renkei.checksums", b"1"),
        workspace.remove_xattr(&at, b"user.renkei.checksums"),
    ] {
        assert_eq!(change.unwrap_err().code, Code::PermissionDenied);
    }
    match workspace.set_xattr(&at, b"user.a", b"v") {
        Ok(()) => assert_eq!(workspace.xattr(&at, b"user.a").unwrap().as_deref(), Some(&b"v"[..])),
        Err(error) => assert_eq!(error.code, Code::Unsupported),
    }
    workspace.remove(&at).unwrap();
}

fn put_part(upload: &Upload, number: u32, content: &[u8]) {
    let writer = upload.put_part(number, None).unwrap();
    writer.write_at(content, 0).unwrap();
    writer.publish(None, None).unwrap();
}

fn an_abandoned_upload_leaves_nothing(workspace: &Workspace) {
    let upload = workspace.create_upload(&path("parts")).unwrap();
    put_part(&upload, 2, b"second");
    upload.abandon().unwrap();
    assert!(names(workspace, "").is_empty());
}

fn parts_become_one_file(workspace: &Workspace) {
    let parts: Vec<Vec<u8>> = [5, 6, 7].map(|byte| vec![byte; (1 << 20) + usize::from(byte)]).to_vec();
    put(workspace, "parts", b"before");
    let upload = workspace.create_upload(&path("parts")).unwrap();
    // Another process continues it.
    let again = workspace.upload(&path("parts"), upload.id()).unwrap();
    for number in [3, 1, 10, 2, 3] {
        put_part(&again, number, parts.get(number as usize - 1).map_or(b"unused", |part| part));
    }
    let open = upload.put_part(4, None).unwrap();
    open.write_at(b"not published", 0).unwrap();
    assert_eq!(names(workspace, ""), ["parts"], "nothing is seen");
    assert_eq!(read(workspace, "parts"), b"before");
    let found: Vec<_> = upload.parts().unwrap().iter().map(|part| (part.number, part.bytes)).collect();
    let length = |number: usize| parts[number - 1].len() as u64;
    assert_eq!(found, [(1, length(1)), (2, length(2)), (3, length(3)), (10, 6)]);
    let code = |parts: &[u32], condition| upload.complete(parts, condition).unwrap_err().code;
    assert_eq!(code(&[], Precondition::None), Code::UsageInvalid);
    assert_eq!(code(&[2, 1], Precondition::None), Code::UsageInvalid);
    assert_eq!(code(&[1, 4], Precondition::None), Code::PathNotFound);
    assert_eq!(code(&[1, 2], Precondition::Absent), Code::PathExists);
    assert_eq!(upload.put_part(0, None).map(drop).unwrap_err().code, Code::UsageInvalid);
    assert_eq!(read(workspace, "parts"), b"before", "an error publishes nothing");
    let published = upload.complete(&[1, 2, 3], Precondition::None).unwrap();
    assert_eq!(published.entry.size(), length(1) + length(2) + length(3));
    assert!(read(workspace, "parts") == parts.concat());
    drop(open);
    workspace.remove(&path("parts")).unwrap();
}

/// Extended attributes and access lists, for places that keep them.
pub fn attributes_of_users(workspace: &Workspace) {
    put(workspace, "xattr", b"x");
    workspace.symlink(b"xattr", &path("way")).unwrap();
    let at = path("way");
    workspace.set_xattr(&at, b"user.b", b"\0\xff").unwrap();
    workspace.set_xattr(&at, b"user.a", b"").unwrap();
    workspace.set_xattr(&at, b"user.a", b"other").unwrap();
    let names: Vec<_> = workspace.xattrs(&at).unwrap().into_iter().map(|xattr| xattr.name).collect();
    assert_eq!(names, [b"user.a", b"user.b"]);
    assert_eq!(workspace.xattr(&at, b"user.a").unwrap().as_deref(), Some(&b"other"[..]));
    // The next version has them, too.
    put(workspace, "xattr", b"next");
    assert_eq!(workspace.xattr(&at, b"user.b").unwrap().as_deref(), Some(&b"\0\xff"[..]));
    // Whether or not it is there.
    for _ in 0..2 {
        workspace.remove_xattr(&at, b"user.b").unwrap();
    }
    assert_eq!(workspace.xattr(&at, b"user.b").unwrap(), None);
    assert_eq!(workspace.set_xattr(&at, b"trusted.a", b"").unwrap_err().code, Code::Unsupported);
    access_lists(workspace);
    workspace.remove(&at).unwrap();
    workspace.remove(&path("xattr")).unwrap();
}

/// Attributes that are published with content; for workspaces whose files are of this machine.
pub fn attributes_of_drafts(workspace: &Workspace) {
    put(workspace, "described", b"before");
    let at = path("described");
    workspace.set_xattr(&at, b"user.kept", b"kept").unwrap();
    workspace.set_xattr(&at, b"user.old", b"old").unwrap();
    let xattr = |name: &[u8], value: &[u8]| Xattr { name: name.to_vec(), value: value.to_vec() };
    let writer = workspace.create(&at, Create::default()).unwrap();
    let refused = writer.describe(vec![xattr(b"user.renkei.checksums", b"x")]).unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    writer.describe(vec![xattr(b"user.new", b"new"), xattr(b"user.old", b"")]).unwrap();
    assert_eq!(workspace.xattr(&at, b"user.new").unwrap(), None);
    let mtime = FileTime { secs: 1_700_000_000, nanos: 7 };
    writer.publish(Some(mtime), None).unwrap();
    let found = workspace.stat_full(&at).unwrap();
    let attributes = found.entry.meta.xattrs.iter().filter(|xattr| xattr.name.starts_with(b"user."));
    let expected = [xattr(b"user.kept", b"kept"), xattr(b"user.new", b"new")];
    assert_eq!(attributes.cloned().collect::<Vec<_>>(), expected);
    let upload = workspace.create_upload(&at).unwrap();
    let part = upload.put_part(1, None).unwrap();
    part.write_at(b"part", 0).unwrap();
    part.publish(None, None).unwrap();
    let attributes = vec![xattr(b"user.new", b"newer")];
    let item = upload.complete_with(&[1], Precondition::None, Some(mtime), attributes).unwrap();
    assert_eq!((item.entry.meta.mtime, item.entry.size()), (mtime, 4));
    assert_eq!(workspace.xattr(&at, b"user.new").unwrap().as_deref(), Some(&b"newer"[..]));
    workspace.remove(&at).unwrap();
}

fn access_lists(workspace: &Workspace) {
    let at = path("xattr");
    let found = |acl: &[u8]| workspace.xattr(&at, acl).unwrap();
    match workspace.set_acl(&at, AccessList::Own, Some(&named_user_acl())) {
        Ok(()) => assert_eq!(found(b"system.posix_acl_access"), Some(named_user_acl())),
        // A file system without them.
        Err(error) => return assert_eq!(error.code, Code::Unsupported),
    }
    let mode = workspace.stat(&at, Follow::No).unwrap().entry.meta.mode;
    assert_eq!(mode & 0o777, 0o660, "the mask is shown as the group's bits");
    workspace.set_acl(&at, AccessList::Own, None).unwrap();
    assert_eq!(found(b"system.posix_acl_access"), None);
}

/// Owner and a named user may read and write, the group may read.
fn named_user_acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, u32::MAX), (2, 6, 12345), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        acl.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    acl
}

/// The checksums of a file by one way, in the order of the algorithms.
fn checksums(workspace: &Workspace, name: &str, freshness: Freshness) -> Vec<Option<Vec<u8>>> {
    let sum = |algorithm| workspace.checksum(&path(name), algorithm, freshness).unwrap();
    Algorithm::NAMES.iter().map(|(algorithm, _)| sum(*algorithm)).collect()
}

/// Whether or not any are remembered.
fn a_known_checksum_is_that_of_the_content(workspace: &Workspace) {
    for content in ["", "first", "other"] {
        put(workspace, "sums", content.as_bytes());
        let known = checksums(workspace, "sums", Freshness::Known);
        let read = checksums(workspace, "sums", Freshness::Read);
        assert!(known.iter().zip(&read).all(|(known, read)| known.is_none() || known == read), "{content}");
    }
    let any = workspace.checksum(&path("sums"), Algorithm::Sha256, Freshness::Any).unwrap();
    assert_eq!(any, workspace.checksum(&path("sums"), Algorithm::Sha256, Freshness::Read).unwrap());
    workspace.remove(&path("sums")).unwrap();
}

/// Checksums that were asked for are known from then on, for files of PoPs and agents.
pub fn checksums_on_demand(workspace: &Workspace) {
    put(workspace, "sums", b"content that is asked about");
    let read = checksums(workspace, "sums", Freshness::Any);
    assert_eq!(checksums(workspace, "sums", Freshness::Known), read);
    assert_eq!(checksums(workspace, "sums", Freshness::Read), read);
    put(workspace, "sums", b"content that was asked about");
    assert_ne!(checksums(workspace, "sums", Freshness::Known), read);
    assert_ne!(checksums(workspace, "sums", Freshness::Any), read);
    workspace.remove(&path("sums")).unwrap();
}

/// Remembered checksums, for storages that are asked for all of them.
pub fn remembered_checksums(workspace: &Workspace) {
    let content = vec![7; 3 << 20];
    let half = content.len() / 2;
    for order in [[0, half], [half, 0]] {
        let writer = workspace.create(&path("sums"), Create::default()).unwrap();
        for offset in order {
            writer.write_at(&content[offset..offset + half], offset as u64).unwrap();
        }
        writer.publish(None, None).unwrap();
        let known = checksums(workspace, "sums", Freshness::Known);
        assert_eq!(known, checksums(workspace, "sums", Freshness::Read));
    }
    // A version that begins with the content before.
    let create = Create { start: Start::Content, ..Create::default() };
    let writer = workspace.create(&path("sums"), create).unwrap();
    writer.write_at(b"x", 5).unwrap();
    writer.publish(Some(FileTime { secs: 1_000_000_000, nanos: 0 }), None).unwrap();
    let known = checksums(workspace, "sums", Freshness::Known);
    assert_eq!(known, checksums(workspace, "sums", Freshness::Read));
    let found = workspace.stat(&path("sums"), Follow::No).unwrap();
    assert!(found.entry.meta.xattrs.is_empty());
    workspace.remove(&path("sums")).unwrap();
}

/// Conditional publication.
pub fn conditions(workspace: &Workspace) {
    let absent = Create { condition: Precondition::Absent, ..Create::default() };
    let (first, second) = (workspace.create(&path("once"), absent), workspace.create(&path("once"), absent));
    let (first, second) = (first.unwrap(), second.unwrap());
    first.write_at(b"first", 0).unwrap();
    second.write_at(b"second", 0).unwrap();
    let published = first.publish(None, None).unwrap();
    assert_eq!(second.publish(None, None).unwrap_err().code, Code::PathExists);
    assert_eq!(workspace.create(&path("once"), absent).map(drop).unwrap_err().code, Code::PathExists);
    assert_eq!(read(workspace, "once"), b"first");

    let version = super::workspace::version(&workspace.stat(&path("once"), Follow::No).unwrap()).unwrap();
    assert_eq!(super::workspace::version(&published).unwrap().size, version.size);
    let same = Create { condition: Precondition::Version(version), ..Create::default() };
    let (third, fourth) = (workspace.create(&path("once"), same), workspace.create(&path("once"), same));
    let (third, fourth) = (third.unwrap(), fourth.unwrap());
    third.write_at(b"third", 0).unwrap();
    fourth.write_at(b"fourth", 0).unwrap();
    third.publish(None, None).unwrap();
    assert_eq!(fourth.publish(None, None).unwrap_err().code, Code::VersionReplaced);
    assert_eq!(read(workspace, "once"), b"third");
    workspace.remove(&path("once")).unwrap();
    let gone = workspace.create(&path("once"), same).unwrap();
    assert_eq!(gone.publish(None, None).unwrap_err().code, Code::VersionReplaced);
    // Also where nothing is written, and where the name would be taken at once.
    put(workspace, "once", b"again");
    let unchanged = workspace.create(&path("once"), Create { start: Start::Content, ..same }).unwrap();
    assert_eq!(unchanged.publish(None, None).unwrap_err().code, Code::VersionReplaced);
    workspace.remove(&path("once")).unwrap();
    let new = workspace.create(&path("once"), Create { start: Start::New, ..absent }).unwrap();
    new.write_at(b"new", 0).unwrap();
    new.publish(None, None).unwrap();
    assert_eq!(read(workspace, "once"), b"new");
    workspace.remove(&path("once")).unwrap();
}

/// Whether the file system keeps attributes of users.
pub fn takes_attributes(folder: &std::path::Path) -> bool {
    let probe = folder.join("probe");
    std::fs::write(&probe, "").unwrap();
    let set = rustix::fs::setxattr(&probe, "user.probe", b"", rustix::fs::XattrFlags::empty());
    std::fs::remove_file(&probe).unwrap();
    set.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::local_files::LocalFiles;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::sync::Arc;

    #[test]
    fn files_of_a_local_store_pass() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalStore::open(folder.path(), AccessMode::ReadWrite).unwrap();
        let store = Arc::new(store.with_checksums(&Algorithm::NAMES.map(|(algorithm, _)| algorithm)));
        let files = LocalFiles::new(store, RelPath::root(), true).unwrap();
        let workspace = Workspace::new(Arc::new(files));
        all(&workspace);
        conditions(&workspace);
        workspace_suite_places::changes(&workspace);
        if takes_attributes(folder.path()) {
            attributes_of_users(&workspace);
            remembered_checksums(&workspace);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }
}
