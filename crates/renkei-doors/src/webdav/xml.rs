//! XML of WebDAV: the body of a request as a tree, and markup for responses.
//!
//! Bodies are UTF-8 with namespaces; document types, and so entities, are refused. The depth of a tree is bounded.

use super::error::invalid;
use quick_xml::XmlVersion;
use quick_xml::escape::{escape, resolve_predefined_entity, unescape};
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::reader::NsReader;
use renkei_core::error::Error;
use std::fmt::Write as _;

/// The media type of documents.
pub(super) const TYPE: &str = "application/xml; charset=utf-8";
/// The namespace of WebDAV.
pub(super) const DAV: &str = "DAV:";
/// The namespace of `xml:lang`.
const XML: &str = "http://www.w3.org/XML/1998/namespace";
/// Most elements inside one another.
const MAX_DEPTH: usize = 64;

/// A name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XmlName {
    pub(crate) namespace: String,
    pub(crate) local: String,
}

/// An element with all that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) name: XmlName,
    attributes: Vec<(XmlName, String)>,
    content: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Element(Element),
    Text(String),
}

impl XmlName {
    /// A name of WebDAV.
    pub(super) fn dav(local: &str) -> Self {
        XmlName { namespace: DAV.into(), local: local.into() }
    }

    /// Whether it is this name of WebDAV.
    pub(super) fn is_dav(&self, local: &str) -> bool {
        self.namespace == DAV && self.local == local
    }

    /// An empty element of this name.
    pub(super) fn empty(&self) -> String {
        format!("<{} xmlns=\"{}\"/>", self.local, escape(&self.namespace))
    }

    fn resolved(namespace: ResolveResult<'_>, local: &str) -> Result<Self, Error> {
        let namespace = match namespace {
            ResolveResult::Unbound => String::new(),
            ResolveResult::Bound(namespace) => unescape(namespace.0).map_err(invalid)?.into_owned(),
            ResolveResult::Unknown(prefix) => return Err(invalid(format!("unknown prefix {prefix}"))),
        };
        let is_start = |c: char| c.is_alphabetic() || c == '_';
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        match local.starts_with(is_start) && local.chars().all(is_part) {
            true => Ok(XmlName { namespace, local: local.into() }),
            false => Err(invalid(format!("{local:?} is no name"))),
        }
    }
}

impl Element {
    /// The root of a document.
    ///
    /// # Errors
    /// `UsageInvalid` if it is not well-formed.
    pub(crate) fn parse(document: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(document).map_err(invalid)?;
        let mut reader = NsReader::from_str(text.trim_start_matches('\u{feff}'));
        reader.config_mut().expand_empty_elements = true;
        let (mut open, mut root) = (Vec::<Element>::new(), None);
        loop {
            match reader.read_event().map_err(invalid)? {
                Event::Start(start) if open.len() < MAX_DEPTH && root.is_none() => {
                    open.push(Element::begin(&reader, &start)?);
                }
                Event::Start(_) => return Err(invalid("elements nest too deep, or there are two roots")),
                Event::End(_) => {
                    let element = open.pop().ok_or_else(|| invalid("an element ends that has not begun"))?;
                    match open.last_mut() {
                        Some(parent) => parent.content.push(Node::Element(element)),
                        None => root = Some(element),
                    }
                }
                Event::Text(text) => add_text(&mut open, &text.xml10_content())?,
                Event::CData(text) => add_text(&mut open, &text.xml10_content())?,
                Event::GeneralRef(reference) => add_text(&mut open, &character(&reference)?)?,
                Event::DocType(_) => return Err(invalid("a document type is not accepted")),
                Event::Eof => break,
                _ => {}
            }
        }
        root.filter(|_| open.is_empty()).ok_or_else(|| invalid("the document is not complete"))
    }

    fn begin(reader: &NsReader<&[u8]>, start: &BytesStart<'_>) -> Result<Self, Error> {
        let (namespace, local) = reader.resolver().resolve_element(start.name());
        let name = XmlName::resolved(namespace, local.as_ref())?;
        let mut attributes = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(invalid)?;
            if attribute.key.as_namespace_binding().is_none() {
                let (namespace, local) = reader.resolver().resolve_attribute(attribute.key);
                let value = attribute.normalized_value(XmlVersion::default()).map_err(invalid)?;
                attributes.push((XmlName::resolved(namespace, local.as_ref())?, value.into_owned()));
            }
        }
        Ok(Element { name, attributes, content: Vec::new() })
    }

    /// The elements in it.
    pub(crate) fn elements(&self) -> impl Iterator<Item = &Element> {
        self.content.iter().filter_map(|node| match node {
            Node::Element(element) => Some(element),
            Node::Text(_) => None,
        })
    }

    /// The element of this name of WebDAV in it.
    pub(super) fn child(&self, local: &str) -> Option<&Element> {
        self.elements().find(|element| element.name.is_dav(local))
    }

    /// The text in it, without that of elements.
    pub(crate) fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|node| match node {
            Node::Text(text) => Some(text.as_str()),
            Node::Element(_) => None,
        });
        texts.collect()
    }

    /// Its markup, which needs none of the namespaces around it.
    pub(super) fn markup(&self) -> String {
        let mut markup = format!("<{} xmlns=\"{}\"", self.name.local, escape(&self.name.namespace));
        for (number, (XmlName { namespace, local }, value)) in self.attributes.iter().enumerate() {
            let value = text(value);
            let written = match namespace.as_str() {
                "" => write!(markup, " {local}=\"{value}\""),
                XML => write!(markup, " xml:{local}=\"{value}\""),
                other => {
                    write!(markup, " a{number}:{local}=\"{value}\" xmlns:a{number}=\"{}\"", escape(other))
                }
            };
            written.expect("a string takes everything");
        }
        let content = self.inner();
        let end = if content.is_empty() { "/>".into() } else { format!(">{content}</{}>", self.name.local) };
        markup + &end
    }

    /// The markup of its content.
    pub(super) fn inner(&self) -> String {
        let parts = self.content.iter().map(|node| match node {
            Node::Element(element) => element.markup(),
            Node::Text(content) => text(content),
        });
        parts.collect()
    }
}

/// Text as content or as the value of an attribute; characters that XML does not have are replaced.
pub(crate) fn text(text: &str) -> String {
    escape(text.replace(is_unknown, "\u{fffd}")).into_owned()
}

/// Whether XML 1.0 has no such character (section 2.2).
fn is_unknown(c: char) -> bool {
    matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

fn add_text(open: &mut [Element], text: &str) -> Result<(), Error> {
    match open.last_mut() {
        Some(element) => element.content.push(Node::Text(text.into())),
        None if text.trim().is_empty() => {}
        None => return Err(invalid("text beside the root")),
    }
    Ok(())
}

/// The character that a reference stands for.
fn character(reference: &BytesRef<'_>) -> Result<String, Error> {
    match reference.resolve_char_ref().map_err(invalid)? {
        Some(character) => Ok(character.into()),
        None => {
            let found = resolve_predefined_entity(reference);
            found.map(str::to_owned).ok_or_else(|| invalid("an unknown entity"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn documents_keep_their_meaning_without_their_prefixes() {
        let text = r#"<?xml version="1.0"?><D:set xmlns:D="DAV:" xmlns:x="urn:x&amp;y">
            <x:a xml:lang="de" x:b="&lt;1&gt;" c='"'>&#x4f60; &amp; <![CDATA[<raw>]]><b/></x:a></D:set>"#;
        let root = Element::parse(text.as_bytes()).unwrap();
        assert!(root.name.is_dav("set") && root.child("a").is_none());
        let inner = root.elements().next().unwrap();
        assert_eq!(inner.name, XmlName { namespace: "urn:x&y".into(), local: "a".into() });
        let again = Element::parse(inner.markup().as_bytes()).unwrap();
        assert_eq!((again.inner(), &again.attributes), (inner.inner(), &inner.attributes));
        assert!(inner.inner().contains("你 &amp; &lt;raw&gt;<b xmlns=\"\"/>"), "{}", inner.inner());
    }

    #[test]
    fn documents_that_are_not_well_formed_or_too_deep_are_refused() {
        let deep = format!("{}{}", "<a>".repeat(65), "</a>".repeat(65));
        let bad = [
            "",
            "<a>",
            "<a></b>",
            "</a>",
            "<a/><b/>",
            "x<a/>",
            "<p:a/>",
            "<p:a xmlns:p=\"\"/>",
            "<a b=\"1\" b=\"2\"/>",
            "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
            "<a>&b;</a>",
            "<1/>",
            "<a\"/>",
            "\u{fffe}",
            &deep,
        ];
        for text in bad {
            assert!(Element::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Element::parse(b"<a>\xff</a>").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_read_or_refused(text in "[<>/a-c:=\"' &;!x\\[\\]-]{0,60}") {
            if let Ok(element) = Element::parse(text.as_bytes()) {
                prop_assert_eq!(Element::parse(element.markup().as_bytes()).unwrap().markup(), element.markup());
            }
        }
    }
}
