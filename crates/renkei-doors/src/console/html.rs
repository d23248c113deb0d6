//! HTML without injection: templates are constants, and values are escaped.

pub(crate) use renkei_core::units::counted;
use renkei_core::units::human;
use std::fmt::{self, Display, Write};

/// A piece of a page.
#[derive(Clone, Default)]
pub(crate) struct Html(String);

impl Html {
    /// An empty piece.
    pub(crate) fn new() -> Self {
        Html::default()
    }

    /// A template with its values, see [`Html::put`].
    pub(crate) fn of(template: &'static str, values: &[&dyn Display]) -> Self {
        let mut html = Html::new();
        html.put(template, values);
        html
    }

    /// Adds a template, in which each `{}` becomes the next value, escaped for text and for quoted attributes.
    pub(crate) fn put(&mut self, template: &'static str, values: &[&dyn Display]) -> &mut Self {
        debug_assert_eq!(template.matches("{}").count(), values.len(), "{template}");
        let mut pieces = template.split("{}");
        self.0.push_str(pieces.next().unwrap_or_default());
        for (value, piece) in values.iter().zip(pieces) {
            write!(Escaping(&mut self.0), "{value}").expect("a string takes everything");
            self.0.push_str(piece);
        }
        self
    }

    /// A sentence whose parts between two `\`` are shown as code.
    pub(crate) fn marked(sentence: &str) -> Self {
        let mut html = Html::new();
        for (index, piece) in sentence.split('`').enumerate() {
            match index % 2 {
                0 => html.put("{}", &[&piece]),
                _ => html.put("<code>{}</code>", &[&piece]),
            };
        }
        html
    }

    /// Adds a piece.
    pub(crate) fn add(&mut self, piece: Html) -> &mut Self {
        self.0.push_str(&piece.0);
        self
    }

    /// Whether nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The markup as text.
    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// Escapes the text written to it.
struct Escaping<'a>(&'a mut String);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

/// A table that a narrow screen shows as a list of cards.
pub(crate) struct Table {
    heads: &'static [&'static str],
    rows: Html,
}

impl Table {
    /// A table with these heads, which name the columns for screen readers too.
    pub(crate) fn new(heads: &'static [&'static str]) -> Self {
        Table { heads, rows: Html::new() }
    }

    /// Adds a row of as many cells as heads; the first is the row's name.
    pub(crate) fn row(&mut self, cells: Vec<Html>) {
        debug_assert_eq!(cells.len(), self.heads.len());
        self.rows.put("<tr role=\"row\">", &[]);
        for (index, (cell, head)) in cells.into_iter().zip(self.heads).enumerate() {
            match index {
                0 => {
                    self.rows.put("<th scope=\"row\" role=\"rowheader\" data-head=\"{}\">", &[head]).add(cell)
                }
                _ => self.rows.put("<td role=\"cell\" data-head=\"{}\">", &[head]).add(cell),
            };
            self.rows.put(if index == 0 { "</th>" } else { "</td>" }, &[]);
        }
        self.rows.put("</tr>", &[]);
    }

    /// The finished table, with its caption; `none` if it has no rows.
    pub(crate) fn finish(self, caption: &str, none: &str) -> Html {
        if self.rows.is_empty() {
            return Html::of("<p class=\"none\">{}</p>", &[&none]);
        }
        let mut html =
            Html::of("<table role=\"table\"><caption>{}</caption><thead><tr role=\"row\">", &[&caption]);
        for head in self.heads {
            html.put("<th scope=\"col\" role=\"columnheader\">{}</th>", &[head]);
        }
        html.put("</tr></thead><tbody>", &[]).add(self.rows).put("</tbody></table>", &[]);
        html
    }
}

/// A list of names with their values.
#[derive(Default)]
pub(crate) struct Facts(Html);

impl Facts {
    /// An empty list.
    pub(crate) fn new() -> Self {
        Facts::default()
    }

    /// Adds a fact in plain text.
    pub(crate) fn text(&mut self, name: &'static str, value: &dyn Display) -> &mut Self {
        self.0.put("<div><dt>{}</dt><dd><bdi>{}</bdi></dd></div>", &[&name, value]);
        self
    }

    /// Adds a fact.
    pub(crate) fn add(&mut self, name: &'static str, value: Html) -> &mut Self {
        self.0.put("<div><dt>{}</dt><dd>", &[&name]).add(value).put("</dd></div>", &[]);
        self
    }

    /// The finished list.
    pub(crate) fn finish(self) -> Html {
        let mut html = Html::of("<dl class=\"facts\">", &[]);
        html.add(self.0).put("</dl>", &[]);
        html
    }
}

/// Bytes, for people.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1024 { counted(bytes, "byte", "bytes") } else { human(bytes) }
}

/// A cell of plain text.
pub(crate) fn text(value: impl Display) -> Html {
    Html::of("<bdi>{}</bdi>", &[&value])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let html = Html::of("<a title=\"{}\">{}</a>", &[&"\"' onload='", &"<script>{}&"]);
        let text = "<a title=\"&quot;&#39; onload=&#39;\">&lt;script&gt;{}&amp;</a>";
        assert_eq!(html.into_text(), text);
    }

    #[test]
    fn commands_are_marked() {
        let html = Html::marked("see `a <b>`, then `c`").into_text();
        assert_eq!(html, "see <code>a &lt;b&gt;</code>, then <code>c</code>");
        assert_eq!((size(1), size(2), size(2048)), ("1 byte".into(), "2 bytes".into(), "2.0K".into()));
    }

    #[test]
    fn tables_name_their_cells() {
        let table = || Table::new(&["Name", "Size"]);
        assert!(table().finish("all", "nothing").into_text().contains("nothing"));
        let mut full = table();
        full.row(vec![Html::of("{}", &[&"a"]), Html::of("{}", &[&1])]);
        let text = full.finish("all", "nothing").into_text();
        assert!(text.contains("<td role=\"cell\" data-head=\"Size\">1</td>"), "{text}");
        assert!(text.contains("<caption>all</caption>") && text.contains("scope=\"row\""), "{text}");
    }
}
