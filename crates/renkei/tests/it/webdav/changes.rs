//! Locks, copies and digests, with curl as a client.

use super::{Answer, ask, pop, upload};
use crate::federation::Site;

const LOCK: &str = "<lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope><locktype><write/></locktype>\
    <owner>alice</owner></lockinfo>";

fn to(site: &Site, path: &str) -> String {
    format!("Destination: https://{}{path}", site.address)
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn a_lock_refuses_changes_without_its_token() {
    let (dir, site) = pop();
    let file = dir.path().join("content");
    std::fs::write(&file, "content").unwrap();
    assert_eq!(ask(&site, "/data/run", &["-X", "MKCOL"]).status, 201);
    let locked = ask(&site, "/data/run", &["-X", "LOCK", "-H", "Timeout: Second-600", "--data-binary", LOCK]);
    assert_eq!(locked.status, 200, "{}", text(&locked));
    assert!(text(&locked).contains("<D:timeout>Second-600</D:timeout>"), "{}", text(&locked));
    let token = locked.header("lock-token").unwrap().to_owned();

    let refused = upload(&site, "/data/run/a", &file, &[]);
    assert_eq!(refused.status, 423);
    assert!(
        text(&refused).contains("<D:lock-token-submitted><D:href>/data/run</D:href>"),
        "{}",
        text(&refused)
    );
    let shown = format!("If: (<{}>)", token.trim_matches(['<', '>']));
    // For a resource other than that of the request.
    let tagged = format!("If: <https://{}/data/run> ({token})", site.address);
    assert_eq!(upload(&site, "/data/run/a", &file, &["-H", &shown]).status, 201);
    assert_eq!(upload(&site, "/data/run/a", &file, &["-H", &tagged]).status, 204);
    assert_eq!(ask(&site, "/data/run", &["-X", "DELETE"]).status, 423);
    assert_eq!(ask(&site, "/data/run/a", &["-X", "MOVE", "-H", &to(&site, "/data/a")]).status, 423);
    assert_eq!(ask(&site, "/data/run/a", &["-X", "COPY", "-H", &to(&site, "/data/a")]).status, 201);
    assert_eq!(ask(&site, "/data/run", &["-X", "LOCK", "--data-binary", LOCK]).status, 423);
    assert_eq!(
        ask(&site, "/data", &["-X", "LOCK", "-H", "Depth: infinity", "--data-binary", LOCK]).status,
        423
    );
    let refreshed = ask(&site, "/data/run", &["-X", "LOCK", "-H", &shown]);
    assert_eq!(refreshed.status, 200, "{}", text(&refreshed));
    let stale = ["-X", "PUT", "-d", "x", "-H", "If: (<urn:uuid:none>)"];
    assert_eq!(ask(&site, "/data/run/a", &stale).status, 412);
    let other = ["-X", "PUT", "-d", "x", "-H", "If: (<urn:uuid:none>) (Not <DAV:no-lock>)"];
    assert_eq!(ask(&site, "/data/run/a", &other).status, 423);

    let unlock = format!("Lock-Token: {token}");
    assert_eq!(ask(&site, "/data/run", &["-X", "UNLOCK", "-H", &unlock]).status, 204);
    assert_eq!(ask(&site, "/data/run", &["-X", "UNLOCK", "-H", &unlock]).status, 409);
    assert_eq!(upload(&site, "/data/run/a", &file, &["-H", &shown]).status, 412, "the lock is gone");
    assert_eq!(ask(&site, "/data/run", &["-X", "DELETE"]).status, 204);
    // A name that is not there becomes an empty file.
    assert_eq!(ask(&site, "/data/new", &["-X", "LOCK", "--data-binary", LOCK]).status, 201);
    assert_eq!(std::fs::read(site.root().join("new")).unwrap(), b"");
    assert_eq!(ask(&site, "/data/none/new", &["-X", "LOCK", "--data-binary", LOCK]).status, 409);
}

#[test]
fn copies_are_made_at_the_server_or_refused_clearly() {
    let (_dir, site) = pop();
    let tree = site.root().join("tree");
    std::fs::create_dir_all(tree.join("sub/empty")).unwrap();
    let content: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(tree.join("sub/a"), &content).unwrap();
    std::os::unix::fs::symlink("a", tree.join("sub/link")).unwrap();
    let copy = |from: &str, path: &str, more: &[&str]| {
        ask(&site, from, &[&["-X", "COPY", "-H", &to(&site, path)], more].concat())
    };
    assert_eq!(copy("/data/tree", "/data/second", &[]).status, 201);
    let second = site.root().join("second");
    assert_eq!(std::fs::read(second.join("sub/a")).unwrap(), content);
    assert_eq!(std::fs::read_link(second.join("sub/link")).unwrap().to_str(), Some("a"));
    assert!(second.join("sub/empty").is_dir());
    assert_eq!(copy("/data/tree", "/data/second", &["-H", "Overwrite: F"]).status, 412);
    assert_eq!(copy("/data/tree", "/data/second", &["-H", "Depth: 0"]).status, 204);
    assert_eq!(std::fs::read_dir(&second).unwrap().count(), 0, "replaced by the directory alone");
    assert_eq!(copy("/data/tree/sub/a", "/data/none/a", &[]).status, 409);
    assert_eq!(copy("/data/tree", "/data/tree/sub/x", &[]).status, 403);
    assert_eq!(copy("/data/tree/sub", "/data", &[]).status, 403);
    assert_eq!(copy("/data/none", "/data/x", &[]).status, 404);
    let rename = |from: &str, path: &str| ask(&site, from, &["-X", "MOVE", "-H", &to(&site, path)]).status;
    assert_eq!((rename("/data/tree/sub", "/data/tree"), rename("/data/tree", "/data/tree")), (403, 403));
    // Nor by another way.
    std::os::unix::fs::symlink(".", site.root().join("here")).unwrap();
    assert_eq!(
        (copy("/data/tree/sub", "/data/here/tree", &[]).status, rename("/data/tree/sub", "/data/here/tree")),
        (403, 403)
    );
    assert_eq!(copy("/data/tree", "/data/here/tree/sub/again", &[]).status, 201);
    let again = tree.join("sub/again/sub");
    assert!(again.join("a").is_file() && !again.join("again").exists());
}

#[test]
fn digests_are_given_and_compared_before_anything_is_seen() {
    let (dir, site) = pop();
    let file = dir.path().join("dog");
    std::fs::write(&file, "dog").unwrap();
    let put =
        upload(&site, "/data/a", &file, &["-H", "Digest: crc32c=0a72a4df", "-H", "Want-Digest: adler32"]);
    assert_eq!((put.status, put.header("digest")), (201, Some("adler32=0274013b")));
    for wrong in
        ["Digest: crc32c=00000000", "Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==", "OC-Checksum: ADLER32:00000001"]
    {
        let refused = upload(&site, "/data/b", &file, &["-H", wrong]);
        assert_eq!((refused.status, refused.problem()["code"].as_str()), (400, Some("RK-MOVE-3")), "{wrong}");
        assert!(!site.root().join("b").exists());
    }
    let head = ask(&site, "/data/a", &["--head", "-H", "Want-Digest: sha-512, MD5;q=0.5, adler32;q=0.4"]);
    assert_eq!(head.header("digest"), Some("md5=BtgOsMULSaUJtJ8kJOjIBQ=="));
    let got = ask(&site, "/data/a", &["-H", "Want-Repr-Digest: adler=1", "-r", "1-"]);
    assert_eq!((got.status, got.header("repr-digest")), (206, Some("adler=:AnQBOw==:")));
    assert_eq!(ask(&site, "/data/a", &["--head", "-H", "Want-Digest: unixcksum"]).header("digest"), None);
}

#[test]
fn several_ranges_come_in_one_response() {
    let (_dir, site) = pop();
    std::fs::write(site.root().join("a"), "0123456789").unwrap();
    let got = ask(&site, "/data/a", &["-r", "0-1,8-"]);
    let kind = got.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range: &str, content: &str| {
        format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {range}/10\r\n\r\n{content}"
        )
    };
    let expected = format!("{}{}\r\n--{boundary}--\r\n", part("0-1", "01"), part("8-9", "89"));
    assert_eq!((got.status, text(&got)), (206, expected));
}
