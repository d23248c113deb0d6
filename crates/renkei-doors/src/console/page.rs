//! The frame of all pages, and the pages for visitors without a session.

use super::html::Html;
use renkei_core::error::Error;
use renkei_core::path::SiteName;
use renkei_site::status::console::Visitor;
use std::fmt::Display;

/// The tab that a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    /// The overview.
    Overview,
    /// The storages, and the folders in them.
    Files,
    /// The list of transfers, and the page of one.
    Transfers,
    /// Unfinished copies.
    Unfinished,
    /// Drop folders.
    Rules,
    /// The list of volumes, and the page of one.
    Volumes,
    /// Other sites and the ways to them.
    Links,
    /// The sites that are trusted.
    Trust,
    /// The mapping of principals to accounts.
    Mapping,
    /// Certificates.
    Certificates,
    /// Background threads.
    Workers,
    /// Storages and their free space.
    Storages,
    /// No tab.
    None,
}

/// The tabs with their paths and names.
const TABS: [(Tab, &str, &str); 12] = [
    (Tab::Overview, "/console", "Overview"),
    (Tab::Files, "/console/files", "Files"),
    (Tab::Transfers, "/console/transfers", "Transfers"),
    (Tab::Unfinished, "/console/unfinished", "Unfinished"),
    (Tab::Rules, "/console/rules", "Drop folders"),
    (Tab::Volumes, "/console/volumes", "Volumes"),
    (Tab::Storages, "/console/storages", "Storages"),
    (Tab::Links, "/console/links", "Links"),
    (Tab::Trust, "/console/trust", "Trust"),
    (Tab::Mapping, "/console/mapping", "Mapping"),
    (Tab::Certificates, "/console/certificates", "Certificates"),
    (Tab::Workers, "/console/workers", "Workers"),
];

impl Tab {
    /// Whether the tab is shown to a visitor.
    fn is_for(self, visitor: &Visitor) -> bool {
        let is_of_administrator = matches!(self, Tab::Rules | Tab::Workers);
        !is_of_administrator || visitor.caller().is_administrator()
    }
}

/// A page being built.
pub(crate) struct Page {
    tab: Tab,
    title: String,
    content: Html,
    /// Seconds between two polls of the script.
    pause: u32,
}

impl Page {
    /// An empty page.
    pub(crate) fn new(tab: Tab, title: impl Display) -> Self {
        Page { tab, title: title.to_string(), content: Html::new(), pause: 1 }
    }

    /// Sets the polling interval: the content changes slowly, or is expensive.
    pub(crate) fn every(self, seconds: u32) -> Self {
        Page { pause: seconds, ..self }
    }

    /// Adds a live part with a heading, which the script replaces when it changed; `id` is unique on the page.
    pub(crate) fn part(mut self, id: &'static str, heading: &'static str, content: Html) -> Self {
        self.content
            .put("<section id=\"{}\" data-live aria-labelledby=\"{}-head\">", &[&id, &id])
            .put("<h2 id=\"{}-head\">{}</h2>", &[&id, &heading])
            .add(content)
            .put("</section>", &[]);
        self
    }

    /// Adds a static part.
    pub(crate) fn still(mut self, id: &'static str, heading: &'static str, content: Html) -> Self {
        self.content
            .put("<section id=\"{}\" aria-labelledby=\"{}-head\">", &[&id, &id])
            .put("<h2 id=\"{}-head\">{}</h2>", &[&id, &heading])
            .add(content)
            .put("</section>", &[]);
        self
    }

    /// Adds content that has sections of its own, or needs none.
    pub(crate) fn content(mut self, content: Html) -> Self {
        self.content.add(content);
        self
    }

    /// The whole page for a client without a session of the console.
    pub(crate) fn finish_outside(self, site: &SiteName) -> Html {
        let mut html = head(site, &self.title);
        html.put("<header><p class=\"site\"><b>renkei</b> <span>{}</span></p></header>", &[site])
            .put("<main id=\"main\"><h1>{}</h1>", &[&self.title])
            .add(self.content)
            .put("</main></body></html>", &[]);
        html
    }

    /// The whole page for a visitor.
    pub(crate) fn finish(self, site: &SiteName, visitor: &Visitor) -> Html {
        let mut html = head(site, &self.title);
        html.put("<header><p class=\"site\"><b>renkei</b> <span>{}</span></p>", &[site]);
        html.put("<nav class=\"tabs\" aria-label=\"Pages\"><ul>", &[]);
        for (tab, place, name) in TABS.into_iter().filter(|(tab, ..)| tab.is_for(visitor)) {
            let current = if tab == self.tab { "page" } else { "false" };
            html.put("<li><a href=\"{}\" aria-current=\"{}\">{}</a></li>", &[&place, &current, &name]);
        }
        html.put("</ul></nav><form class=\"who\" method=\"post\" action=\"/console/logout\">", &[])
            .add(token(visitor))
            .put("<span>{}</span><button>Log out</button></form></header>", &[&visitor.name()])
            .put("<main id=\"main\" data-pause=\"{}\"><h1>{}</h1>", &[&self.pause, &self.title])
            .add(self.content)
            .put("</main><footer><p id=\"state\" role=\"status\"></p></footer></body></html>", &[]);
        html
    }
}

/// The CSRF token, which proves that a form is from a page of the visitor's session.
pub(crate) fn token(visitor: &Visitor) -> Html {
    Html::of("<input type=\"hidden\" name=\"token\" value=\"{}\">", &[&visitor.form_token()])
}

fn head(site: &SiteName, title: &str) -> Html {
    Html::of(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{} - renkei {}</title>\
         <link rel=\"icon\" href=\"/console/icon.svg\"><link rel=\"stylesheet\" href=\"/console/style.css\">\
         <script src=\"/console/script.js\" defer></script></head><body>\
         <a class=\"skip\" href=\"#main\">Skip to content</a>",
        &[&title, site],
    )
}

/// A page for visitors without a session.
fn outside(site: &SiteName, title: &str, content: Html) -> Html {
    let mut html = head(site, title);
    html.put("<header><p class=\"site\"><b>renkei</b> <span>{}</span></p></header>", &[site])
        .put("<main id=\"main\" class=\"outside\"><h1>{}</h1>", &[&title])
        .add(content)
        .put("</main></body></html>", &[]);
    html
}

fn how_to_come(site: &SiteName) -> Html {
    Html::of("<p>Ask for a new link: <code>renkei console {}</code></p>", &[site])
}

/// The page without a session: what the console is, and how to log in.
pub(crate) fn closed(site: &SiteName) -> Html {
    let mut what = Html::of(
        "<p>This is the console of <b>{}</b>: a renkei PoP, which moves research data between sites. It shows transfers, \
         storages, volumes and what needs attention.</p><h2>Log in</h2><p>There is no password. Type this where you use \
         renkei, and open the link that it prints within five minutes:</p><p><code class=\"type\">renkei console {}</code></p>\
         <p>The administrator types it on the machine of the PoP, as root or as the account of the service, without the \
         name:</p><p><code class=\"type\">renkei console</code></p>",
        &[site, site],
    );
    what.put("<p><small>Who has no account yet asks the administrator of {}.</small></p>", &[site]);
    outside(site, "You are not logged in", what)
}

/// The page for a browser without a session that asks for files.
pub(crate) fn files_closed(site: &SiteName) -> Html {
    let why = Html::of(
        "<p>Files of <b>{}</b> are shown to users who are logged in. There is no password: type this where you use renkei, \
         and open the link that it prints within five minutes:</p><p><code class=\"type\">renkei console {}</code></p>\
         <p>A browser that came from another page does not show that it is logged in: <a href=\"\">try again</a>.</p>",
        &[site, site],
    );
    outside(site, "You are not logged in", why)
}

/// The page for the administrator, who has no files.
pub(crate) fn files_of_users() -> Html {
    Html::of(
        "<p>Files are opened as the account of a user, and the administrator of the PoP is none. Log in as one: \
         <code>renkei login</code>, then <code>renkei console SITE</code>.</p>",
        &[],
    )
}

/// The page for an unknown address.
pub(crate) fn nothing_here(site: &SiteName) -> Html {
    let why = Html::of(
        "<p>This is a renkei PoP. Its <a href=\"/console\">console</a> is at <code>/console</code>, for monitoring there \
         are <code>/healthz</code> and <code>/metrics</code>.</p>",
        &[],
    );
    outside(site, "There is no such page", why)
}

/// The link is used up or expired.
pub(crate) fn refused(site: &SiteName) -> Html {
    let mut why = Html::of(
        "<p>A link can be used once, within five minutes. This one was used, or is too old.</p>",
        &[],
    );
    why.add(how_to_come(site));
    outside(site, "This link cannot be used", why)
}

/// The form is not from a page of the session.
pub(crate) fn not_own_form(site: &SiteName) -> Html {
    let why = Html::of(
        "<p>It was not sent by a page of your session. Go <a href=\"/console\">back</a>, and try again.</p>",
        &[],
    );
    outside(site, "This form was refused", why)
}

/// The page of an action that failed.
pub(crate) fn not_done(error: &Error, tab: Tab, back: &'static str) -> Page {
    let mut why = super::failure::whole(error);
    why.put("<p><a href=\"{}\">Back</a></p>", &[&back]);
    Page::new(tab, "That was not done").still("why", "Why", why)
}

/// The page of an unknown item.
pub(crate) fn missing() -> Page {
    let why = Html::of(
        "<p>There is nothing of that name that you may see. The PoP remembers the newest transfers that ran since its start, and those of its queue.</p>",
        &[],
    );
    Page::new(Tab::None, "There is no such page").still("missing", "Why", why)
}

/// The page of a login link.
pub(crate) fn log_in(site: &SiteName, link: &str) -> Html {
    let form = Html::of(
        "<form method=\"post\" action=\"/console/login\" data-send><input type=\"hidden\" name=\"t\" value=\"{}\">\
         <button>Log in</button></form>",
        &[&link],
    );
    let mut page = Html::of("<p>Opens the console of <b>{}</b> in this browser for 12 hours.</p>", &[site]);
    page.add(form);
    outside(site, "Log in", page)
}
