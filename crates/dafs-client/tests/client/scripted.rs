//! Files against a scripted server over a real transport, which does what a correct server never
//! does.

use crate::fake::live::Live;
use crate::fake::{Answer, pattern};
use dafs_client::{Error, OpenOptions, Stability, Status, WriteState};
use dafs_mem::Site;
use dafs_wire::dafs::{DirectBuffer, Request};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn a_failed_read_leaves_nothing_in_flight() {
    const BYTES: usize = 4 << 20;
    let late = Duration::from_millis(50);
    let live = Live::start(move |server| {
        server.file = pattern(BYTES);
        server.script = Box::new(move |_, request| match request {
            Request::ReadDirect(read) if read.offset == 0 => Answer::Status(Status::Io),
            Request::ReadDirect(_) => Answer::After(late),
            _ => Answer::File,
        });
    });
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let buffer = client.buffer(BYTES).unwrap();
    let error = file.read_into(&buffer, 0..BYTES, 0).unwrap_err();
    assert_eq!(error.status(), Some(Status::Io));
    // The memory belongs to the caller again.
    buffer.view().fill(0xee);
    std::thread::sleep(3 * late);
    client.ping().unwrap();
    assert!(buffer.view().to_vec(Site::Inspect).iter().all(|&byte| byte == 0xee));
}

#[test]
fn borrowed_memory_is_out_of_reach_once_its_buffer_is_dropped() {
    const BYTES: usize = 64 << 10;
    let named: Arc<Mutex<Option<DirectBuffer>>> = Arc::default();
    let strike = Arc::new(AtomicBool::new(false));
    let (noted, struck) = (named.clone(), strike.clone());
    let live = Live::with_ticks(
        move |server| {
            server.file = pattern(BYTES);
            server.script = Box::new(move |_, request| {
                if let Request::ReadDirect(read) = request {
                    *noted.lock().unwrap() = read.buffers.first();
                }
                Answer::File
            });
        },
        move |server| {
            if struck.swap(false, Ordering::Relaxed) {
                let buffer = named.lock().unwrap().unwrap();
                server.push(&[0x66; BYTES], buffer);
                server.adapter.flush();
            }
        },
    );
    let client = live.client(|options| options.recovery = None);
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let (mut memory, content) = (vec![0u8; BYTES], pattern(BYTES));
    // SAFETY: the vector outlives the buffer and is not read before the buffer is dropped.
    let buffer = unsafe { client.register(memory.as_mut_ptr(), BYTES) }.unwrap();
    assert_eq!(file.read_into(&buffer, 0..BYTES, 0).unwrap(), BYTES);
    let clone = buffer.clone();
    drop(buffer);
    drop(clone);
    let group = client.completion_group();
    strike.store(true, Ordering::Relaxed);
    // Polling submits no request, so the drop must have ended the registration.
    let error = loop {
        group.poll(&mut Vec::new());
        if let Err(error) = client.flush() {
            break error;
        }
        assert!(memory == content, "the server got in");
    };
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(memory == content);
}

#[test]
fn a_delayed_request_is_retried() {
    const BYTES: usize = 2 << 20;
    let live = Live::start(|server| {
        server.file = pattern(BYTES);
        let mut asked = HashMap::new();
        server.script = Box::new(move |_, request| {
            let opening = matches!(
                request,
                Request::ClientConnectAuth(_) | Request::RegisterCred(_) | Request::GetFsAttr(_)
            );
            let count = asked.entry(request.procedure()).or_insert(0);
            *count += 1;
            match (opening, request, *count) {
                (false, Request::GetRootHandle | Request::Disconnect, _) => Answer::File,
                (false, _, 1..=3) => Answer::Status(Status::Delay),
                _ => Answer::File,
            }
        });
    });
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::read_write()).unwrap();
    let mut found = vec![0; BYTES];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), BYTES);
    assert!(found == pattern(BYTES));
    let buffer = client.buffer(BYTES).unwrap();
    assert_eq!(file.read_into(&buffer, 0..100, 0).unwrap(), 100, "inline");
    assert_eq!(file.read_into(&buffer, 0..BYTES, 0).unwrap(), BYTES);
    assert_eq!(file.write_at(&found[..100], 0, Stability::Unstable).unwrap(), 100);
    assert_eq!(file.write_from(&buffer, 0..BYTES, 0, Stability::Unstable).unwrap(), BYTES);
    file.commit(0, 0).unwrap();
    file.close().unwrap();
}

#[test]
fn a_server_without_extended_attributes_is_no_file_without_any() {
    let live = Live::start(|_| {});
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let error = client.xattr_names(file.handle()).unwrap_err();
    assert_eq!(error.status(), Some(Status::NotSupp), "{error}");
    client.ping().unwrap();
}

#[test]
fn a_request_delayed_for_ever_is_given_up() {
    let live = Live::scripted(|_, request| match request {
        Request::Open(_) => Answer::Status(Status::Delay),
        _ => Answer::File,
    });
    let client = live.client(|options| options.deadline = Some(Duration::from_secs(1)));
    let error = client.open(b"file", &OpenOptions::read()).unwrap_err();
    assert_eq!(error.status(), Some(Status::Delay), "{error}");
    client.ping().unwrap();
}

/// A server of unstable writes, and a function that makes it lose them: it has another verifier
/// then.
fn losing_writes() -> (Live, impl Fn()) {
    let change = Arc::new(AtomicBool::new(false));
    let changed = change.clone();
    let live = Live::with_ticks(
        |server| server.committed = Stability::Unstable,
        move |server| {
            if changed.load(Ordering::Relaxed) {
                server.verifier.0[0] ^= 1;
                changed.store(false, Ordering::Relaxed);
            }
        },
    );
    let lose = move || {
        change.store(true, Ordering::Relaxed);
        while change.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    };
    (live, lose)
}

#[test]
fn a_retaining_writer_hears_the_verifier() {
    let (live, lose_writes) = losing_writes();
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::write()).unwrap();
    let buffer = client.buffer(4096).unwrap();
    let first = file.write_retained(&buffer, 0..4096, 0).unwrap();
    let WriteState::Unstable(verifier) = first else { panic!("{first:?}") };
    assert_eq!(client.commit(file.handle()).unwrap(), verifier);
    lose_writes();
    assert_ne!(client.commit(file.handle()).unwrap(), verifier);
    assert_ne!(file.write_retained(&buffer, 0..4096, 0).unwrap(), first);
    // The file itself has no loss to report.
    file.close().unwrap();
}

#[test]
fn every_file_hears_of_its_lost_writes() {
    let (live, lose_writes) = losing_writes();
    let client = live.client(|_| {});
    let open = || client.open(b"file", &OpenOptions::write()).unwrap();
    let (first, second, third) = (open(), open(), open());
    for file in [&first, &second] {
        file.write_at(b"data", 0, Stability::Unstable).unwrap();
    }
    lose_writes();
    third.write_at(b"data", 0, Stability::Unstable).unwrap();
    for file in [&first, &second] {
        assert!(matches!(file.commit(0, 0), Err(Error::WritesLost)));
        file.commit(0, 0).unwrap();
    }
    third.commit(0, 0).unwrap();
}

#[test]
fn a_file_that_is_dropped_when_all_is_full_is_closed_later() {
    let hold = Arc::new(AtomicBool::new(false));
    let closes = Arc::new(AtomicUsize::new(0));
    let (held, counted) = (hold.clone(), closes.clone());
    let live = Live::with_ticks(
        move |server| {
            server.file = pattern(8);
            server.script = Box::new(move |_, request| {
                if let Request::Close(_) = request {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                Answer::File
            });
        },
        move |server| match (held.load(Ordering::Relaxed), server.hold) {
            (true, _) => server.hold = true,
            (false, true) => server.release(),
            _ => {}
        },
    );
    let client = live.client(|_| {});
    let open = || client.open(b"file", &OpenOptions::read()).unwrap();
    let (file, other) = (open(), open());
    let buffer = client.buffer(8).unwrap();
    hold.store(true, Ordering::Relaxed);
    let group = client.completion_group();
    let mut tags = 0;
    while group.read(tags, &file, &buffer, 0..8, 0).is_ok() {
        tags += 1;
        // The server may not have held back a reply yet.
        if tags.is_multiple_of(64) {
            group.poll(&mut Vec::new());
        }
    }
    drop(other);
    hold.store(false, Ordering::Relaxed);
    while closes.load(Ordering::Relaxed) == 0 {
        group.poll(&mut Vec::new());
    }
    drop(file);
    drop(client);
}
