//! WebDAV by the programs that people use: litmus, cadaver, davix.

use super::{ask, credential, pop, upload};
use crate::federation::Site;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The client certificate of the site's user in the form that neon's programs read.
fn pkcs12(site: &Site, dir: &Path) -> PathBuf {
    let file = dir.join("user.p12");
    let credential = credential(site);
    let export = ["pkcs12", "-export", "-passout", "pass:", "-in"];
    let made = Command::new("openssl").args(export).arg(&credential).arg("-out").arg(&file).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    file
}

fn succeeded(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// Whether attributes of users can be set on files in a directory.
fn takes_attributes(dir: &Path) -> bool {
    let file = dir.join("attribute");
    std::fs::write(&file, "").unwrap();
    let set = rustix::fs::setxattr(&file, "user.test", b"1", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        eprintln!("skipped: no extended attributes below {}", dir.display());
    }
    set.is_ok()
}

#[test]
fn litmus_passes() {
    let (dir, site) = pop();
    let mut suites = vec!["basic", "copymove", "locks", "http"];
    if takes_attributes(dir.path()) {
        suites.insert(2, "props");
    }
    let run = Command::new("litmus")
        .current_dir(dir.path())
        .env("TESTS", suites.join(" "))
        .args(["--keep-going", "--client-cert"])
        .arg(pkcs12(&site, dir.path()))
        .arg(format!("https://{}/data/", site.address))
        .output()
        .unwrap();
    let text = succeeded(&run);
    let passed = text.matches("100.0%").count();
    assert_eq!(passed, suites.len(), "{text}");
    // The fragment of a URI, which no client sends, is cut off when it is read.
    assert_eq!(text.matches("WARNING").count(), text.matches("URI including fragment").count(), "{text}");
}

#[test]
fn cadaver_lists_copies_locks_and_moves() {
    let (dir, site) = pop();
    std::fs::write(dir.path().join("a.dat"), "content").unwrap();
    let commands = [
        format!("set client-cert {}", pkcs12(&site, dir.path()).display()),
        format!("open https://{}/data/", site.address),
        "mkcol run7\ncd run7\nput a.dat\ncopy a.dat b.dat\nls\nlock b.dat\nunlock b.dat\nmove b.dat c.dat\nquit\n".into(),
    ];
    std::fs::write(dir.path().join("commands"), commands.join("\n")).unwrap();
    // The certificate of the site's authority is accepted on a terminal alone.
    std::fs::write(dir.path().join("answer"), "y\n").unwrap();
    let run = Command::new("script")
        .current_dir(dir.path())
        .env("HOME", dir.path())
        .args(["--quiet", "--return", "--command", "cadaver --rcfile=commands", "/dev/null"])
        .stdin(std::fs::File::open(dir.path().join("answer")).unwrap())
        .output()
        .unwrap();
    let text = succeeded(&run);
    assert!(text.contains("a.dat") && text.contains("b.dat"), "{text}");
    assert_eq!(text.matches("succeeded.").count(), 7, "{text}");
    let names = |name: &str| std::fs::read_to_string(site.root().join("run7").join(name)).ok();
    assert_eq!(
        (names("a.dat"), names("b.dat"), names("c.dat")),
        (Some("content".into()), None, Some("content".into()))
    );
}

#[test]
fn davix_lists_puts_gets_and_removes() {
    let (dir, site) = pop();
    let credential = credential(&site);
    let davix = |program: &str, arguments: &[&str]| {
        let own = ["--insecure", "--cert", credential.to_str().unwrap()];
        let run = Command::new(program).args(own).args(arguments).output().unwrap();
        succeeded(&run)
    };
    let url = |path: &str| format!("davs://{}/data/{path}", site.address);
    let file = dir.path().join("a.dat");
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &content).unwrap();
    davix("davix-mkdir", &[&url("run7")]);
    davix("davix-put", &[file.to_str().unwrap(), &url("run7/a.dat")]);
    let listed = davix("davix-ls", &["-l", &url("run7")]);
    assert!(listed.contains("a.dat") && listed.contains("1200000"), "{listed}");
    let back = dir.path().join("back");
    davix("davix-get", &[&url("run7/a.dat"), back.to_str().unwrap()]);
    assert_eq!(std::fs::read(back).unwrap(), content);
    davix("davix-rm", &[&url("run7/a.dat")]);
    assert!(!site.root().join("run7/a.dat").exists());
}

#[test]
fn curl_sees_properties_of_many_files_and_keeps_those_it_sets() {
    let (dir, site) = pop();
    let many = site.root().join("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..3_000 {
        std::fs::write(many.join(format!("f {number} ü")), vec![0; number]).unwrap();
    }
    std::os::unix::fs::symlink("f 17 ü", many.join("link")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", many.join("out")).unwrap();
    let find = |path: &str, depth: &str, body: &str| {
        let depth = format!("Depth: {depth}");
        ask(&site, path, &["-X", "PROPFIND", "-H", &depth, "--data-binary", body])
    };
    let listed = find("/data/many", "1", "");
    assert_eq!(listed.status, 207);
    let text = String::from_utf8(listed.body).unwrap();
    assert_eq!(text.matches("<D:response>").count(), 3_002, "each file once, the directory, and one link");
    assert!(text.contains("<D:href>/data/many/f%202999%20%C3%BC</D:href>"));
    assert!(
        text.ends_with("</D:multistatus>\n") && text.contains("/many/link<") && !text.contains("/many/out<")
    );
    let all = find("/data/many", "infinity", "");
    assert_eq!(all.status, 403);
    assert!(String::from_utf8_lossy(&all.body).contains("propfind-finite-depth"));
    let quota = "<propfind xmlns=\"DAV:\"><prop><quota-available-bytes/><quota-used-bytes/><nothing xmlns=\"urn:x\"/></prop></propfind>";
    let text = String::from_utf8(find("/data", "0", quota).body).unwrap();
    assert!(text.contains("<D:quota-available-bytes>") && text.contains("404 Not Found"), "{text}");
    assert_eq!(find("/data", "0", "<propfind").status, 400);
    assert_eq!(find("/data/none", "0", "").status, 404);
    assert_eq!(find("/data", "2", "").status, 400);

    if !takes_attributes(dir.path()) {
        return;
    }
    let change = |body: &str| {
        let answer = ask(&site, "/data/many/f%2017%20%C3%BC", &["-X", "PROPPATCH", "--data-binary", body]);
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let set = |properties: &str| {
        change(&format!(
            "<propertyupdate xmlns=\"DAV:\"><set><prop>{properties}</prop></set></propertyupdate>"
        ))
    };
    let (status, text) = set("<colour xmlns=\"urn:x\" xml:lang=\"en\">red &amp; <b/></colour>");
    assert!(status == 207 && text.contains("200 OK"), "{text}");
    // One that cannot be set refuses all.
    let (_, text) = set("<colour xmlns=\"urn:x\">blue</colour><getetag/>");
    assert!(text.contains("424 Failed") && text.contains("403 Forbidden"), "{text}");
    let wanted = "<propfind xmlns=\"DAV:\"><prop><colour xmlns=\"urn:x\"/></prop></propfind>";
    let text = String::from_utf8(find("/data/many/link", "0", wanted).body).unwrap();
    assert!(text.contains("xml:lang=\"en\">red &amp; <b xmlns=\"urn:x\"/></colour>"), "{text}");
    let (_, text) = set(&format!("<colour xmlns=\"urn:x\">{}</colour>", "x".repeat(70_000)));
    assert!(text.contains("507 Insufficient Storage"), "{text}");
    let removed = "<propertyupdate xmlns=\"DAV:\"><remove><prop><colour xmlns=\"urn:x\"/></prop></remove></propertyupdate>";
    assert_eq!(change(removed).0, 207);
    let text = String::from_utf8(find("/data/many/link", "0", wanted).body).unwrap();
    assert!(text.contains("404 Not Found"), "{text}");
    assert_eq!(upload(&site, "/data/many/x", &credential(&site), &[]).status, 201);
}
