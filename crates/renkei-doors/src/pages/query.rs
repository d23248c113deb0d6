//! The query of a page: what of a directory is shown, and how.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// What stands for itself in a URL (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The last page, so that the memory for one is bounded.
const LAST_PAGE: usize = 4999;

/// The column by which entries are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Names, without regard to capitals.
    #[default]
    Name,
    /// Sizes.
    Size,
    /// Times of modification.
    Time,
}

impl Sort {
    /// The name in queries.
    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Size => "size",
            Sort::Time => "time",
        }
    }

    fn parse(text: &str) -> Self {
        [Sort::Size, Sort::Time].into_iter().find(|sort| sort.name() == text).unwrap_or_default()
    }
}

/// The query of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) sort: Sort,
    pub(super) descending: bool,
    /// The text that names are searched for; empty for all.
    pub(super) search: String,
    /// The page, from 0 on.
    pub(super) page: usize,
    /// Whether content is wanted as an archive.
    pub(super) archive: bool,
    /// Whether a picture is to be shown in place.
    pub(super) view: bool,
    /// Whether a preview is wanted.
    pub(super) show: bool,
    /// Whether content is to be saved.
    pub(super) download: bool,
    /// Names that are chosen; none for all.
    pub(super) names: Vec<Vec<u8>>,
    /// The token in the URL, as it was there, which goes with each link of the page; empty for none.
    pub(super) carried: String,
}

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let mut query = Query::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(raw);
            let shown = || String::from_utf8_lossy(&value).into_owned();
            match name {
                "sort" => query.sort = Sort::parse(&shown()),
                "order" => query.descending = value == b"down",
                "q" => query.search = shown().chars().take(255).collect(),
                "page" => query.page = shown().parse().unwrap_or(0).min(LAST_PAGE),
                "archive" => query.archive = true,
                "view" => query.view = true,
                "show" => query.show = true,
                "download" => query.download = true,
                // The form escapes what the page escaped.
                "n" => query.names.push(percent_decode(&value).collect()),
                "authz" => query.carried = format!("authz={}", percent_encode(&value, ESCAPED)),
                _ => {}
            }
        }
        query
    }

    /// The query of a link to the same directory.
    pub(super) fn link(&self) -> String {
        let mut parts = Vec::new();
        if (self.sort, self.descending) != (Sort::Name, false) {
            let order = if self.descending { "down" } else { "up" };
            parts.push(format!("sort={}&order={order}", self.sort.name()));
        }
        if !self.search.is_empty() {
            parts.push(format!("q={}", escaped(self.search.as_bytes())));
        }
        if self.page > 0 {
            parts.push(format!("page={}", self.page));
        }
        parts.extend(Some(self.carried.clone()).filter(|carried| !carried.is_empty()));
        format!("?{}", parts.join("&"))
    }

    /// The token in the URL.
    pub(super) fn token(&self) -> Option<String> {
        let text = self.carried.strip_prefix("authz=")?;
        Some(String::from_utf8_lossy(&decode(text)).into_owned())
    }

    /// The query of a link to something else, with one more word.
    pub(super) fn word(&self, word: &str) -> String {
        let all = [word, &self.carried];
        let all: Vec<&str> = all.into_iter().filter(|part| !part.is_empty()).collect();
        if all.is_empty() { String::new() } else { format!("?{}", all.join("&")) }
    }
}

fn decode(raw: &str) -> Vec<u8> {
    percent_decode(raw.replace('+', " ").as_bytes()).collect()
}

/// Bytes as one segment of a URL.
pub(super) fn escaped(bytes: &[u8]) -> String {
    percent_encode(bytes, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_and_written() {
        let query =
            Query::parse("sort=size&order=down&q=a%20%3Cb+c&page=3&authz=to.k%2Ben&n=a%2525&n=%25ff&x");
        assert_eq!((query.sort, query.descending, query.page), (Sort::Size, true, 3));
        assert_eq!((query.search.as_str(), query.carried.as_str()), ("a <b c", "authz=to.k%2Ben"));
        assert_eq!(query.names, [b"a%".to_vec(), b"\xff".to_vec()]);
        assert_eq!(query.link(), "?sort=size&order=down&q=a%20%3Cb%20c&page=3&authz=to.k%2Ben");
        assert_eq!(
            (query.word("show"), query.word("")),
            ("?show&authz=to.k%2Ben".into(), "?authz=to.k%2Ben".into())
        );
        assert_eq!(Query::parse("page=99999999").page, LAST_PAGE);
        assert_eq!((Query::default().link(), Query::default().word("")), ("?".into(), String::new()));
    }
}
