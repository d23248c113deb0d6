//! Lists with a most number of items, which bounds what a few bytes can decode to.

use serde::Deserialize;

/// Most entries in one offer, verdict list or listing part; keeps control frames small.
pub const BATCH_ENTRIES: usize = 512;

/// Deserialises a list of at most [`BATCH_ENTRIES`]: otherwise a few bytes of a frame could decode to a hundred times
/// as much.
pub(crate) fn batch<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    at_most::<D, T, BATCH_ENTRIES>(deserializer)
}

/// Deserialises a list of at most `MOST` items.
pub(crate) fn at_most<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Items<T, const MOST: usize>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> serde::de::Visitor<'de> for Items<T, MOST> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {MOST} items")
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MOST {
                    return Err(serde::de::Error::invalid_length(items.len() + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_seq(Items::<T, MOST>(std::marker::PhantomData))
}
