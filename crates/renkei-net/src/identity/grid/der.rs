//! A reader of DER, for the structures that the library for certificates does not know.
//!
//! Lengths are definite and tags one byte, as in all structures of the grid. Nothing is allocated.

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// The tag `[number]` of a constructed element.
pub(super) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// The whole element with its head.
    pub(super) raw: &'a [u8],
}

/// Elements that follow one another.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next element; none at the end and at one that is malformed.
    pub(super) fn any(&mut self) -> Option<Element<'a>> {
        let (&[tag, first], mut rest) = self.0.split_first_chunk::<2>()?;
        // Tags of several bytes are not used.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let length = match first {
            0..=0x7f => usize::from(first),
            0x81..=0x84 => {
                let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = after;
                bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
            }
            _ => return None,
        };
        let (content, after) = rest.split_at_checked(length)?;
        let raw = &self.0[..self.0.len() - after.len()];
        self.0 = after;
        Some(Element { tag, content, raw })
    }

    /// The next element, if it has this tag.
    pub(super) fn take(&mut self, tag: u8) -> Option<Element<'a>> {
        if self.0.first() != Some(&tag) {
            return None;
        }
        self.any()
    }

    /// The content of the next element, if it has this tag.
    pub(super) fn enter(&mut self, tag: u8) -> Option<Reader<'a>> {
        self.take(tag).map(|element| Reader(element.content))
    }

    /// The remaining elements; none if one is malformed or there are more than `most`.
    pub(super) fn all(mut self, most: usize) -> Option<Vec<Element<'a>>> {
        let mut all = Vec::new();
        while !self.0.is_empty() {
            let element = self.any()?;
            if all.len() == most {
                return None;
            }
            all.push(element);
        }
        Some(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The content of a sequence that fills `bytes`.
pub(super) fn sequence(bytes: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader(bytes);
    let content = reader.enter(SEQUENCE)?;
    reader.is_empty().then_some(content)
}

/// A non-negative number of at most four bytes.
pub(super) fn small(content: &[u8]) -> Option<u32> {
    let is_legal = (1..=4).contains(&content.len()) && content[0] < 0x80;
    is_legal.then(|| content.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// A number without leading zero bytes, as serials are compared.
pub(super) fn trimmed(content: &[u8]) -> &[u8] {
    &content[content.iter().position(|byte| *byte != 0).unwrap_or(content.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_and_malformed_ones_are_not() {
        let mut reader = Reader(&[0x30, 0x81, 0x03, 2, 1, 5, 4, 0]);
        let mut content = reader.enter(SEQUENCE).unwrap();
        assert_eq!(small(content.take(INTEGER).unwrap().content), Some(5));
        assert!(content.is_empty() && content.any().is_none());
        assert_eq!(reader.any().unwrap().raw, [4, 0]);
        for bad in [&[0x30][..], &[0x30, 1], &[0x30, 0x80, 0, 0], &[0x30, 0x85, 0, 0, 0, 0, 0], &[0x3f, 0]] {
            assert!(Reader(bad).any().is_none(), "{bad:?}");
        }
        assert!(Reader(&[4, 0, 4, 0]).all(1).is_none() && sequence(&[0x30, 0, 0]).is_none());
        assert!(small(&[]).is_none() && small(&[0xff]).is_none() && small(&[0; 5]).is_none());
        assert_eq!(trimmed(&[0, 0, 7]), [7]);
    }
}
