//! Files against a scripted server over a real transport: what a well-behaved server never does.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fake;

use dafs_client::{Error, OpenOptions, Status};
use dafs_mem::Site;
use dafs_wire::dafs::{DirectBuffer, Request};
use fake::live::Live;
use fake::{Answer, pattern};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn a_failed_read_leaves_nothing_in_flight() {
    const BYTES: usize = 4 << 20;
    let late = Duration::from_millis(50);
    let live = Live::start(
        move |server| {
            server.file = pattern(BYTES);
            server.script = Box::new(move |_, request| match request {
                Request::ReadDirect(read) if read.offset == 0 => Answer::Status(Status::Io),
                Request::ReadDirect(_) => Answer::After(late),
                _ => Answer::File,
            });
        },
        |_| {},
    );
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let buffer = client.buffer(BYTES).unwrap();
    let error = file.read_into(&buffer, 0..BYTES, 0).unwrap_err();
    assert_eq!(error.status(), Some(Status::Io));
    // The memory is the caller's again.
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
    let live = Live::start(
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
    let client = live.client(|_| {});
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let (mut memory, content) = (vec![0u8; BYTES], pattern(BYTES));
    // SAFETY: the vector outlives the buffer and is not looked at before the buffer is dropped.
    let buffer = unsafe { client.register(memory.as_mut_ptr(), BYTES) }.unwrap();
    assert_eq!(file.read_into(&buffer, 0..BYTES, 0).unwrap(), BYTES);
    let clone = buffer.clone();
    drop(buffer);
    drop(clone);
    strike.store(true, Ordering::Relaxed);
    // Polling submits nothing, so it is the dropping that must have ended the registration.
    let error = loop {
        client.poll_completions(&mut Vec::new());
        if let Err(error) = client.flush() {
            break error;
        }
        assert!(memory == content, "the server got in");
    };
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(memory == content);
}
