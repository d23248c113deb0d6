//! The names in one directory, in the order of keys: that of bytes, where the name of a directory ends with a slash.
//!
//! A table is made from names in any order and has all of them from a place on, or as many of the first of them as its bound
//! in bytes takes: the rest is behind its last. While it is made it takes up to twice its bound. Names and types are all that
//! it has, so that a directory of any width is ordered without a look at its entries.

/// Most bytes of a key in a table; no file system has names of that length.
const MAX_KEY_BYTES: usize = u16::MAX as usize;

/// The type of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A FIFO, socket or device.
    Special,
}

/// The part of a directory that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesFrom {
    /// The first key.
    pub at_least: Vec<u8>,
    /// The beginning of all keys.
    pub prefix: Vec<u8>,
}

impl NamesFrom {
    /// All names whose keys are behind one.
    pub fn behind(key: &[u8]) -> Self {
        NamesFrom { at_least: next_key(key), prefix: Vec::new() }
    }

    /// What no wanted key is before.
    pub fn begin(&self) -> &[u8] {
        self.at_least.as_slice().max(&self.prefix)
    }
}

/// The key right behind another: names have no NUL.
pub fn next_key(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

/// A key in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    begin: u32,
    len: u16,
    is_link: bool,
}

/// Ordered names of a directory; special files are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTable {
    bytes: Vec<u8>,
    rows: Vec<Row>,
    from: NamesFrom,
    is_cut: bool,
    has_entries: bool,
    has_links: bool,
}

impl NameTable {
    /// Number of names in it.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no names are in it.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of memory that it takes.
    pub fn footprint(&self) -> usize {
        self.bytes.len() + self.rows.len() * size_of::<Row>()
    }

    /// A key: the name, with a slash if it is that of a directory.
    pub fn key(&self, index: usize) -> Option<&[u8]> {
        self.rows.get(index).map(|row| self.key_of(row))
    }

    /// Whether the key is the name of a symbolic link.
    pub fn is_link(&self, index: usize) -> bool {
        self.rows.get(index).is_some_and(|row| row.is_link)
    }

    /// The number of the first key that is not before another.
    pub fn index_of(&self, at_least: &[u8]) -> usize {
        self.rows.partition_point(|row| self.key_of(row) < at_least)
    }

    /// Whether the directory has names behind the last of the table.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether the directory has files and directories with names in UTF-8, in the table or not.
    pub fn has_entries(&self) -> bool {
        self.has_entries
    }

    /// Whether the directory has symbolic links with names in UTF-8, in the table or not.
    pub fn has_links(&self) -> bool {
        self.has_links
    }

    /// Whether the first of the wanted names, or that there are none, is to be found here.
    pub fn covers(&self, from: &NamesFrom) -> bool {
        let last = self.rows.last().map_or(&b""[..], |row| self.key_of(row));
        let begin = from.begin();
        from.prefix.starts_with(&self.from.prefix)
            && self.from.at_least.as_slice() <= begin
            && (!self.is_cut || begin <= last)
    }

    fn key_of(&self, row: &Row) -> &[u8] {
        &self.bytes[row.begin as usize..][..row.len.into()]
    }
}

/// Makes a table.
#[derive(Debug)]
pub struct NameTableBuilder {
    table: NameTable,
    most_bytes: usize,
    /// Keys from this on are left out.
    limit: Option<Vec<u8>>,
}

impl NameTableBuilder {
    /// Begins a table of at most so many bytes, no more than 1 GiB.
    pub fn new(from: NamesFrom, most_bytes: usize) -> Self {
        let table = NameTable { from, ..NameTable::default() };
        NameTableBuilder { table, most_bytes: most_bytes.min(1 << 30), limit: None }
    }

    /// Adds a name of the directory.
    pub fn push(&mut self, name: &[u8], kind: NameKind) {
        let (is_dir, is_link) = (kind == NameKind::Dir, kind == NameKind::Symlink);
        if kind == NameKind::Special || name.len() >= MAX_KEY_BYTES {
            return;
        }
        if std::str::from_utf8(name).is_ok() {
            self.table.has_links |= is_link;
            self.table.has_entries |= !is_link;
        }
        let begin = self.table.bytes.len();
        self.table.bytes.extend_from_slice(name);
        if is_dir {
            self.table.bytes.push(b'/');
        }
        if !self.is_wanted(begin) {
            self.table.bytes.truncate(begin);
            return;
        }
        let len = self.table.bytes.len() - begin;
        self.table.rows.push(Row { begin: begin as u32, len: len as u16, is_link });
        if self.table.footprint() > 2 * self.most_bytes {
            self.cut();
        }
    }

    /// Whether the key at the end of the bytes belongs into the table.
    fn is_wanted(&mut self, begin: usize) -> bool {
        let (key, from) = (&self.table.bytes[begin..], &self.table.from);
        if key < from.at_least.as_slice() || !key.starts_with(&from.prefix) {
            return false;
        }
        let is_behind = self.limit.as_deref().is_some_and(|limit| key >= limit);
        self.table.is_cut |= is_behind;
        !is_behind
    }

    /// Leaves the first names that take no more than the bound, and at least one.
    fn cut(&mut self) {
        self.sort();
        let (mut left, mut count) = (self.most_bytes, 0);
        for row in &self.table.rows {
            let bytes = size_of::<Row>() + usize::from(row.len);
            if bytes > left && count > 0 {
                break;
            }
            left = left.saturating_sub(bytes);
            count += 1;
        }
        let Some(limit) = self.table.key(count).map(<[u8]>::to_vec) else { return };
        let mut bytes = Vec::new();
        self.table.rows.truncate(count);
        for row in &mut self.table.rows {
            let begin = bytes.len();
            bytes.extend_from_slice(&self.table.bytes[row.begin as usize..][..row.len.into()]);
            row.begin = begin as u32;
        }
        self.table.bytes = bytes;
        self.table.is_cut = true;
        self.limit = Some(limit);
    }

    /// Orders the rows. Most comparisons are of eight bytes behind what all keys begin with, without a look at the keys.
    fn sort(&mut self) {
        let table = &mut self.table;
        let (bytes, rows) = (&table.bytes, &table.rows);
        let key = |row: &Row| &bytes[row.begin as usize..][..row.len.into()];
        let first = rows.first().map_or(&b""[..], key);
        let shared = rows.iter().fold(first.len(), |shared, row| common(&first[..shared], key(row)));
        let mut ordered: Vec<(u64, Row)> = rows.iter().map(|row| (head(&key(row)[shared..]), *row)).collect();
        ordered.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(&a.1).cmp(key(&b.1))));
        table.rows = ordered.into_iter().map(|(_, row)| row).collect();
    }

    /// The table.
    pub fn finish(mut self) -> NameTable {
        match self.table.footprint() > self.most_bytes {
            true => self.cut(),
            false => self.sort(),
        }
        self.table.bytes.shrink_to_fit();
        self.table.rows.shrink_to_fit();
        self.table
    }
}

/// The length of what two keys begin with.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The first eight bytes as a number of the same order.
fn head(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(head.len());
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = NameKind> {
        prop_oneof![
            Just(NameKind::Dir),
            Just(NameKind::File),
            Just(NameKind::Symlink),
            Just(NameKind::Special)
        ]
    }

    fn keys(table: &NameTable) -> Vec<Vec<u8>> {
        (0..table.len()).map(|index| table.key(index).unwrap().to_vec()).collect()
    }

    fn table(names: &[(Vec<u8>, NameKind)], from: &NamesFrom, most_bytes: usize) -> NameTable {
        let mut builder = NameTableBuilder::new(from.clone(), most_bytes);
        names.iter().for_each(|(name, kind)| builder.push(name, *kind));
        builder.finish()
    }

    proptest! {
        #[test]
        fn parts_of_any_size_are_the_ordered_names(
            names in btree_map("[a-c./-]{1,12}".prop_map(|name| name.replace('/', "é").into_bytes()), kind(), 0..60),
            prefix in "[a-c]{0,2}",
            at_least in "[a-c./-]{0,3}",
            most_bytes in 0..400usize,
        ) {
            // Hash order is any order.
            let names: Vec<_> = std::collections::HashMap::<_, _>::from_iter(names).into_iter().collect();
            let from = NamesFrom { at_least: at_least.into_bytes(), prefix: prefix.into_bytes() };
            let mut expected: Vec<Vec<u8>> = names.iter().filter_map(|(name, kind)| match kind {
                NameKind::Dir => Some([name, &b"/"[..]].concat()),
                NameKind::Special => None,
                _ => Some(name.clone()),
            }).filter(|key| *key >= from.at_least && key.starts_with(&from.prefix)).collect();
            expected.sort();
            let (mut found, mut rest) = (Vec::new(), from);
            loop {
                let part = table(&names, &rest, most_bytes);
                prop_assert!(part.covers(&rest));
                prop_assert!(part.footprint() <= most_bytes || part.len() == 1);
                prop_assert_eq!(part.has_links(), names.iter().any(|(_, kind)| *kind == NameKind::Symlink));
                let files = [NameKind::Dir, NameKind::File];
                prop_assert_eq!(part.has_entries(), names.iter().any(|(_, kind)| files.contains(kind)));
                found.extend(keys(&part));
                if !part.is_cut() {
                    break;
                }
                rest.at_least = next_key(found.last().unwrap());
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_table_says_what_is_to_be_found_in_it() {
        let names: Vec<_> = [b"a", b"b", b"c"].map(|name| (name.to_vec(), NameKind::File)).into();
        let from =
            |at_least: &[u8], prefix: &[u8]| NamesFrom { at_least: at_least.into(), prefix: prefix.into() };
        let whole = table(&names, &from(b"", b""), 1000);
        assert!(
            whole.covers(&from(b"", b"")) && whole.covers(&from(b"z", b"q")) && whole.index_of(b"b") == 1
        );
        let first = table(&names, &from(b"", b""), 20);
        assert!(first.is_cut() && keys(&first) == [b"a", b"b"]);
        assert!(first.covers(&from(b"b", b"")) && !first.covers(&from(b"b\0", b"")));
        assert!(first.covers(&from(b"", b"b")) && !first.covers(&from(b"", b"c")));
        let behind = table(&names, &NamesFrom::behind(b"a"), 1000);
        assert!(keys(&behind) == [b"b", b"c"] && !behind.covers(&from(b"", b"")));
        assert!(!table(&names, &from(b"", b"b"), 1000).covers(&from(b"", b"")));
    }
}
