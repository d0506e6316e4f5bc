//! The mapping of a file's bytes to its objects, in CephFS's own terms.

use dafs_store::{Result, StoreError};
use std::num::NonZeroU32;

/// The layout of a file: how its content is divided into objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stripes {
    /// Contiguous bytes in one object.
    pub(crate) unit_bytes: NonZeroU32,
    /// The number of objects in round-robin order.
    count: NonZeroU32,
    /// The number of units in an object before the next set of objects begins.
    units_per_object: u64,
    /// The pool of the objects, by name.
    pub(crate) pool: String,
    /// The namespace in the pool; empty for the default one.
    name_space: String,
}

impl Stripes {
    /// Parses `stripe_unit=N stripe_count=N object_size=N pool=NAME`, optionally with
    /// `pool_namespace=NAME`: the format of the attribute `ceph.file.layout`.
    ///
    /// # Errors
    /// [`StoreError::Io`] for any other text.
    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        Self::read(text).ok_or(StoreError::Io)
    }

    fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        // Names of pools may have spaces.
        let (numbers, names) = text.split_once(" pool=")?;
        let (pool, name_space) = names.split_once(" pool_namespace=").unwrap_or((names, ""));
        let number = |key: &str| -> Option<NonZeroU32> {
            numbers
                .split(' ')
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        let (unit_bytes, object_bytes) = (number("stripe_unit")?, number("object_size")?);
        if object_bytes.get() % unit_bytes != 0 || pool.is_empty() {
            return None;
        }
        Some(Self {
            unit_bytes,
            count: number("stripe_count")?,
            units_per_object: u64::from(object_bytes.get() / unit_bytes),
            pool: pool.to_owned(),
            name_space: name_space.to_owned(),
        })
    }

    /// Returns the number of the object that holds a unit.
    fn object(&self, unit: u64) -> u64 {
        let count = u64::from(self.count.get());
        let (stripe, place) = (unit / count, unit % count);
        (stripe / self.units_per_object) * count + place
    }

    /// Returns the hash key of the object that holds a unit of a file.
    pub(crate) fn key(&self, ino: u64, unit: u64) -> Vec<u8> {
        let name = format!("{ino:x}.{:08x}", self.object(unit));
        match self.name_space.as_str() {
            "" => name.into_bytes(),
            space => [space.as_bytes(), &[0x1f], name.as_bytes()].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Stripes> {
        Stripes::parse(text.as_bytes())
    }

    #[test]
    fn units_go_round_the_objects_of_a_set_and_then_to_the_next_set() {
        let text = "stripe_unit=65536 stripe_count=3 object_size=131072 pool=data";
        let stripes = parse(text).unwrap();
        let objects: Vec<_> = (0..14).map(|unit| stripes.object(unit)).collect();
        assert_eq!(objects, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]);
        assert_eq!(stripes.key(0x100_0000_01fe, 7), b"100000001fe.00000004");
        let spaced = parse(&format!("{text} pool_namespace=x y")).unwrap();
        assert_eq!(spaced.key(0x1, 0), b"x y\x1f1.00000000");
        let named = parse(&text.replace("data", "cold data")).unwrap();
        assert_eq!((named.pool.as_str(), named.name_space.as_str()), ("cold data", ""));
    }

    #[test]
    fn a_malformed_layout_is_an_error() {
        for text in [
            "",
            "stripe_unit=65536 stripe_count=3 object_size=131072",
            "stripe_unit=0 stripe_count=3 object_size=131072 pool=data",
            "stripe_unit=65536 stripe_count=3 object_size=100000 pool=data",
            "stripe_unit=65536 stripe_count=99999999999 object_size=131072 pool=data",
            "stripe_unit=65536 object_size=131072 pool=data",
            "stripe_unit=65536 stripe_count=1 object_size=65536 pool=",
        ] {
            assert_eq!(parse(text), Err(StoreError::Io), "{text}");
        }
    }
}
