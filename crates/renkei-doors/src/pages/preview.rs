//! The page of a file: what it is, and the first part of a text, or the picture.

use super::folder::{Frame, time};
use super::query::Query;
use crate::console::html::{Facts, Html, size};
use renkei_core::error::Error;
use renkei_core::path::RelPath;
use renkei_mover::files::workspace::Workspace;

/// Bytes of a text that are shown.
const SHOWN_BYTES: usize = 64 << 10;
/// Pictures that browsers show, by the ends of their names. None can have a script in it.
const PICTURES: [(&str, &str); 8] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("ico", "image/x-icon"),
];

/// The media type of a picture, by the end of its name.
pub(super) fn picture(name: &str) -> Option<&'static str> {
    let (_, end) = name.rsplit_once('.')?;
    PICTURES.iter().find(|(known, _)| end.eq_ignore_ascii_case(known)).map(|(_, kind)| *kind)
}

/// Makes the page.
///
/// # Errors
/// Those of the file.
pub(super) fn page(files: &Workspace, path: &RelPath, query: &Query, frame: &Frame) -> Result<Html, Error> {
    let reader = files.open(path)?;
    let entry = &reader.item().entry;
    let mut facts = Facts::new();
    facts.text("Size", &size(entry.size())).add("Changed", time(entry.meta.mtime));
    if !frame.is_link {
        facts.text("Owner", &entry.meta.owner).text("Mode", &format!("{:04o}", entry.meta.mode));
    }
    let mut content = Html::of("<link rel=\"stylesheet\" href=\"/console/files.css\">", &[]);
    content.add(frame.crumbs(query, 0)).add(frame.note.clone());
    content.put("<section aria-label=\"About the file\">", &[]).add(facts.finish());
    content.put(
        "<p class=\"acts\"><a class=\"button strong\" href=\"{}\" download>Download</a></p></section>",
        &[&query.word("download")],
    );
    if frame.may_preview {
        let mut block = vec![0; SHOWN_BYTES];
        let count = reader.read_at(&mut block, 0)?;
        content.add(shown(&block[..count], entry.size(), query, &frame.name()));
    }
    content.put("<script src=\"/console/files.js\" defer></script>", &[]);
    Ok(frame.finish(content))
}

fn shown(first: &[u8], bytes: u64, query: &Query, name: &str) -> Html {
    let mut html = Html::of("<section aria-label=\"Content\">", &[]);
    match (picture(name), text(first)) {
        (Some(_), _) => {
            html.put("<img class=\"picture\" src=\"{}\" alt=\"{}\">", &[&query.word("view"), &name])
        }
        (None, _) if first.is_empty() => html.put("<p class=\"none\">The file is empty.</p>", &[]),
        (None, Some(text)) => html.put("<pre tabindex=\"0\">{}</pre>", &[&text]),
        (None, None) => {
            html.put("<p class=\"none\">No preview: it is neither a text nor a picture.</p>", &[])
        }
    };
    if picture(name).is_none() && bytes > first.len() as u64 && text(first).is_some() {
        html.put("<p class=\"none\">The first {} of {} bytes.</p>", &[&first.len(), &bytes]);
    }
    html.put("</section>", &[]);
    html
}

/// Content as text, if it is one; a character that is cut at its end is left out.
fn text(content: &[u8]) -> Option<&str> {
    let whole = match std::str::from_utf8(content) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&content[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let is_binary = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\x0c' | '\x1b');
    (!whole.contains(is_binary)).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_pictures_are_told_apart() {
        assert_eq!(text("run 7\tä".as_bytes()), Some("run 7\tä"));
        assert_eq!(text(&"ä".as_bytes()[..1]), Some(""));
        assert_eq!((text(b"\x7fELF\x02\x01"), text(b"a\xffb"), text(b"a\0")), (None, None, None));
        assert_eq!((picture("a.PNG"), picture("a.svg"), picture("png")), (Some("image/png"), None, None));
        assert_eq!(picture("a.html"), None);
    }

    #[test]
    fn text_in_a_preview_is_escaped() {
        let page = shown(b"<script>alert(1)</script>", 99, &Query::default(), "x.html").into_text();
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script>alert"), "{page}");
        assert!(page.contains("The first 25 of 99 bytes"), "{page}");
    }
}
