//! Padded inline data (DAFS 13.1, O23): of any length, behind any header that was agreed on.

use crate::common::*;
use dafs_wire::dafs::{self, Reply, Request, SessionOptions, Stability};
use proptest::prelude::*;
use proptest::sample::Index;

/// Lengths at which an error by one would show, up to `most`, and another one.
fn lengths(most: usize, other: Index) -> impl Iterator<Item = usize> {
    let edges = [0, 1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 8192, most - 1, most];
    edges.into_iter().filter(move |len| *len <= most).chain([other.index(most + 1)])
}

fn padded(request: Request<'_>, at: u32) -> Request<'_> {
    let padded_to = Some(at);
    match request {
        Request::AppendInline(args) => {
            Request::AppendInline(dafs::AppendInline { padded_to, ..args })
        }
        Request::WriteInline(args) => Request::WriteInline(dafs::WriteInline { padded_to, ..args }),
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn padded_data_of_any_length_is_taken_whole(
        inline_write_header_size in 0..2000u32,
        max_request_size in 1024..20_000u32,
        use_checksums: bool,
        other: Index,
    ) {
        let mut world = World::new(Setup::default());
        let options = SessionOptions {
            inline_write_header_size,
            max_request_size,
            use_checksums,
            ..SessionOptions::default()
        };
        let client = world.connect(2);
        let answer = world.call(client, &connect_auth("a", 1, options));
        let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!("{answer:?}") };
        world.clients[client].checksums = use_checksums;
        let at = reply.options.inline_write_header_size;
        let most = (reply.options.max_request_size - at) as usize;
        let file = world.open(client, b"f");
        let mut expected: Vec<u8> = Vec::new();
        for (turn, len) in lengths(most, other).enumerate() {
            let data = pattern(len, turn as u8);
            let append = padded(append_inline(file, Stability::DataSync, &data), at);
            let answer = world.call(client, &append);
            let Ok(Reply::AppendInline(reply)) = answer.reply() else { panic!("{answer:?}") };
            assert_eq!(reply.offset, expected.len() as u64);
            expected.extend(data);
            let (start, data) = (expected.len() / 2, pattern(len, !(turn as u8)));
            let write = padded(write_inline(file, start as u64, &data), at);
            assert_eq!(written(&world.call(client, &write)).count as usize, len);
            expected.resize(expected.len().max(start + len), 0);
            expected[start..start + len].copy_from_slice(&data);
        }
        assert!(world.read(client, file) == expected);
        world.end();
    }
}
