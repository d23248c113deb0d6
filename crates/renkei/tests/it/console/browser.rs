//! A headless browser, controlled over a pipe (the DevTools protocol: JSON texts that end with NUL).
//!
//! `scripts/setup test` installs it. Where it is missing the tests that need it fail: the pages must be rendered.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long an answer may take; generous, because machines that run tests are busy.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Names of its program, the smallest first.
const NAMES: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/// A browser with one page open.
pub struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// Errors that it reported: failed scripts, violations of the page's policy.
    pub complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts one that accepts every certificate.
    pub fn start() -> Browser {
        let profile = tempfile::tempdir().unwrap();
        // It reads from descriptor 3 and writes to 4. Its sandbox needs more than a container gives, and all it shows
        // is the page under test.
        let script = "exec \"$0\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                      --ignore-certificate-errors --remote-debugging-pipe --user-data-dir=\"$1\" 3<&0 4>&1 2>/dev/null";
        let mut command = Command::new("sh");
        command.args(["-c", script, &program()]).arg(profile.path());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (told, messages) = channel();
        std::thread::spawn(move || {
            let texts = BufReader::new(output).split(0).map_while(Result::ok);
            texts
                .map_while(|text| serde_json::from_slice(&text).ok())
                .try_for_each(|message| told.send(message))
        });
        let (session, complaints) = (None, Vec::new());
        let mut browser =
            Browser { process, input, messages, next: 0, session, complaints, _profile: profile };
        let target = browser.tell("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.tell("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for area in ["Page", "Runtime", "Log"] {
            browser.tell(&format!("{area}.enable"), json!({}));
        }
        browser.tell("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        browser
    }

    /// Sends a command that must succeed and gives its result.
    pub fn tell(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.ask(method, parameters);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut command = json!({"id": self.next, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.input.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let message =
                self.messages.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.next {
                return message;
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let is_error = message["params"]["entry"]["level"] == "error";
        if message["method"] == "Runtime.exceptionThrown"
            || (message["method"] == "Log.entryAdded" && is_error)
        {
            self.complaints.push(message["params"].to_string());
        }
    }

    /// The value of an expression of the page's language; null if the page was left in between.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = &self.ask("Runtime.evaluate", parameters)["result"];
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true; a page that is being left has none.
    pub fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != json!(true) {
            if start.elapsed() >= PATIENCE {
                panic!("{expression} is not so: {}", self.value("document.documentElement?.outerHTML"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Opens a page and waits until it is there.
    pub fn open(&mut self, url: &str) {
        self.value("window.left = true");
        self.tell("Page.navigate", json!({"url": url}));
        self.wait_for("!window.left && location.href != 'about:blank' && document.readyState == 'complete'");
    }

    /// Shows pages as on a screen of this width.
    pub fn set_width(&mut self, width: u32) {
        let mobile = width < 600;
        let screen = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": mobile});
        self.tell("Emulation.setDeviceMetricsOverride", screen);
    }

    /// Sets the preferred colour scheme: `light` or `dark`.
    pub fn set_scheme(&mut self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.tell("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = || path.split(':').map(std::path::Path::new);
    let there = NAMES.iter().find(|name| folders().any(|folder| folder.join(name).is_file()));
    there.expect("no browser: `scripts/setup test` installs chromium-headless-shell").to_string()
}
