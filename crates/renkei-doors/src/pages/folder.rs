//! The page of a directory.

use super::listing::{self, Kind, Listed, PAGE, Row};
use super::query::{Query, Sort, escaped};
use crate::console::html::{Html, counted, size};
use crate::console::page::{Page, Tab};
use crate::webdav::request::system_time;
use renkei_core::entry::FileTime;
use renkei_core::error::Error;
use renkei_core::path::{Place, RelPath, SiteName, printable};
use renkei_core::units::human;
use renkei_mover::files::workspace::Workspace;
use renkei_net::identity::certificate::utc;
use renkei_site::status::console::Visitor;

/// The surroundings of a page: for whom it is, and where it is.
pub(super) struct Frame {
    pub(super) site: SiteName,
    pub(super) visitor: Option<Visitor>,
    pub(super) place: Place,
    /// The number of names in the path of the topmost directory that the page leads to.
    pub(super) top: usize,
    /// Whether the page offers changes.
    pub(super) may_change: bool,
    /// Whether the page is for anybody who has a link.
    pub(super) is_link: bool,
    /// Whether content is shown in pages.
    pub(super) may_preview: bool,
    /// What is said above the files.
    pub(super) note: Html,
}

impl Frame {
    /// The name of the file or directory, for people.
    pub(super) fn name(&self) -> String {
        self.place.path.name().map_or_else(|| self.place.storage.clone(), printable)
    }

    /// The page around some content.
    pub(super) fn finish(&self, content: Html) -> Html {
        let page = Page::new(Tab::Files, self.name()).content(content);
        match &self.visitor {
            Some(visitor) => page.finish(&self.site, visitor),
            None => page.finish_outside(&self.site),
        }
    }

    /// The way from the top to the place; links are relative to a directory that lies `below` the last one.
    pub(super) fn crumbs(&self, query: &Query, below: usize) -> Html {
        let names: Vec<&[u8]> = self.place.path.as_bytes().split(|byte| *byte == b'/').collect();
        let names = names.into_iter().filter(|name| !name.is_empty());
        let all: Vec<String> = [self.place.storage.clone()].into_iter().chain(names.map(printable)).collect();
        let mut html = Html::of("<nav class=\"crumbs\" aria-label=\"Folders\"><ol>", &[]);
        if self.visitor.is_some() {
            html.put("<li><a href=\"/console/files\">Files</a></li>", &[]);
        }
        let (last, carried) = (all.len() - 1, query.word(""));
        for (depth, name) in all.iter().enumerate().skip(self.top) {
            match last - depth {
                0 => html.put("<li aria-current=\"page\"><bdi>{}</bdi></li>", &[name]),
                up => {
                    let up = "../".repeat(up - 1 + below);
                    let up = if up.is_empty() { "./".to_owned() } else { up };
                    html.put("<li><a href=\"{}{}\"><bdi>{}</bdi></a></li>", &[&up, &carried, name])
                }
            };
        }
        html.put("</ol></nav>", &[]);
        html
    }
}

/// Makes the page.
///
/// # Errors
/// Those of the directory.
pub(super) fn page(files: &Workspace, dir: &RelPath, query: &Query, frame: &Frame) -> Result<Html, Error> {
    let listed = listing::read(files, dir, query)?;
    let mut content = Html::of("<link rel=\"stylesheet\" href=\"/console/files.css\">", &[]);
    content.add(frame.crumbs(query, 1)).add(frame.note.clone()).add(tools(query, frame));
    let token = frame.visitor.as_ref().map(Visitor::form_token).unwrap_or_default();
    content.put(
        "<form id=\"files\" method=\"post\" action=\"{}\" data-token=\"{}\" data-carried=\"{}\" data-change=\"{}\">",
        &[&query.word("archive"), &token, &query.word(""), &frame.may_change],
    );
    content.add(summary(&listed, query)).add(chosen(frame)).add(table(&listed, query));
    content.put("</form>", &[]).add(paging(&listed, query));
    if frame.may_change {
        content.add(dialogs());
    }
    content.put("<script src=\"/console/files.js\" defer></script>", &[]);
    Ok(frame.finish(content))
}

/// Search, the archive of all, and the buttons of the script.
fn tools(query: &Query, frame: &Frame) -> Html {
    let mut html =
        Html::of("<div class=\"tools\"><form class=\"search\" role=\"search\" method=\"get\">", &[]);
    html.put(
        "<input type=\"search\" name=\"q\" value=\"{}\" placeholder=\"Search in this folder\" aria-label=\"Search in this folder\">",
        &[&query.search],
    );
    html.put("<input type=\"hidden\" name=\"sort\" value=\"{}\">", &[&query.sort.name()]);
    let order = if query.descending { "down" } else { "up" };
    html.put("<input type=\"hidden\" name=\"order\" value=\"{}\">", &[&order]);
    if let Some(token) = query.token() {
        html.put("<input type=\"hidden\" name=\"authz\" value=\"{}\">", &[&token]);
    }
    html.put("<button>Search</button></form><span class=\"acts\">", &[]);
    if frame.may_change {
        html.put(
            "<button type=\"button\" data-act=\"upload\" hidden>Upload files</button>\
             <button type=\"button\" data-act=\"upload-folder\" hidden>Upload a folder</button>\
             <button type=\"button\" data-act=\"make\" hidden>New folder</button>",
            &[],
        );
    }
    html.put(
        "<a class=\"button\" href=\"{}\" download>Download all</a></span></div>",
        &[&query.word("archive")],
    );
    html
}

/// What is there, in a sentence.
fn summary(listed: &Listed, query: &Query) -> Html {
    let folders = counted(listed.folders as u64, "folder", "folders");
    let others = counted((listed.matching - listed.folders) as u64, "file", "files");
    let mut html = Html::of("<p class=\"sum\">{}, {}, {}", &[&folders, &others, &size(listed.bytes)]);
    if !query.search.is_empty() {
        let all = Query { search: String::new(), page: 0, ..query.clone() }.link();
        html.put(" of {} in the folder match <b><bdi>{}</bdi></b>. ", &[&listed.total, &query.search]);
        html.put("<a href=\"{}\">Show all</a>", &[&all]);
    }
    html.put("</p>", &[]);
    html
}

/// The bar for chosen entries.
fn chosen(frame: &Frame) -> Html {
    let mut html = Html::of(
        "<div class=\"chosen\"><span id=\"count\" role=\"status\"></span><button>Download the chosen</button>",
        &[],
    );
    if frame.may_change {
        html.put(
            "<button type=\"button\" data-act=\"rename\" hidden>Rename</button>\
             <button type=\"button\" data-act=\"delete\" class=\"danger\" hidden>Delete</button>",
            &[],
        );
    }
    html.put("</div><ul id=\"uploads\" class=\"plain-list\" aria-label=\"Uploads\" hidden></ul>", &[]);
    html
}

fn table(listed: &Listed, query: &Query) -> Html {
    if listed.rows.is_empty() {
        let why = match (query.search.is_empty(), listed.total) {
            (true, 0) => "This folder is empty.",
            (true, _) => "There is nothing on this page.",
            (false, _) => "No name in this folder matches.",
        };
        return Html::of("<p class=\"none\">{}</p>", &[&why]);
    }
    let mut html = Html::of(
        "<table role=\"table\" class=\"files\"><caption>Files</caption><thead><tr role=\"row\">\
         <th scope=\"col\" role=\"columnheader\" class=\"pick\"><input type=\"checkbox\" id=\"all\" aria-label=\"Choose all on this page\" hidden></th>",
        &[],
    );
    for (sort, title) in [(Sort::Name, "Name"), (Sort::Size, "Size"), (Sort::Time, "Changed")] {
        html.add(head(sort, title, query));
    }
    html.put("</tr></thead><tbody>", &[]);
    for row in &listed.rows {
        html.add(cells(row, query));
    }
    html.put("</tbody></table>", &[]);
    html
}

/// The head of a column, which sorts by it; once more, the other way round.
fn head(sort: Sort, title: &'static str, query: &Query) -> Html {
    let is_own = query.sort == sort;
    let descending = if is_own { !query.descending } else { sort != Sort::Name };
    let link = Query { sort, descending, page: 0, ..query.clone() }.link();
    let (state, arrow) = match (is_own, query.descending) {
        (false, _) => ("none", ""),
        (true, false) => ("ascending", " ▲"),
        (true, true) => ("descending", " ▼"),
    };
    Html::of(
        "<th scope=\"col\" role=\"columnheader\" class=\"{}\" aria-sort=\"{}\"><a href=\"{}\">{}<span aria-hidden=\"true\">{}</span></a></th>",
        &[&sort.name(), &state, &link, &title, &arrow],
    )
}

fn cells(row: &Row, query: &Query) -> Html {
    let (name, code) = (printable(&row.name), escaped(&row.name));
    let mut html = Html::of(
        "<tr role=\"row\"><td role=\"cell\" class=\"pick\"><input type=\"checkbox\" name=\"n\" value=\"{}\" aria-label=\"Choose {}\"></td>",
        &[&code, &name],
    );
    html.put("<th scope=\"row\" role=\"rowheader\" class=\"name\">", &[]);
    match row.kind {
        Kind::Folder => html.put(
            "<a class=\"folder\" href=\"{}/{}\"><bdi>{}</bdi></a></th><td role=\"cell\" class=\"size\"></td>",
            &[&code, &query.word(""), &name],
        ),
        Kind::File => html
            .put("<a class=\"file\" href=\"{}{}\"><bdi>{}</bdi></a></th>", &[&code, &query.word("show"), &name])
            .put("<td role=\"cell\" class=\"size\" title=\"{} bytes\">{}</td>", &[&row.size, &human(row.size)]),
        Kind::Link => html.put("<span class=\"file\"><bdi>{}</bdi> <small>a link that leads nowhere</small></span></th><td role=\"cell\"></td>", &[&name]),
        Kind::Other => html.put("<span class=\"file\"><bdi>{}</bdi> <small>no file</small></span></th><td role=\"cell\"></td>", &[&name]),
    };
    html.put("<td role=\"cell\" class=\"time\">", &[]).add(time(row.mtime)).put("</td></tr>", &[]);
    html
}

/// A time, to the minute; the script shows it in the zone of the reader.
pub(super) fn time(at: FileTime) -> Html {
    let text = utc(system_time(at));
    let machine = text.replacen(' ', "T", 1).replace(" UTC", "Z");
    let short = text.get(..16).unwrap_or(&text);
    Html::of("<time datetime=\"{}\" title=\"{}\">{}</time>", &[&machine, &text, &short])
}

fn paging(listed: &Listed, query: &Query) -> Html {
    let shown = listed.rows.len();
    let is_last = listed.before + shown >= listed.matching;
    if listed.before == 0 && is_last {
        return Html::new();
    }
    let mut html = Html::of("<nav class=\"paging\" aria-label=\"Pages of this folder\">", &[]);
    let to = |page: usize| Query { page, ..query.clone() }.link();
    if query.page > 0 {
        html.put("<a rel=\"prev\" href=\"{}\">Previous {}</a>", &[&to(query.page - 1), &PAGE]);
    }
    let first = (listed.before + 1).min(listed.matching);
    html.put("<span>{} to {} of {}</span>", &[&first, &(listed.before + shown), &listed.matching]);
    if !is_last {
        html.put("<a rel=\"next\" href=\"{}\">Next {}</a>", &[&to(query.page + 1), &PAGE]);
    }
    html.put("</nav>", &[]);
    html
}

/// The questions that the script asks.
fn dialogs() -> Html {
    Html::of(
        "<input type=\"file\" id=\"pick-files\" multiple hidden aria-label=\"Files to upload\">\
         <input type=\"file\" id=\"pick-folder\" webkitdirectory hidden aria-label=\"Folder to upload\">\
         <dialog id=\"ask\" aria-labelledby=\"ask-title\"><form method=\"dialog\"><h2 id=\"ask-title\">Question</h2>\
         <p id=\"ask-text\"></p><input id=\"ask-name\" aria-label=\"Name\" maxlength=\"255\" autocomplete=\"off\" spellcheck=\"false\">\
         <p class=\"acts\"><button value=\"yes\" id=\"ask-yes\">OK</button><button value=\"\" formnovalidate>Cancel</button></p></form></dialog>\
         <div id=\"drop\" hidden><p>Drop files and folders here to upload them</p></div>",
        &[],
    )
}
