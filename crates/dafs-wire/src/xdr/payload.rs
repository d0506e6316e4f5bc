//! Counted data that a transport may carry outside of the message (direct data placement).
//!
//! RPC-over-RDMA takes large opaque items out of the XDR stream and moves them separately (RFC 8166
//! 3.4). The stream keeps the length but not the data and its padding. The upper-layer binding of
//! the program says which items are DDP-eligible (RFC 8267 for NFS): those are decoded and encoded
//! as [`Payload`].
//!
//! Invariants
//! * A moved item must match exactly one payload, at its position and with the length in the
//!   stream; otherwise decoding fails.

/// Counted opaque data inside or outside of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// The data is in the stream.
    Here(&'a [u8]),
    /// The transport has moved the data.
    Moved(MovedData),
}

/// Data that the transport has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedData {
    /// The index of the item in the message.
    pub index: usize,
    /// Length in bytes, without padding.
    pub len: usize,
}

/// A moved item, as known before the message is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedItem {
    /// Its position: in the reduced stream, directly after its length. `None` if it belongs to the
    /// next payload, as the chunks of a reply do.
    pub at: Option<usize>,
    /// Bytes that were moved, with or without the padding. Zero if none were moved; an item, if
    /// there is one, is then in the stream.
    pub len: usize,
}

impl<'a> Payload<'a> {
    /// Length in bytes, without padding.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Here(data) => data.len(),
            Self::Moved(moved) => moved.len,
        }
    }

    /// True when the data is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The data if it is in the stream.
    #[inline]
    pub const fn here(&self) -> Option<&'a [u8]> {
        match self {
            Self::Here(data) => Some(data),
            Self::Moved(_) => None,
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(data: &'a [u8]) -> Self {
        Self::Here(data)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(data: &'a [u8; N]) -> Self {
        Self::Here(data)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, Encoder, XdrError, padded};
    use super::*;
    use proptest::prelude::*;

    fn item(at: usize, len: usize) -> MovedItem {
        MovedItem { at: Some(at), len }
    }

    /// A number, a payload that was moved, and a name.
    fn reduced(len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut e = Encoder::new(&mut bytes);
        e.u32(7);
        e.payload(Payload::Moved(MovedData { index: 0, len }));
        e.opaque(b"name");
        bytes
    }

    #[test]
    fn data_apart_is_met_at_its_place_with_or_without_padding() {
        let bytes = reduced(5);
        assert_eq!(bytes.len(), 4 + 4 + 8);
        for moved in [5, 8] {
            let items = [item(8, moved)];
            let mut d = Decoder::with_moved(&bytes, &items);
            assert_eq!(d.u32(), Ok(7));
            let moved = MovedData { index: 0, len: 5 };
            assert_eq!(d.payload(5), Ok(Payload::Moved(moved)));
            assert_eq!(d.opaque(9), Ok(&b"name"[..]));
            assert_eq!(d.finish(), Ok(()));
        }
    }

    #[test]
    fn lengths_that_disagree_and_lengths_over_the_limit_are_refused() {
        let bytes = reduced(5);
        for moved in [1, 4, 6, 7, 9, usize::MAX] {
            let items = [item(8, moved)];
            let mut d = Decoder::with_moved(&bytes, &items);
            d.u32().unwrap();
            let want = XdrError::MovedLength { len: 5, moved };
            assert_eq!(d.payload(usize::MAX), Err(want));
            assert_eq!(d.position(), 4);
        }
        let items = [item(8, 5)];
        let mut d = Decoder::with_moved(&bytes, &items);
        d.u32().unwrap();
        assert_eq!(d.payload(4), Err(XdrError::TooLong { len: 5, max: 4 }));
    }

    #[test]
    fn data_apart_that_belongs_nowhere_is_refused() {
        let bytes = reduced(5);
        // Positions before the length, inside it, and at the end of the message.
        for at in [0, 4, 7] {
            let items = [item(at, 5)];
            let mut d = Decoder::with_moved(&bytes, &items);
            d.u32().unwrap();
            assert_eq!(d.payload(9), Err(XdrError::Misplaced(at)), "{at}");
        }
        let stream = b"\0\0\0\x02hi\0\0\0\0\0\x02no\0\0";
        let items = [item(12, 2)];
        let mut d = Decoder::with_moved(stream, &items);
        assert_eq!(d.payload(9), Ok(Payload::Here(b"hi")));
        // A name is not a payload, so it cannot be moved.
        assert_eq!(d.opaque(9), Ok(&b"no"[..]));
        assert_eq!(d.check_apart(), Err(XdrError::Misplaced(12)));
        assert_eq!(d.finish(), Err(XdrError::Misplaced(12)));
        let items = [item(400, 2)];
        let mut d = Decoder::with_moved(stream, &items);
        d.take(16).unwrap();
        assert_eq!(d.check_apart(), Ok(()));
        assert_eq!(d.finish(), Err(XdrError::Misplaced(400)));
    }

    #[test]
    fn items_of_results_come_in_order_and_empty_ones_stand_in_the_stream() {
        let mut bytes = Vec::new();
        let mut e = Encoder::new(&mut bytes);
        e.payload(Payload::Moved(MovedData { index: 0, len: 9 }));
        e.payload(b"here".into());
        e.payload(Payload::Moved(MovedData { index: 2, len: 3 }));
        e.payload(b"more".into());
        let moved = [9, 0, 3].map(|len| MovedItem { at: None, len });
        let mut d = Decoder::with_moved(&bytes, &moved);
        assert_eq!(d.payload(9), Ok(Payload::Moved(MovedData { index: 0, len: 9 })));
        assert_eq!(d.payload(9), Ok(Payload::Here(b"here")));
        assert_eq!(d.payload(9), Ok(Payload::Moved(MovedData { index: 2, len: 3 })));
        assert_eq!(d.payload(9), Ok(Payload::Here(b"more")));
        assert_eq!(d.finish(), Ok(()));
        // An unused chunk is no error; a used one is.
        for (len, want) in [(0, Ok(())), (1, Err(XdrError::Misplaced(0)))] {
            let items = [MovedItem { at: None, len }];
            assert_eq!(Decoder::with_moved(&[], &items).finish(), want);
        }
    }

    #[test]
    fn reading_goes_on_behind_data_apart() {
        let mut bytes = Vec::new();
        let mut e = Encoder::new(&mut bytes);
        e.payload(Payload::Moved(MovedData { index: 0, len: 6 }));
        e.payload(Payload::Moved(MovedData { index: 1, len: 8 }));
        let items = [item(4, 6), item(8, 8)];
        let mut first = Decoder::with_moved(&bytes, &items);
        first.payload(9).unwrap();
        let mut second = Decoder::with_moved(&bytes, &items);
        assert_eq!(second.resume(first.position()), Ok(()));
        assert_eq!(second.payload(9), Ok(Payload::Moved(MovedData { index: 1, len: 8 })));
        assert_eq!(second.finish(), Ok(()));
        assert!(Decoder::with_moved(&bytes, &items).resume(9).is_err());
    }

    proptest! {
        #[test]
        fn moved_data_is_found_again(data: Vec<(bool, Vec<u8>)>) {
            let mut bytes = Vec::new();
            let mut items = Vec::new();
            for (moved, data) in &data {
                let mut e = Encoder::new(&mut bytes);
                if *moved {
                    let moved = MovedData { index: items.len(), len: data.len() };
                    e.payload(Payload::Moved(moved));
                    items.push(item(e.position(), padded(data.len())));
                } else {
                    e.payload(data.as_slice().into());
                }
            }
            let mut d = Decoder::with_moved(&bytes, &items);
            let mut met = 0;
            for (moved, data) in &data {
                let got = d.payload(usize::MAX).unwrap();
                if *moved && !data.is_empty() {
                    prop_assert_eq!(got, Payload::Moved(MovedData { index: met, len: data.len() }));
                } else {
                    prop_assert_eq!(got, Payload::Here(data));
                }
                met += usize::from(*moved);
            }
            prop_assert_eq!(d.finish(), Ok(()));
        }

        #[test]
        fn no_bytes_and_no_items_make_trouble(
            bytes: Vec<u8>,
            items in proptest::collection::vec((any::<Option<u8>>(), 0usize..40), 0..4),
            max in 0usize..64,
        ) {
            let items: Vec<_> = items
                .into_iter()
                .map(|(at, len)| MovedItem { at: at.map(usize::from), len })
                .collect();
            let mut d = Decoder::with_moved(&bytes, &items);
            while let Ok(payload) = d.payload(max) {
                prop_assert!(payload.len() <= max);
                if let Payload::Moved(moved) = payload {
                    let item = items[moved.index];
                    prop_assert!(item.len == moved.len || item.len == padded(moved.len));
                    prop_assert!(item.at.is_none_or(|at| at == d.position()));
                }
            }
            let at = d.position();
            prop_assert!(d.payload(max).is_err());
            prop_assert_eq!(d.position(), at);
        }
    }
}
