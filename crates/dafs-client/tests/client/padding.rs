//! Padded writes and appends (DAFS 13.1, O23): the client pads data where the message has room, and the
//! server gets all of it.

use crate::fake::requests::{append, recovering, status};
use crate::fake::{Answer, FakeServer, World, pattern};
use crate::served::on_each_transport_with;
use dafs_client::core::{Done, Piece, SessionConfig};
use dafs_client::limits::{INLINE_WRITE_HEADER_BYTES, REQUEST_BYTES_PROPOSED};
use dafs_client::{Create, OpenOptions, Stability, Status, Step, StepOn};
use dafs_wire::dafs::{ByteOrder, Request, RequestHeader, WRITE_INLINE_DATA_AT};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// The writes and appends that reached a server inside messages.
#[derive(Default)]
struct Arrived {
    /// The place of padded data, and the length of the data.
    list: RefCell<Vec<(Option<u32>, usize)>>,
    /// The server ignores them.
    ignored: Cell<bool>,
}

impl Arrived {
    fn answer(&self, request: &Request<'_>) -> Answer {
        let arrived = match request {
            Request::AppendInline(args) => (args.padded_to, args.data.len()),
            Request::WriteInline(args) => (args.padded_to, args.data.len()),
            _ => return Answer::File,
        };
        self.list.borrow_mut().push(arrived);
        if self.ignored.get() { Answer::Silence } else { Answer::File }
    }
}

fn world(config: SessionConfig) -> (World, Rc<Arrived>) {
    world_with(config, |_| {})
}

fn world_with(
    config: SessionConfig,
    prepare: impl FnOnce(&mut FakeServer),
) -> (World, Rc<Arrived>) {
    let arrived = Rc::new(Arrived::default());
    let server = arrived.clone();
    let mut world = World::open_with(config, prepare);
    world.server.script =
        Box::new(move |_: &RequestHeader, request: &Request<'_>| server.answer(request));
    (world, arrived)
}

/// Writes data, appends it, and checks that the server got it.
fn write_and_append(world: &mut World, data: &[u8]) {
    let (memory, len) = (world.memory(data), data.len());
    let tag = world.write_and_wait(Piece::new(&memory, 0, len as u32).unwrap(), 3);
    assert!(matches!(world.done[&tag], Done::Written { bytes, .. } if bytes as usize == len));
    assert_eq!(world.server.file[3..3 + len], *data);
    let tag = world.ask_and_wait(&append(data));
    assert_eq!(status(&world.done[&tag]), Status::Ok);
    assert!(world.server.file.ends_with(data));
}

#[test]
fn data_is_padded_where_the_message_has_room() {
    let room = REQUEST_BYTES_PROPOSED as usize;
    let most = room - INLINE_WRITE_HEADER_BYTES as usize;
    for pad_writes in [false, true] {
        let inline_bytes = u32::MAX;
        let (mut world, arrived) =
            world(SessionConfig { pad_writes, inline_bytes, ..World::config() });
        for len in [1, 7, 8, 4096, most - 1, most, most + 1, room - WRITE_INLINE_DATA_AT] {
            write_and_append(&mut world, &pattern(len));
            let padded_to = (pad_writes && len <= most).then_some(INLINE_WRITE_HEADER_BYTES);
            assert_eq!(arrived.list.take(), [(padded_to, len); 2]);
        }
        world.ask_and_wait(&append(&[]));
        assert_eq!(arrived.list.take(), [(None, 0)]);
    }
}

/// A server's answer may name the end of the message, or any place behind it.
#[test]
fn a_place_without_room_for_data_pads_nothing() {
    for header_bytes in [REQUEST_BYTES_PROPOSED, 1 << 20, u32::MAX - 7] {
        let config = SessionConfig { pad_writes: true, ..World::config() };
        let (mut world, arrived) =
            world_with(config, |server| server.header_bytes = Some(header_bytes));
        write_and_append(&mut world, &pattern(4096));
        assert_eq!(arrived.list.take(), [(None, 4096); 2], "{header_bytes}");
    }
}

#[test]
fn data_is_padded_for_the_connection_that_it_leaves_on() {
    let (mut world, arrived) = world(SessionConfig { pad_writes: true, ..recovering() });
    let data = pattern(4000);
    let memory = world.memory(&data);
    arrived.ignored.set(true);
    let tags =
        [world.ask(&append(&data)), world.write(Piece::new(&memory, 0, 4000).unwrap(), 10_000)];
    world.run_for(Duration::from_millis(1));
    assert_eq!(arrived.list.take(), [(Some(INLINE_WRITE_HEADER_BYTES), 4000); 2]);
    // The next connection has shorter messages.
    arrived.ignored.set(false);
    world.server.request_bytes_max = 4400;
    world.lose();
    world.run_all(&tags);
    assert!(tags.iter().all(|tag| status(&world.done[tag]) == Status::Ok));
    assert_eq!(arrived.list.take(), [(None, 4000); 2]);
    assert_eq!(world.server.file[10_000..14_000], data);
}

#[test]
fn a_real_server_gets_all_padded_data() {
    for (served, client) in on_each_transport_with(|options| options.inline_padding = true) {
        let options = OpenOptions::read_write().create(Create::New).mode(0o640);
        let file = client.open(b"/file", &options).unwrap();
        let (mut expected, stability) = (Vec::<u8>::new(), Stability::DataSync);
        for len in [1, 100, 4096, 8192, 8193] {
            let data = pattern(len);
            let offset = file.append(&data, stability).unwrap();
            assert_eq!(offset, expected.len() as u64);
            expected.extend(&data);
            let written = file.write_at(&data, expected.len() as u64, stability).unwrap();
            assert_eq!(written, len);
            expected.extend(&data);
            // A chain carries its data inside messages on every transport.
            let (on, offset) = (StepOn::File(&file), expected.len() as u64);
            let step = Step::Write { on, offset, data: &data, stability };
            for result in client.run_steps(&[step]).unwrap() {
                result.unwrap();
            }
            expected.extend(&data);
        }
        assert!(served.content("file") == expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn data_of_any_length_arrives_behind_any_header(
        header in (17..200u32).prop_map(|words| words * 8),
        checksums: bool,
        is_big: bool,
        lens in proptest::collection::vec(1..8193usize, 1..8),
    ) {
        let byte_order = if is_big { ByteOrder::Big } else { ByteOrder::Little };
        let config = SessionConfig {
            byte_order,
            checksums,
            inline_write_header_bytes: header,
            pad_writes: true,
            ..World::config()
        };
        let (mut world, arrived) = world(config);
        for len in lens {
            write_and_append(&mut world, &pattern(len));
            let fits = len + header as usize <= REQUEST_BYTES_PROPOSED as usize;
            assert_eq!(arrived.list.take(), [(fits.then_some(header), len); 2]);
        }
    }
}
