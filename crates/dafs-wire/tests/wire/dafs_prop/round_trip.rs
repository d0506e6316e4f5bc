//! An encoded value decodes to the same value, in both byte orders, and fills exactly its own
//! length.

use super::bodies::{PADDING, failure, reply, request};
use super::make::Source;
use dafs_wire::dafs::*;
use proptest::prelude::*;
use std::fmt::Debug;

const ORDERS: [ByteOrder; 2] = [ByteOrder::Big, ByteOrder::Little];

/// Encodes with plenty of room, with exactly enough and with one byte too few.
fn encode_all(encode: impl Fn(&mut [u8]) -> Result<usize, EncodeError>) -> Vec<u8> {
    let mut message = vec![0xa5; 1 << 16];
    let bytes = encode(&mut message).unwrap();
    assert!(message[bytes..].iter().all(|byte| *byte == 0xa5), "wrote behind the message");
    message.truncate(bytes);
    let mut exact = vec![0x5a; bytes];
    assert_eq!(encode(&mut exact), Ok(bytes));
    assert_eq!(exact, message, "pad bytes depend on what was there before");
    let mut short = vec![0; bytes - 1];
    assert_eq!(encode(&mut short), Err(EncodeError::NoRoom { room: bytes - 1 }));
    message
}

fn same<T: PartialEq + Debug>(left: T, right: T) {
    assert_eq!(format!("{left:?}"), format!("{right:?}"));
    assert_eq!(left, right);
}

fn check_request(procedure: Procedure, bytes: &[u8], order: ByteOrder) {
    let mut source = Source::new(bytes);
    let header: RequestHeader = source.make();
    let body = request(procedure, &mut source);
    assert_eq!(body.procedure(), procedure);
    let message = encode_all(|out| encode_request(out, order, &header, &body));
    assert_eq!(peek_order(&message), Some(order));
    let expected =
        RequestHeader { procedure: procedure as u32, request_len: message.len() as u32, ..header };
    let (found, decoded) = decode_request(&message, order, PADDING).unwrap();
    same(found, expected);
    same(decoded, body);
    // A view of a message encodes to the same bytes as its original slices.
    assert_eq!(encode_all(|out| encode_request(out, order, &header, &decoded)), message);
}

fn check_reply(procedure: Procedure, bytes: &[u8], order: ByteOrder) {
    let mut source = Source::new(bytes);
    let header: ResponseHeader = source.make();
    let body = reply(procedure, &mut source);
    assert_eq!(body.procedure(), procedure);
    let message = encode_all(|out| encode_response(out, order, &header, &body));
    assert_eq!(peek_order(&message), Some(order));
    let (found, decoded) = decode_response(&message, order, procedure).unwrap();
    same(found, ResponseHeader { response_len: message.len() as u32, ..header });
    same(decoded, Outcome::Ok(body));
    assert_eq!(decoded.into_result(), Ok(body));
}

fn check_failure(procedure: Procedure, bytes: &[u8], order: ByteOrder) {
    let mut source = Source::new(bytes);
    let header: ResponseHeader = source.make();
    let (status, body) = failure(procedure, &mut source);
    let header = header.with_status(status);
    let message = encode_all(|out| encode_error(out, order, &header, procedure, &body));
    let (found, decoded) = decode_response(&message, order, procedure).unwrap();
    same(found, ResponseHeader { response_len: message.len() as u32, ..header });
    // FETCH_RESPONSE without a body stays without one.
    same(decoded, Outcome::Error { status, body });
    assert_eq!(decoded.into_result(), Err(status));
}

proptest! {
    #[test]
    fn requests(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
        for procedure in Procedure::ALL {
            for order in ORDERS {
                check_request(procedure, &bytes, order);
            }
        }
    }

    #[test]
    fn replies(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
        for procedure in Procedure::ALL {
            for order in ORDERS {
                check_reply(procedure, &bytes, order);
                check_failure(procedure, &bytes, order);
            }
        }
    }

    #[test]
    fn heads_of_gathered_messages(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        data in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        for order in ORDERS {
            let mut source = Source::new(&bytes);
            let header: RequestHeader = source.make();
            let write = WriteInline { data: &data, ..source.make() };
            let whole =
                encode_all(|out| encode_request(out, order, &header, &Request::WriteInline(write)));
            let head = &mut [0xa5; 300];
            let at = encode_write_inline_head(head, order, &header, &write, data.len()).unwrap();
            prop_assert_eq!([&head[..at], &data].concat(), whole);

            let header: ResponseHeader = source.make();
            let read = ReadInlineReply { eof: source.make(), data: &data };
            let whole =
                encode_all(|out| encode_response(out, order, &header, &Reply::ReadInline(read)));
            let mut placed = vec![0xa5; 48];
            placed.extend_from_slice(&data);
            let end =
                encode_read_inline_head(&mut placed, order, &header, read.eof, data.len()).unwrap();
            prop_assert_eq!(end, placed.len());
            prop_assert_eq!(placed, whole);
        }
    }

    #[test]
    fn bare_direct_forms(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
        for order in ORDERS {
            let mut source = Source::new(&bytes);
            let attributes: Attributes<'_> = source.make();
            let block = encode_all(|out| attributes.encode_direct(out, order));
            same(Attributes::decode_direct(&block, order).unwrap(), attributes);
            let entries: Seq<'_, DirEntry<'_>> = source.make();
            let array = encode_all(|out| encode_entries_direct(entries, out, order));
            same(decode_entries_direct(&array, order).unwrap(), entries);
            let text: &[u8] = source.make();
            let string = encode_all(|out| encode_text_direct(text, out, order));
            prop_assert_eq!(decode_text_direct(&string, order).unwrap(), text);
        }
    }

    #[test]
    fn directories_written_entry_by_entry(
        bytes in proptest::collection::vec(any::<u8>(), 0..4000),
        room in 0usize..3000,
    ) {
        for order in ORDERS {
            let mut source = Source::new(&bytes);
            let entries: Vec<DirEntry<'_>> = (0..40).map(|_| source.make()).collect();
            let mut area = vec![0xa5; room];
            let Ok(mut writer) = DirEntriesWriter::new(&mut area, order) else {
                prop_assert!(room < 8);
                continue;
            };
            let mut fitting = 0;
            while fitting < entries.len() && writer.push(&entries[fitting]) {
                fitting += 1;
            }
            prop_assert_eq!(writer.count(), fitting);
            let promised = writer.bytes();
            let length = writer.finish().unwrap();
            prop_assert_eq!(length, DirEntriesLength { bytes: promised, count: fitting });
            same(
                decode_entries_direct(&area[..length.bytes], order).unwrap(),
                Seq::new(&entries[..fitting]),
            );
            // The writer stops only when there is no room: each entry takes its own space and
            // padding, and the area may end up to 7 bytes after a multiple of 8.
            if let Some(next) = entries.get(fitting) {
                let mut alone = vec![0; 1 << 16];
                let next =
                    encode_entries_direct(Seq::new(&[*next]), &mut alone, order).unwrap() - 8;
                prop_assert!(length.bytes.next_multiple_of(8) + next > room & !7);
            }
        }
    }

    #[test]
    fn a_directory_in_a_reply(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        eof in any::<bool>(),
    ) {
        for order in ORDERS {
            let mut source = Source::new(&bytes);
            let header: ResponseHeader = source.make();
            let cookieverf = source.make();
            let entries: Seq<'_, DirEntry<'_>> = source.make();
            let mut message = vec![0xa5; 1 << 16];
            let area = &mut message[READDIR_INLINE_REPLY_ENTRIES_AT..];
            let mut writer = DirEntriesWriter::new(area, order).unwrap();
            prop_assert!(entries.iter().all(|entry| writer.push(&entry)));
            let length = writer.finish().unwrap();
            let end =
                encode_readdir_inline_head(&mut message, order, &header, cookieverf, eof, length)
                    .unwrap();
            let (_, outcome) =
                decode_response(&message[..end], order, Procedure::ReadDirInline).unwrap();
            let expected = ReadDirInlineReply { cookieverf, eof, entries };
            same(outcome, Outcome::Ok(Reply::ReadDirInline(expected)));
        }
    }
}
