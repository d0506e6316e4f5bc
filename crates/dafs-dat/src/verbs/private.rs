//! Private data of connections.
//!
//! InfiniBand's connection manager carries a field of fixed size without the length of the data, so
//! a peer sees zeros after the data. Between peers of this implementation a trailer of four bytes
//! has the length: two bytes of a mark, the length, and a last byte that is not zero, so that it
//! can be found before any number of zeros. Other peers parse the data from the front (RFC 8797 has
//! a magic number) and ignore the trailer. iWARP carries exact lengths and gets no trailer, but the
//! iwarp provider appends a block of its own, which is removed here.

use dafs_wire::iwarp::mpa::DafsBlock;

pub(super) const TRAILER_BYTES: usize = 4;

const MARK: [u8; 2] = [0x64, 0x61];
const LAST: u8 = 0xff;

/// Encodes private data for the connection manager. `data` is at most
/// [`PRIVATE_DATA_BYTES_MAX`](crate::PRIVATE_DATA_BYTES_MAX) bytes long.
pub(super) fn encode(data: &[u8], is_padded: bool) -> Vec<u8> {
    debug_assert!(data.len() <= crate::PRIVATE_DATA_BYTES_MAX);
    let mut bytes = data.to_vec();
    if is_padded {
        bytes.extend_from_slice(&[MARK[0], MARK[1], data.len() as u8, LAST]);
    }
    bytes
}

/// The private data of the peer, or all bytes that arrived if the peer has another implementation.
pub(super) fn decode(mut bytes: Vec<u8>, is_padded: bool) -> Vec<u8> {
    if is_padded {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if let Some(len) = end.checked_sub(TRAILER_BYTES) {
            let trailer = [MARK[0], MARK[1], len as u8, LAST];
            if bytes[len..end] == trailer {
                bytes.truncate(len);
            }
        }
    } else {
        let len = DafsBlock::split(&bytes).0.len();
        bytes.truncate(len);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_survives_a_field_of_fixed_size() {
        for data in [&b""[..], b"\0", b"no", b"\0\0\0", &[0; 44], &[0xff; 44]] {
            let mut field = encode(data, true);
            assert!(field.len() <= 56);
            field.resize(196, 0);
            assert_eq!(decode(field, true), data);
            assert_eq!(decode(encode(data, false), false), data);
        }
    }

    #[test]
    fn the_block_of_the_iwarp_provider_is_cut_off() {
        let dafs_block = DafsBlock { large_fpdu: true, crc: false };
        let sent = [b"hello".as_slice(), &dafs_block.encode()].concat();
        assert_eq!(decode(sent, false), b"hello");
    }

    #[test]
    fn private_data_of_a_foreign_peer_stays_unchanged() {
        let mut field = vec![0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
        field.resize(56, 0);
        assert_eq!(decode(field.clone(), true), field);
        for odd in [&[][..], &[0; 56], &[LAST], &[0x64, 0x61, 9, LAST, 0, 0]] {
            assert_eq!(decode(odd.to_vec(), true), odd);
        }
    }
}
