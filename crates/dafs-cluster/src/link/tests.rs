use super::*;
use crate::tls::tests::{End, ends};
use dafs_mem::Mutex;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

/// Answers sizes with the first byte of the component, and executes cuts when the gate opens.
#[derive(Default)]
struct Echo {
    cuts: AtomicU32,
    writes: AtomicU32,
    gate: Option<Mutex<mpsc::Receiver<()>>>,
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
                self.writes.fetch_add(1, Ordering::SeqCst);
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

fn start(end: End, answers: Arc<dyn Answers>) -> Link {
    start_with(end, answers, u64::MAX)
}

fn start_with(End { stream, sender, receiver }: End, answers: Arc<dyn Answers>, max: u64) -> Link {
    Link::start("test", stream, (sender, receiver), answers, max).expect("a link")
}

/// Sends a frame as a peer does that keeps no rules.
fn send(end: &mut End, message: &Frame<'_>) {
    end.sender.send(frame(message), &mut &end.stream).expect("sent");
}

fn size(link: &Link, byte: u8) -> Result<u64, Lost> {
    link.call(Call::Size { component: [byte; 16] }, LIMIT, |answer| match answer {
        Answer::Size(size) => size,
        answer => panic!("{answer:?}"),
    })
}

#[test]
fn both_sides_ask_and_answer_at_once() {
    let (one, two) = ends();
    let one = start(one, Arc::new(Echo::default()));
    let two = start(two, Arc::new(Echo::default()));
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
    let (one, two) = ends();
    let one = start(one, Arc::new(Echo::default()));
    let two = start(two, echo.clone());
    let cut = Call::Cut { component: [0; 16], size: 0 };
    assert_eq!(one.call(cut, Duration::from_millis(50), |_| ()), Err(Lost));
    assert!(one.is_closed());
    assert_eq!(size(&one, 1), Err(Lost));
    two.wait_over();
    assert!(!two.drain(Duration::ZERO));
    open.send(()).expect("the gate");
    assert!(two.drain(LIMIT));
    assert!(echo.cuts.load(Ordering::SeqCst) <= 1);
}

#[test]
fn a_connection_ends_between_the_calls_of_its_peer() {
    let (open, gate) = channel();
    let echo = Arc::new(Echo { gate: Some(Mutex::new(gate)), ..Echo::default() });
    let (mut one, two) = ends();
    let two = start(two, echo);
    send(&mut one, &Frame::Call { id: 0, call: Call::Cut { component: [0; 16], size: 0 } });
    send(&mut one, &Frame::Call { id: 1, call: Call::Size { component: [0; 16] } });
    assert_eq!(next_answer(&mut one), 1);
    assert!(!two.close_between_calls(Duration::ZERO));
    assert!(!two.is_closed());
    open.send(()).expect("the gate");
    assert!(two.close_between_calls(LIMIT));
    assert!(two.is_closed());
    assert_eq!(next_answer(&mut one), 0, "the answer has left before");
}

#[test]
fn a_connection_ends_although_its_peer_asks_on() {
    let (open, gate) = channel();
    let echo = Arc::new(Echo { gate: Some(Mutex::new(gate)), ..Echo::default() });
    let (mut one, two) = ends();
    let two = start(two, echo);
    let cut = |id| Frame::Call { id, call: Call::Cut { component: [0; 16], size: 0 } };
    send(&mut one, &cut(0));
    while two.shared.lock().owed == 0 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| two.close_between_calls(Duration::from_secs(20)));
        while !two.shared.lock().ending {
            std::thread::yield_now();
        }
        // The next call comes before the first is answered.
        send(&mut one, &cut(1));
        std::thread::sleep(Duration::from_millis(50));
        open.send(()).expect("the gate");
        assert!(closed.join().expect("a result"), "the second call was taken");
    });
    assert_eq!(next_answer(&mut one), 0);
}

#[test]
fn calls_that_came_while_a_connection_could_not_end_are_answered() {
    let (open, gate) = channel();
    let echo = Arc::new(Echo { gate: Some(Mutex::new(gate)), ..Echo::default() });
    let (mut one, two) = ends();
    let two = start(two, echo);
    send(&mut one, &Frame::Call { id: 0, call: Call::Cut { component: [0; 16], size: 0 } });
    while two.shared.lock().owed == 0 {
        std::thread::yield_now();
    }
    send(&mut one, &Frame::Call { id: 1, call: Call::Size { component: [0; 16] } });
    assert!(!two.close_between_calls(Duration::from_millis(50)));
    assert_eq!(next_answer(&mut one), 1);
    open.send(()).expect("the gate");
    assert_eq!(next_answer(&mut one), 0);
}

/// A socket that is closed while its peer sends resets the connection.
#[test]
fn the_last_answer_arrives_although_the_peer_sends_on() {
    let echo = Arc::new(Echo::default());
    let (mut one, two) = ends();
    let two = start(two, echo.clone());
    let data = vec![7; 256 << 10];
    let write = Call::Write { component: [0; 16], offset: 0, stable: true, data: &data };
    send(&mut one, &Frame::Call { id: 5, call: write });
    while echo.writes.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // The answer is in the sockets, and has not been read.
    assert!(two.close_between_calls(LIMIT));
    for _ in 0..3 {
        send(&mut one, &Frame::Alive);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(next_answer(&mut one), 5);
    drop(one);
    assert!(two.drain(LIMIT));
}

/// The number of the call whose answer comes next.
fn next_answer(end: &mut End) -> u32 {
    end.stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    loop {
        let message = end.receiver.receive(RECORD_BYTES_MAX, &mut &end.stream).expect("an answer");
        match Frame::decode(&mut Decoder::new(message.body())).expect("a frame") {
            Frame::Answer { id, .. } => break id,
            Frame::Alive => {}
            frame => panic!("{frame:?}"),
        }
    }
}

#[test]
fn calls_that_wait_for_others_delay_no_other_call() {
    let (open, gate) = channel();
    let echo = Arc::new(Echo { gate: Some(Mutex::new(gate)), ..Echo::default() });
    let (mut one, two) = ends();
    let _two = start(two, echo.clone());
    let cuts = WORKERS as u32 + 1;
    for id in 0..cuts {
        let call = Call::Cut { component: [0; 16], size: 0 };
        send(&mut one, &Frame::Call { id, call });
    }
    send(&mut one, &Frame::Call { id: cuts, call: Call::Space });
    let mut next = || next_answer(&mut one);
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
fn a_peer_that_asks_too_much_is_cut_off() {
    let (_open, gate) = channel();
    let echo = Echo { gate: Some(Mutex::new(gate)), ..Echo::default() };
    let (mut one, two) = ends();
    let two = start(two, Arc::new(echo));
    for id in 0..=CALLS_MAX as u32 {
        let call = Call::Cut { component: [0; 16], size: 0 };
        send(&mut one, &Frame::Call { id, call });
    }
    two.wait_over();
}

#[test]
fn an_answer_to_no_call_ends_the_connection() {
    let (mut one, two) = ends();
    let two = start(two, Arc::new(Echo::default()));
    let answer = Frame::Answer { id: 7, answer: Answer::Done };
    send(&mut one, &answer);
    two.wait_over();
}

#[test]
fn clear_bytes_end_the_connection() {
    let (one, two) = ends();
    let two = start(two, Arc::new(Echo::default()));
    let alive = frame(&Frame::Alive);
    (&one.stream).write_all(&alive).expect("sent");
    two.wait_over();
    assert!(two.is_closed());
}

#[test]
fn a_connection_says_when_its_keys_are_spent_and_works_on() {
    let (one, two) = ends();
    let one = start_with(one, Arc::new(Echo::default()), 8);
    let two = start(two, Arc::new(Echo::default()));
    for _ in 0..10 {
        assert_eq!(size(&one, 1), Ok(1));
    }
    one.wait_over();
    assert!(!one.is_closed());
    assert_eq!((size(&one, 2), size(&two, 3)), (Ok(2), Ok(3)));
}
