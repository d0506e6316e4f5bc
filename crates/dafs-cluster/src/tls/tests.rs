use super::*;
use std::net::{Shutdown, TcpListener};

const LIMIT: Duration = Duration::from_secs(60);

/// One end of a connection after the handshake of TLS.
pub(crate) struct End {
    pub(crate) stream: TcpStream,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

pub(crate) fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (one, listener.accept().expect("accepted").0)
}

fn line(stream: &TcpStream) -> Line<'_> {
    Line { stream, end: Instant::now() + LIMIT }
}

/// A metadata server's end and a data server's, with the binding of each.
fn secured() -> ((End, Binding), (End, Binding)) {
    let (one, two) = sockets();
    let side = server_side().expect("a key");
    let (client, server) = std::thread::scope(|scope| {
        let server = scope.spawn(|| accept(&side, &mut line(&two)).expect("TLS"));
        (connect(&mut line(&one)).expect("TLS"), server.join().expect("a thread"))
    });
    let end =
        |stream, Secured { sender, receiver, binding }| (End { stream, sender, receiver }, binding);
    (end(one, client), end(two, server))
}

pub(crate) fn ends() -> (End, End) {
    let ((one, _), (two, _)) = secured();
    (one, two)
}

/// A reader that gives a few bytes at a time.
struct Slowly<'b>(&'b [u8], usize);

impl Read for Slowly<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(bytes.len()).min(self.0.len());
        let (now, later) = self.0.split_at(count);
        bytes[..count].copy_from_slice(now);
        self.0 = later;
        Ok(count)
    }
}

fn message(len: usize) -> Vec<u8> {
    let content = (0..len).map(|at| (at / 3) as u8);
    std::iter::repeat_n(0, LENGTH_BYTES).chain(content).collect()
}

#[test]
fn both_ends_know_one_binding_and_every_connection_has_its_own() {
    let ((_, one), (_, other)) = secured();
    assert_eq!(one, other);
    assert_ne!(secured().0.1, one);
}

#[test]
fn messages_of_all_sizes_come_back_in_any_pieces() {
    let sizes = [0, 1, 3, 4, 100, PLAIN_BYTES_MAX, 3 * PLAIN_BYTES_MAX - LENGTH_BYTES, 200_000];
    for piece in [1, 2, 7, 1000, usize::MAX] {
        let (mut one, mut two) = ends();
        let mut wire = Vec::new();
        for size in sizes {
            one.sender.send(message(size), &mut wire).expect("sent");
        }
        let mut from = Slowly(&wire, piece);
        for size in sizes {
            let got = two.receiver.receive(200_000, &mut from).expect("a message");
            assert!(got.body() == &message(size)[LENGTH_BYTES..], "{size} in pieces of {piece}");
        }
        let end = two.receiver.receive(200_000, &mut from).expect_err("nothing more");
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(one.sender.records(), two.receiver.records());
    }
}

#[test]
fn messages_that_share_records_are_told_apart() {
    let (mut one, mut two) = ends();
    let mut framed = Vec::new();
    for size in [5_u8, 0, 9] {
        framed.extend_from_slice(&u32::from(size).to_be_bytes());
        framed.extend((0..size).map(|at| at + size));
    }
    let mut wire = vec![0; sealed_bytes(framed.len())];
    one.sender.sealer.seal(&[&framed], &mut wire).expect("sealed");
    for size in [5_u8, 0, 9] {
        let got = two.receiver.receive(9, &mut &wire[..]).expect("a message");
        wire.clear();
        assert!(got.body().iter().copied().eq((0..size).map(|at| at + size)));
    }
}

#[test]
fn a_message_that_is_too_long_ends_the_connection_before_it_comes() {
    let (mut one, mut two) = ends();
    let mut wire = Vec::new();
    one.sender.send(message(65), &mut wire).expect("sent");
    let long = two.receiver.receive(64, &mut &wire[..]).expect_err("too long");
    assert_eq!(long.kind(), ErrorKind::InvalidData);
}

#[test]
fn records_that_are_changed_repeated_or_missing_end_the_connection() {
    let made = |one: &mut End| {
        let mut wire = Vec::new();
        one.sender.send(message(2), &mut wire).expect("sent");
        wire
    };
    let bytes = made(&mut ends().0).len();
    for at in 0..bytes {
        let (mut one, mut two) = ends();
        let mut wire = made(&mut one);
        wire[at] ^= 1;
        assert!(two.receiver.receive(64, &mut &wire[..]).is_err(), "byte {at}");
    }
    let (mut one, mut two) = ends();
    let (first, second) = (made(&mut one), made(&mut one));
    two.receiver.receive(64, &mut &first[..]).expect("the first");
    two.receiver.receive(64, &mut &[&first[..], &second].concat()[..]).expect_err("a replay");
    let (mut one, mut two) = ends();
    made(&mut one);
    two.receiver.receive(64, &mut &made(&mut one)[..]).expect_err("the first is missing");
    // Nor has a connection records of another one.
    let (mut one, mut two) = (ends().0, ends().1);
    two.receiver.receive(64, &mut &made(&mut one)[..]).expect_err("of another connection");
}

#[test]
fn a_peer_without_tls_gets_an_answer_that_older_versions_understand() {
    let (mut one, two) = sockets();
    one.write_all(&[0, 0, 0, 60, 0x64]).expect("sent");
    let side = server_side().expect("a key");
    let error = accept(&side, &mut line(&two)).err().expect("no TLS");
    assert!(error.to_string().contains("the same version"), "{error}");
    drop(two);
    let mut answer = Vec::new();
    // The unread bytes may reset the connection behind the answer.
    let _ = one.read_to_end(&mut answer);
    assert_eq!(answer, [0; LENGTH_BYTES]);
}

#[test]
fn a_data_server_without_tls_is_reported_with_the_remedy() {
    let (one, mut two) = sockets();
    let error = std::thread::scope(|scope| {
        scope.spawn(move || {
            // It takes the first bytes for a length.
            two.read_exact(&mut [0; 4]).expect("a length");
            let _ = two.shutdown(Shutdown::Both);
        });
        connect(&mut line(&one)).err().expect("no TLS")
    });
    assert!(error.to_string().contains("the same version"), "{error}");
}

#[test]
fn a_peer_that_sends_slowly_is_not_waited_for() {
    let (mut one, two) = sockets();
    let side = server_side().expect("a key");
    let short = || {
        let line = &mut Line { stream: &two, end: Instant::now() + Duration::from_millis(50) };
        match accept(&side, line).err().expect("it has not sent all") {
            TlsError::Io(error) => error.kind(),
            error => panic!("{error}"),
        }
    };
    one.write_all(&[CLIENT_HELLO_FIRST_BYTE, 3, 1, 1, 0, 1]).expect("sent");
    assert!(matches!(short(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    let line = &mut Line { stream: &two, end: Instant::now() };
    one.write_all(&[CLIENT_HELLO_FIRST_BYTE]).expect("sent");
    assert_eq!(line.read(&mut [0]).expect_err("the time is over").kind(), ErrorKind::TimedOut);
}
