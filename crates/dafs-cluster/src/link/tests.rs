use super::*;
use crate::secret::ClusterSecret;
use dafs_mem::Mutex;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Answers sizes with the first byte of the component, and executes cuts when the gate opens.
#[derive(Default)]
struct Echo {
    cuts: AtomicU32,
    gate: Option<Mutex<Receiver<()>>>,
}

impl Answers for Echo {
    fn pace(&self, call: &Call<'_>) -> Pace {
        match call {
            Call::Size { .. } => Pace::Quick,
            Call::Cut { .. } => Pace::Others,
            _ => Pace::Device,
        }
    }

    fn answer<'s>(&self, call: &Call<'_>, space: &'s mut Vec<u8>) -> Answer<'s> {
        match call {
            Call::Size { component } => Answer::Size(component[0].into()),
            Call::Write { data, .. } => {
                space.extend(data.iter().rev());
                Answer::Data(space)
            }
            Call::Cut { .. } => {
                if let Some(gate) = &self.gate {
                    let _ = gate.lock().recv();
                }
                self.cuts.fetch_add(1, Ordering::SeqCst);
                Answer::Done
            }
            _ => Answer::Refused(7),
        }
    }
}

const LIMIT: Duration = Duration::from_secs(60);

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (one, listener.accept().expect("accepted").0)
}

fn key(byte: u8) -> ClusterSecret {
    ClusterSecret::from_bytes([byte; 32])
}

fn start(stream: TcpStream, own: u8, other: u8, answers: Arc<dyn Answers>) -> Link {
    let keys = (Sealer::new(key(own)), Opener::new(key(other)));
    Link::start("test", stream, keys, answers).expect("a link")
}

fn size(link: &Link, byte: u8) -> Result<u64, Lost> {
    link.call(Call::Size { component: [byte; 16] }, LIMIT, |answer| match answer {
        Answer::Size(size) => size,
        answer => panic!("{answer:?}"),
    })
}

#[test]
fn both_sides_ask_and_answer_at_once() {
    let (one, two) = sockets();
    let one = start(one, 1, 2, Arc::new(Echo::default()));
    let two = start(two, 2, 1, Arc::new(Echo::default()));
    let data: Vec<u8> = (0..dafs_wire::cluster::DATA_BYTES_MAX).map(|at| at as u8).collect();
    let ask = |link: &Link, byte: u8| {
        for _ in 0..20 {
            assert_eq!(size(link, byte), Ok(byte.into()));
            let write = Call::Write { component: [0; 16], offset: 0, stable: true, data: &data };
            let right = link.call(write, LIMIT, |answer| match answer {
                Answer::Data(back) => back.iter().rev().eq(&data),
                _ => false,
            });
            assert_eq!(right, Ok(true));
        }
        assert_eq!(link.call(Call::Space, LIMIT, |answer| answer == Answer::Refused(7)), Ok(true));
    };
    std::thread::scope(|scope| {
        // Also more calls than may be under way.
        for byte in 0..2 * CALLS_MAX as u8 {
            let link = if byte % 2 == 0 { &one } else { &two };
            scope.spawn(move || size(link, byte).expect("an answer"));
        }
        for (byte, link) in [(1, &one), (2, &one), (3, &two), (4, &two)] {
            scope.spawn(move || ask(link, byte));
        }
    });
}

#[test]
fn an_answer_that_does_not_come_ends_the_connection_and_what_was_asked_ends_before_the_next() {
    let (open, gate) = channel();
    let echo = Arc::new(Echo { gate: Some(Mutex::new(gate)), ..Echo::default() });
    let (one, two) = sockets();
    let one = start(one, 1, 2, Arc::new(Echo::default()));
    let two = start(two, 2, 1, echo.clone());
    let cut = Call::Cut { component: [0; 16], size: 0 };
    assert_eq!(one.call(cut, Duration::from_millis(50), |_| ()), Err(Lost));
    assert!(one.is_closed());
    assert_eq!(size(&one, 1), Err(Lost));
    two.wait_closed();
    assert!(!two.drain(Duration::ZERO));
    open.send(()).expect("the gate");
    assert!(two.drain(LIMIT));
    assert!(echo.cuts.load(Ordering::SeqCst) <= 1);
}

#[test]
fn calls_that_wait_for_others_delay_no_other_call() {
    let (open, gate) = channel();
    let echo = Arc::new(Echo { gate: Some(Mutex::new(gate)), ..Echo::default() });
    let (mut one, two) = sockets();
    let _two = start(two, 2, 1, echo.clone());
    let (mut sealer, mut opener) = (Sealer::new(key(1)), Opener::new(key(2)));
    let cuts = WORKERS as u32 + 1;
    for id in 0..cuts {
        let call = Call::Cut { component: [0; 16], size: 0 };
        one.write_all(&sealer.seal(&Frame::Call { id, call })).expect("sent");
    }
    one.write_all(&sealer.seal(&Frame::Call { id: cuts, call: Call::Space })).expect("sent");
    one.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut next = || loop {
        let record = read_record(&one, SEALED_BYTES_MAX).expect("an answer");
        let message = opener.open(&record).expect("sealed");
        match Frame::decode(&mut Decoder::new(message)).expect("a frame") {
            Frame::Answer { id, .. } => break id,
            Frame::Alive => {}
            frame => panic!("{frame:?}"),
        }
    };
    assert_eq!(next(), cuts);
    let mut answered: Vec<_> = (0..cuts)
        .map(|_| {
            open.send(()).expect("the gate");
            next()
        })
        .collect();
    answered.sort_unstable();
    assert!(answered.into_iter().eq(0..cuts));
    assert_eq!(echo.cuts.load(Ordering::SeqCst), cuts);
}

#[test]
fn a_peer_with_another_key_is_cut_off() {
    let (one, two) = sockets();
    let one = start(one, 1, 2, Arc::new(Echo::default()));
    let two = start(two, 3, 1, Arc::new(Echo::default()));
    assert_eq!(size(&one, 1), Err(Lost));
    two.wait_closed();
}

#[test]
fn a_peer_that_asks_too_much_is_cut_off() {
    let (_open, gate) = channel();
    let echo = Echo { gate: Some(Mutex::new(gate)), ..Echo::default() };
    let (mut one, two) = sockets();
    let two = start(two, 2, 1, Arc::new(echo));
    let mut sealer = Sealer::new(key(1));
    for id in 0..=CALLS_MAX as u32 {
        let call = Call::Cut { component: [0; 16], size: 0 };
        one.write_all(&sealer.seal(&Frame::Call { id, call })).expect("sent");
    }
    two.wait_closed();
}

#[test]
fn an_answer_to_no_call_ends_the_connection() {
    let (mut one, two) = sockets();
    let two = start(two, 2, 1, Arc::new(Echo::default()));
    let answer = Frame::Answer { id: 7, answer: Answer::Done };
    one.write_all(&Sealer::new(key(1)).seal(&answer)).expect("sent");
    two.wait_closed();
}

#[test]
fn a_record_without_end_ends_the_connection() {
    let (mut one, two) = sockets();
    let two = start(two, 2, 1, Arc::new(Echo::default()));
    one.write_all(&u32::MAX.to_be_bytes()).expect("sent");
    two.wait_closed();
}

#[test]
fn an_unauthenticated_peer_that_sends_slowly_is_not_waited_for() {
    let (mut one, two) = sockets();
    let end = Instant::now() + Duration::from_millis(50);
    one.write_all(&[0, 0, 0, 9, 1]).expect("sent");
    let read = read_record_until(&two, 64, end).expect_err("it has not sent all");
    assert!(matches!(read.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{read}");
    one.write_all(&[1]).expect("sent");
    let read = read_record_until(&two, 64, end).expect_err("the time is over");
    assert_eq!(read.kind(), ErrorKind::TimedOut);
    let end = Instant::now() + LIMIT;
    one.write_all(&[0, 0, 0, 2, 7]).expect("sent");
    drop(one);
    let read = read_record_until(&two, 0, end).expect_err("too long");
    assert_eq!(read.kind(), ErrorKind::InvalidData);
}
