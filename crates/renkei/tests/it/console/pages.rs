//! The console as a browser shows it: that it works without a mouse and without a script, lives, fits a telephone and
//! can be read in light and dark.

use crate::console::browser::{Browser, PATIENCE};
use crate::console::{PAGES, Running};
use crate::federation::Federation;
use serde_json::{Value, json};
use std::time::Instant;

/// Opens the link of `renkei console` as a person does.
fn log_in(federation: &Federation) -> Browser {
    let mut browser = Browser::start();
    browser.open(federation.kek.ok(&["console"]).trim());
    browser.wait_for("location.pathname == '/console' && document.readyState == 'complete'");
    browser
}

fn url(federation: &Federation, page: &str) -> String {
    format!("https://{}/console{page}", federation.kek.address)
}

#[test]
fn a_link_opens_the_console_and_the_page_updates() {
    let federation = Federation::two();
    let mut browser = log_in(&federation);
    browser.wait_for("document.body.innerText.includes('No transfer runs.')");
    let _running = Running::start(&federation.titech, &federation.kek, "run<b>42");
    browser.wait_for("document.querySelector('#running bdi.path')?.innerText == '/data/run<b>42'");
    let moved = "document.querySelector('#running .numbers').innerText";
    let before = browser.value(moved);
    browser.wait_for(&format!("{moved} != {before}"));
    // The focused element keeps the focus while the parts around it are replaced.
    browser.value("document.querySelector('#running a').focus()");
    let before = browser.value(moved);
    browser.wait_for(&format!("{moved} != {before} && document.activeElement.closest('#running') != null"));
    browser.value("document.activeElement.click()");
    browser.wait_for("document.querySelector('h1')?.innerText.startsWith('Transfer ')");
    browser.wait_for("document.querySelector('.story')?.innerText.includes('data moves')");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn pages_fit_their_screen_and_can_be_read() {
    let federation = Federation::two();
    let Federation { kek, titech, .. } = &federation;
    let _running = Running::start(titech, kek, &"long-name-".repeat(12));
    kek.ok(&["volume", "create", "x", "--storage", "data"]);
    kek.ok(&["rule", "add", "long-rule-", &kek.place("drop"), &titech.place(&"long-name-".repeat(12))]);
    let gone = kek.place(&"no-such-".repeat(20));
    kek.ok(&["cp", "--detach", "--label", &"label-".repeat(12), &gone, &titech.place("y")]);
    let mut browser = log_in(&federation);
    browser.wait_for("document.querySelector('#running a') != null");
    let one = browser.value("document.querySelector('#running a').getAttribute('href')");
    let one = one.as_str().unwrap().strip_prefix("/console").unwrap();
    for page in PAGES.into_iter().filter(|page| *page != "/transfers/x-1").chain([one]) {
        browser.open(&url(&federation, page));
        for (width, scheme) in
            [(1280, "light"), (1280, "dark"), (390, "light"), (360, "light"), (360, "dark")]
        {
            browser.set_width(width);
            browser.set_scheme(scheme);
            let wide = browser.value("document.documentElement.scrollWidth");
            assert!(wide.as_u64().unwrap() <= u64::from(width), "{page} is {wide} wide on {width}");
            assert_eq!(browser.value(PALE), json!([]), "{page} {width} {scheme}: cannot be read well");
        }
        assert_eq!(browser.value(NAMELESS), json!([]), "{page}: elements without an accessible name");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Texts whose contrast is less than the 4.5 to 1 of WCAG 2, section 1.4.3, each with its element.
pub(super) const PALE: &str = "(() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = (color) => {
        const [r, g, b] = parts(color).map(linear);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if ((parts(color)[3] ?? 1) > 0.5) return color;
        }
        return 'rgb(255, 255, 255)';
    };
    const texts = [...document.querySelectorAll('main *, header *')].filter((element) =>
        !element.closest('svg') && [...element.childNodes].some((node) => node.nodeType == 3 && node.data.trim()));
    return texts.map((element) => {
        const [a, b] = [light(getComputedStyle(element).color), light(ground(element))];
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 80)];
    }).filter(([contrast]) => contrast < 4.5);
})()";

/// Controls, drawings and regions without a name, and headings that skip a level.
pub(super) const NAMELESS: &str = "(() => {
    const named = (element) => element.innerText?.trim() || element.labels?.[0]?.innerText.trim() || element.getAttribute('aria-label')
        || element.getAttribute('aria-labelledby') || element.getAttribute('aria-hidden');
    const all = [...document.querySelectorAll('a, button, svg, section, nav, input:not([type=hidden]), select')].filter((element) => !named(element));
    const levels = [...document.querySelectorAll('h1, h2, h3')].map((heading) => Number(heading.tagName[1]));
    const skipped = levels.filter((level, at) => level > (levels[at - 1] ?? 0) + 1);
    const one = document.querySelectorAll('main').length == 1 && document.documentElement.lang == 'en';
    return [...all.map((element) => element.outerHTML.slice(0, 80)), ...skipped, ...(one ? [] : ['landmarks'])];
})()";

#[test]
fn the_console_works_without_scripts() {
    let federation = Federation::two();
    let mut browser = Browser::start();
    browser.tell("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(federation.kek.ok(&["console"]).trim());
    // The first focus is on the way past the pages, the next on the button.
    press(&mut browser, "Tab", "");
    press(&mut browser, "Tab", "");
    press(&mut browser, "Enter", "\r");
    browser.wait_for("document.querySelector('h1')?.innerText == 'PoP of kek'");
    let _running = Running::start(&federation.titech, &federation.kek, "run42");
    let start = Instant::now();
    while browser.value("document.body.innerText.includes('/data/run42')") != json!(true) {
        assert!(start.elapsed() < PATIENCE, "the transfer is not shown");
        browser.open(&url(&federation, "/transfers"));
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

fn press(browser: &mut Browser, key: &str, text: &str) -> Value {
    let code = if key == "Tab" { 9 } else { 13 };
    let event = |kind: &str| json!({"type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code});
    browser.tell("Input.dispatchKeyEvent", event("keyDown"));
    browser.tell("Input.dispatchKeyEvent", event("keyUp"))
}

#[test]
fn an_ended_session_is_shown_at_once() {
    let federation = Federation::two();
    let mut browser = log_in(&federation);
    browser.wait_for("document.querySelector('h1')?.innerText == 'PoP of kek'");
    // In another tab, as it were.
    let out = "fetch('/console/logout', {method: 'POST', body: new URLSearchParams({token: \
               document.querySelector('[name=token]').value})}).then((answer) => answer.status)";
    assert_eq!(browser.value(out), json!(200));
    browser.wait_for("document.querySelector('h1')?.innerText == 'You are not logged in'");
}
