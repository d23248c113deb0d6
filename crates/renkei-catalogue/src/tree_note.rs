//! Notes of a volume's tree: values that are not of the namespace, each under a key.

use super::tree::VolumeTree;
use renkei_core::error::Error;
use renkei_core::format::{Format, Reader};
use serde::Serialize;

/// A note in a volume's tree: a value under a key.
pub struct TreeNote<T: 'static>(Format<T>);

impl<T> TreeNote<T> {
    /// The note under a key, with the readers of its versions from 0 on.
    pub const fn of(key: &'static str, readers: &'static [Reader<T>]) -> Self {
        TreeNote(Format::bare(key, readers))
    }

    /// Its format.
    pub const fn format(&self) -> &Format<T> {
        &self.0
    }

    /// Its key.
    pub const fn key(&self) -> &'static str {
        self.0.kind()
    }

    /// Its value, unless the note is missing or empty.
    ///
    /// # Errors
    /// `CatalogueFailed`, and those of [`Format::decode`].
    pub fn read(&self, tree: &VolumeTree) -> Result<Option<T>, Error> {
        let bytes = tree.note(self.key())?.filter(|bytes| !bytes.is_empty());
        bytes.map(|bytes| self.0.decode(&bytes)).transpose()
    }
}

impl<T: Serialize> TreeNote<T> {
    /// Stores a value.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn write(&self, tree: &VolumeTree, value: &T) -> Result<(), Error> {
        tree.set_note(self.key(), &self.0.encode(value))
    }

    /// The key and the bytes of a value, to be stored together with others.
    pub fn row(&self, value: &T) -> (String, Vec<u8>) {
        (self.key().into(), self.0.encode(value))
    }
}
