//! The end of a queued transfer is sent to a webhook, if the administrator allows its address.

use crate::federation::{Federation, Site};
use crate::queue::{detach, ended, refused};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a notice may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(60);

/// A small web server that answers with these, one after the other, the last one repeatedly; returns its requests.
fn serve(listener: TcpListener, answers: [&'static str; 2]) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let last = std::iter::repeat(answers[1]);
        for (stream, answer) in listener.incoming().zip(answers.into_iter().chain(last)) {
            if tell.send(take(stream.unwrap(), answer)).is_err() {
                return;
            }
        }
    });
    told
}

fn take(mut stream: TcpStream, answer: &str) -> String {
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !text.ends_with('}') {
        match stream.read(&mut part) {
            Ok(count @ 1..) => text.push_str(std::str::from_utf8(&part[..count]).unwrap()),
            _ => break,
        }
    }
    let _ = stream.write_all(answer.as_bytes());
    text
}

fn body(request: &str) -> Value {
    serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

/// A server's address, and titech allowed to send webhooks below `/hook`.
fn allowed(titech: &mut Site) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = titech.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("notify = [\"http://{address}/hook\"]\n{text}")).unwrap();
    titech.restart();
    let begun = Instant::now();
    while titech.json(&["transfers"]).0 != 0 {
        assert!(begun.elapsed() < WITHIN, "the queue does not open");
        std::thread::sleep(Duration::from_millis(20));
    }
    (listener, address)
}

#[test]
fn a_webhook_is_retried_until_accepted_even_after_a_restart() {
    let mut federation = Federation::two();
    let (listener, address) = allowed(&mut federation.titech);
    fs::write(federation.titech.root().join("f"), "content").unwrap();
    drop(listener);
    let url = format!("http://{address}/hook/a?b=c");
    let titech = &mut federation.titech;
    let id = detach(titech, &["--notify", &url, "--label", "x", &titech.place("f"), "kek:/data/f"]);
    assert_eq!(ended(titech, &id), 0);
    // No server listens yet, and the PoP is killed in the meantime.
    titech.restart();
    let busy = "HTTP/1.1 503 Busy\r\n\r\n";
    let told = serve(TcpListener::bind(address).unwrap(), [busy, "HTTP/1.1 200 OK\r\n\r\n"]);
    let asked: Vec<String> = (0..2).map(|_| told.recv_timeout(WITHIN).unwrap()).collect();
    assert!(asked[0].starts_with("POST /hook/a?b=c HTTP/1.1\r\n"), "{}", asked[0]);
    for asked in asked {
        let body = body(&asked);
        assert_eq!(
            (&body["id"], &body["state"], &body["label"]),
            (&id.as_str().into(), &"done".into(), &"x".into())
        );
        assert_eq!(
            (body["files"].as_u64(), body["bytes"].as_u64(), body["failures"].as_u64()),
            (Some(1), Some(7), Some(0))
        );
    }
    // It was accepted: it is not sent again.
    assert!(told.recv_timeout(Duration::from_secs(3)).is_err());
}

#[test]
fn webhooks_go_only_to_allowed_addresses() {
    let mut federation = Federation::two();
    let (listener, address) = allowed(&mut federation.titech);
    let titech = &federation.titech;
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    for url in [
        format!("http://{}/hook", other.local_addr().unwrap()),
        format!("http://{address}/other"),
        format!("http://{address}/hook/../other"),
        format!("https://{address}/hook"),
        "file:///etc/passwd".into(),
    ] {
        let code = refused(titech, &["cp", "--detach", "--notify", &url, &titech.place("f"), "kek:/data/f"]);
        assert_eq!(code, "RK-QUE-12", "{url}");
    }
    assert_eq!(
        refused(&federation.kek, &["cp", "--detach", "--notify", "https://h/", "kek:/data/f", "kek:/data/g"]),
        "RK-QUE-12"
    );
    // A server that sends elsewhere is asked again itself, and the other is not.
    let elsewhere = "HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\n\r\n";
    let told = serve(listener, [elsewhere, "HTTP/1.1 200 OK\r\n\r\n"]);
    let id =
        detach(titech, &["--notify", &format!("http://{address}/hook"), &titech.place("f"), "kek:/data/f"]);
    assert_eq!(ended(titech, &id), 3);
    for _ in 0..2 {
        let body = body(&told.recv_timeout(WITHIN).unwrap());
        assert_eq!((&body["state"], &body["code"]), (&"failed".into(), &"RK-STORE-1".into()));
    }
}
