//! Values of the configuration that may have a unit: bytes and times.
//!
//! Invariants
//! * A value without a unit is in the unit that the name of its key ends with.
//! * A value is exact. One that is no whole number of that unit, or larger than 64 bits, is refused.

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use std::fmt;

/// Bytes, as a number, or as text such as `4MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) u64);

/// Seconds, as a number, or as text such as `30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seconds(pub(super) u64);

/// Milliseconds, as a number, or as text such as `500ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Milliseconds(pub(super) u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BYTES).map(Self)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SECONDS).map(Self)
    }
}

impl<'de> Deserialize<'de> for Milliseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MILLISECONDS).map(Self)
    }
}

const BYTES: Quantity = Quantity {
    units: &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)],
    own: 1,
    expected: "bytes: write a number, or in quotes a number and B, KiB, MiB, GiB or TiB, such as \"4MiB\"",
};

const SECONDS: Quantity = Quantity {
    units: TIMES,
    own: 1000,
    expected: "whole seconds: write a number, or in quotes a number and ms, s, min or h, such as \"30s\"",
};

const MILLISECONDS: Quantity = Quantity {
    units: TIMES,
    own: 1,
    expected: "milliseconds: write a number, or in quotes a number and ms, s, min or h, such as \"500ms\"",
};

/// Units of time, in milliseconds.
const TIMES: &[(&str, u64)] = &[("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000)];

/// Reads a number, or a text with a number and a unit.
#[derive(Clone, Copy)]
struct Quantity {
    /// The units of texts, by their size.
    units: &'static [(&'static str, u64)],
    /// The size of the unit of numbers and of the result.
    own: u64,
    /// The forms that may be written.
    expected: &'static str,
}

impl Quantity {
    fn read(&self, text: &str) -> Option<u64> {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        let (_, size) = self.units.iter().find(|(name, _)| *name == unit)?;
        let value = number.parse::<u64>().ok()?.checked_mul(*size)?;
        value.is_multiple_of(self.own).then(|| value / self.own)
    }
}

impl Visitor<'_> for Quantity {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        u64::try_from(value).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        self.read(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_says_the_same_as_a_number() {
        assert_eq!(BYTES.read("0B"), Some(0));
        assert_eq!(BYTES.read("4MiB"), Some(4 << 20));
        assert_eq!(BYTES.read("4 MiB"), Some(4 << 20));
        assert_eq!(BYTES.read("16777215TiB"), Some(16_777_215 << 40));
        assert_eq!(SECONDS.read("30s"), Some(30));
        assert_eq!(SECONDS.read("2000ms"), Some(2));
        assert_eq!(SECONDS.read("5min"), Some(300));
        assert_eq!(SECONDS.read("1h"), Some(3600));
        assert_eq!(MILLISECONDS.read("500ms"), Some(500));
        assert_eq!(MILLISECONDS.read("2s"), Some(2000));
    }

    #[test]
    fn what_is_not_exact_is_refused() {
        for text in ["", "4", "MiB", " 4MiB", "4MiB ", "4  MiB", "4MB", "4mib", "-4MiB", "0.5GiB"] {
            assert_eq!(BYTES.read(text), None, "{text:?}");
        }
        assert_eq!(BYTES.read("16777216TiB"), None, "more than 64 bits");
        assert_eq!(BYTES.read("18446744073709551616B"), None, "more than 64 bits");
        assert_eq!(SECONDS.read("1500ms"), None, "no whole seconds");
        assert_eq!(SECONDS.read("30S"), None);
        assert_eq!(SECONDS.read("5m"), None, "minutes, or milliseconds?");
        assert_eq!(SECONDS.read("4MiB"), None);
        assert_eq!(MILLISECONDS.read("1.5s"), None);
    }
}
