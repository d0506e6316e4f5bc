//! Questions of a client that does not play by the rules, and the pauses between those of one that does.

use super::*;
use crate::core::Failure;
use crate::served::{Served, status};
use crate::{Authentication, Client, Credential, File, OpenOptions, TransportChoice};
use dafs_testkit::eventually;
use dafs_wire::dafs::{EXPOSED_WINDOWS_MAX, ExposedKind, ExposedSegment, StateId};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

fn client(served: &Served) -> Client {
    served.client_with(|options| {
        options.transport = TransportChoice::Shm;
        options.optimistic = true;
    })
}

/// Asks for windows of the file, under any open. `given` is the exposure that the client pretends to know,
/// and the number of segments.
fn ask(
    file: &File,
    state_id: StateId,
    (window, windows): (u64, u32),
    (exposure, known): (u64, u32),
) -> Result<ExposeAnswer> {
    let fh = *file.handle();
    let get = XExposeGet { fh, state_id, window, exposure, windows, known, small: false };
    let shared = file.client().shared();
    shared
        .ask_once(&Request::XExposeGet(get), |reply| Some(ExposeAnswer::of(reply.x_expose_get()?)))
}

/// Asks where a small file is. Names an exposure as known, with no segments of it.
fn ask_small(file: &File, exposure: u64) -> Result<ExposeAnswer> {
    ask_small_or(file, exposure, 1)
}

/// Asks where a small file is, or these windows.
fn ask_small_or(file: &File, exposure: u64, windows: u32) -> Result<ExposeAnswer> {
    let (fh, state_id) = (*file.handle(), file.state_id());
    let (window, known, small) = (0, 0, true);
    let get = XExposeGet { fh, state_id, window, exposure, windows, known, small };
    let shared = file.client().shared();
    shared
        .ask_once(&Request::XExposeGet(get), |reply| Some(ExposeAnswer::of(reply.x_expose_get()?)))
}

/// A server with the user anna, who has the numbers of this process, and a client that proves to be her.
/// Such a client speaks for nobody else.
fn of_anna() -> (tempfile::TempDir, Served, Client) {
    let passwords = tempfile::TempDir::new().unwrap();
    let (path, me) = (passwords.path().join("users"), std::fs::metadata("/proc/self").unwrap());
    let line = dafs_engine::password_line("anna", me.uid(), me.gid(), &[], b"secret");
    std::fs::write(&path, line + "\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let served = Served::with(|setup| {
        setup.optimistic = true;
        setup.auth.password_file = Some(path);
    });
    let anna = served.client_with(|options| {
        options.transport = TransportChoice::Shm;
        options.optimistic = true;
        options.credential = Credential::Session;
        options.authentication =
            Authentication::callback(|| Ok(("anna".to_owned(), "secret".to_owned())));
    });
    (passwords, served, anna)
}

#[test]
fn only_a_client_that_may_speak_for_any_user_is_shown_small_files_together() {
    let (_passwords, served, anna) = of_anna();
    let names: [&[u8]; 2] = [b"one", b"two"];
    for name in ["one", "two"] {
        served.with_file(name, 100);
    }
    let told = |client: &Client, name: &[u8], known: u64| {
        let file = client.open(name, &OpenOptions::read()).unwrap();
        let mut answer = ExposeAnswer::default();
        eventually("the file is shown", || {
            answer = ask_small(&file, known).unwrap();
            answer.exposure != 0
        });
        (file, answer)
    };
    let trusted = client(&served);
    let [(_one, first), (_two, second)] = names.map(|name| told(&trusted, name, 0));
    assert_eq!(first.exposure, second.exposure);
    assert!(first.base != 0 && second.base != 0 && first.base != second.base);
    let window = |answer: &ExposeAnswer| answer.windows[0].window;
    assert_eq!([window(&first), window(&second)], [first.base / 512, second.base / 512]);
    // The other one gets memory of the file alone, also if it names that of all.
    for known in [0, first.exposure] {
        for name in names {
            let (_file, own) = told(&anna, name, known);
            assert!(own.base == 0 && own.exposure != first.exposure);
            let of_all = |number: u32| {
                let is_it = |segment: &&ExposedSegment| segment.number == number;
                first.segments.iter().find(is_it).is_some_and(|it| it.kind != ExposedKind::Life)
            };
            assert!(!own.segments.iter().any(|segment| of_all(segment.number)));
        }
    }
}

#[test]
fn a_question_without_windows_is_about_small_files_alone() {
    let served = Served::with(|setup| setup.optimistic = true);
    served.with_file("small", 100);
    served.with_file("large", (64 << 10) + 1);
    let own = client(&served);
    let file = own.open(b"small", &OpenOptions::read()).unwrap();
    eventually("the file is shown", || ask_small_or(&file, 0, 0).unwrap().base != 0);
    let large = own.open(b"large", &OpenOptions::read()).unwrap();
    let answer = ask_small_or(&large, 0, 0).unwrap();
    assert_eq!((answer.exposure, answer.base, answer.segments.len()), (0, 0, 0));
    assert_eq!(served.exposure_counts().grants, 1);
    assert_eq!(status(ask_small_or(&file, 0, EXPOSED_WINDOWS_MAX as u32 + 1)), Status::Inval);
    assert_eq!(status(ask(&file, file.state_id(), (0, 0), (0, 0))), Status::Inval);
}

#[test]
fn a_client_is_told_of_small_files_only_by_an_open_for_reading() {
    let served = Served::with(|setup| setup.optimistic = true);
    served.with_file("file", 100);
    let own = client(&served);
    let writer = own.open(b"file", &OpenOptions::write()).unwrap();
    assert_eq!(status(ask_small(&writer, 0)), Status::Acces);
    let reader = own.open(b"file", &OpenOptions::read()).unwrap();
    let (handle, id) = (*reader.handle(), reader.state_id());
    reader.close().unwrap();
    let get = XExposeGet {
        fh: handle,
        state_id: id,
        window: 0,
        exposure: 0,
        windows: 1,
        known: 0,
        small: true,
    };
    let closed = own
        .shared()
        .ask_once(&Request::XExposeGet(get), |reply| Some(ExposeAnswer::of(reply.x_expose_get()?)));
    assert_ne!(status(closed), Status::Ok);
    assert_eq!(served.exposure_counts().files, 0);
}

#[test]
fn only_a_reader_of_the_file_is_shown_its_memory() {
    let served = Served::with(|setup| setup.optimistic = true);
    for name in ["file", "other"] {
        served.with_file(name, 3 * BLOCK_BYTES as usize);
    }
    let (own, foreign) = (client(&served), client(&served));
    let open = |client: &Client, name: &[u8], options| client.open(name, &options).unwrap();
    let file = open(&own, b"file", OpenOptions::read());
    let writer = open(&own, b"file", OpenOptions::write());
    let other = open(&own, b"other", OpenOptions::read());
    let theirs = open(&foreign, b"file", OpenOptions::read());
    let refused = |state_id| status(ask(&file, state_id, (0, 1), (0, 0)));
    assert_eq!(refused(writer.state_id()), Status::Acces);
    for strange in [other.state_id(), theirs.state_id(), StateId::ZERO, StateId(*b"no state")] {
        assert_ne!(refused(strange), Status::Ok);
    }
    assert_eq!(served.exposure_counts().grants, 0);
    for windows in [0, EXPOSED_WINDOWS_MAX as u32 + 1] {
        let answer = ask(&file, file.state_id(), (0, windows), (0, 0));
        assert_eq!(status(answer), Status::Inval);
    }
    let closed = file.state_id();
    let again = open(&own, b"file", OpenOptions::read());
    file.close().unwrap();
    assert_ne!(status(ask(&again, closed, (0, 1), (0, 0))), Status::Ok);
}

#[test]
fn an_answer_has_what_the_client_lacks() {
    let served = Served::with(|setup| setup.optimistic = true);
    served.with_file("file", WINDOW_BYTES as usize + 1);
    let own = client(&served);
    let file = own.open(b"file", &OpenOptions::read()).unwrap();
    let mut first = None;
    // The file is not shown while it is being changed.
    eventually("the file is shown", || {
        first = ask(&file, file.state_id(), (0, 64), (0, 0)).ok();
        first.as_ref().is_some_and(|answer| answer.exposure != 0)
    });
    let first = first.unwrap();
    // Behind the end of the file there are no windows.
    let windows: Vec<u64> = first.windows.iter().map(|page| page.window).collect();
    assert_eq!(windows, [0, 1]);
    let kinds: Vec<_> = first.segments.iter().map(|segment| segment.kind).collect();
    assert_eq!(kinds, [ExposedKind::Life, ExposedKind::Index]);
    for window in [2, 1 << 40, u64::MAX] {
        let far = ask(&file, file.state_id(), (window, 64), (0, 0)).unwrap();
        assert!(far.windows.is_empty(), "{window}");
    }
    // Of the exposure that the client knows it gets new segments alone, of another one all.
    let count = |given| ask(&file, file.state_id(), (0, 1), given).unwrap().segments.len();
    let exposure = first.exposure;
    assert_eq!(
        [count((exposure, 2)), count((exposure, 1)), count((exposure, u32::MAX))],
        [0, 1, 0]
    );
    assert_eq!([count((exposure + 1, 2)), count((0, 2))], [2, 2]);
    assert_eq!(served.exposure_counts().grants, 1);
}

/// Reads of a file of 64 windows, here and there. The pauses between questions do not count.
#[test]
fn few_questions_make_a_large_file_known() {
    const WINDOWS: u64 = 64;
    let served = Served::with(|setup| setup.optimistic = true);
    let file = std::fs::File::create(served.path().join("file")).unwrap();
    file.set_len(WINDOWS * WINDOW_BYTES).unwrap();
    let own = client(&served);
    // The file is not shown while it is being changed.
    eventually("few questions are enough", || {
        let file = own.open(b"file", &OpenOptions::read()).unwrap();
        let (opened, mut questions) = (file.opened().clone(), 0);
        let optimistic = &opened.optimistic;
        optimistic.misses.store(OPTIMISTIC_MISSES_BEFORE, Ordering::Relaxed);
        let is_known = |window| {
            let known = optimistic.known.read_here();
            known.as_ref().is_some_and(|known| known.has_page(window))
        };
        // Window 0 is the last: it may be that of a small file.
        for number in 1..=WINDOWS {
            let window = number * 37 % WINDOWS;
            if !is_known(window) {
                optimistic.asking.lock().unwrap().pause = Duration::ZERO;
                let miss = (coarse_now(), BlockRead::Unknown);
                opened.ask_where(window * WINDOW_BYTES, 1, miss);
                questions += 1;
                while optimistic.asking.lock().unwrap().asked.is_some() {
                    let _ = opened.take_answer(coarse_now());
                    std::thread::yield_now();
                }
            }
        }
        file.close().unwrap();
        // About 1, 2, 4, 8, 16, 32 and 64 windows.
        questions == 7 && (0..WINDOWS).all(is_known)
    });
}

#[test]
fn questions_without_an_answer_become_rare() {
    let mut asking = Asking { pause: OPTIMISTIC_ASK_PAUSE_MAX, ..Asking::default() };
    let soon = Instant(0) + OPTIMISTIC_ASK_PAUSE_MIN;
    assert!(asking.is_due(soon, BlockRead::Unknown, true, 7));
    for (outcome, is_shown) in [(BlockRead::Absent, true), (BlockRead::Unknown, false)] {
        assert!(!asking.is_due(soon, outcome, is_shown, 7));
    }
    asking.vain = Some(7);
    assert!(!asking.is_due(soon, BlockRead::Unknown, true, 7));
    assert!(asking.is_due(soon, BlockRead::Unknown, true, 8), "another window");
    assert!(asking.is_due(Instant(0) + OPTIMISTIC_ASK_PAUSE_MAX, BlockRead::Unknown, true, 7));
}

/// The server shows blocks in new segments all the time.
#[test]
fn places_that_are_certainly_new_are_asked_for_at_once() {
    let mut asking = Asking { pause: OPTIMISTIC_ASK_PAUSE_MIN, ..Asking::default() };
    let soon = Instant(0) + OPTIMISTIC_NEWS_PAUSE;
    assert!(!asking.is_due(Instant(0), BlockRead::Unknown, true, 7));
    assert!(asking.is_due(soon, BlockRead::Unknown, true, 7));
    assert!(!asking.is_due(soon, BlockRead::Absent, true, 7));
    // Its answer had nothing, so neither may those about other windows.
    asking.vain = Some(7);
    assert!(!asking.is_due(soon, BlockRead::Unknown, true, 8));
    assert!(asking.is_due(Instant(0) + OPTIMISTIC_ASK_PAUSE_MIN, BlockRead::Unknown, true, 8));
}

#[test]
fn one_question_at_a_time_is_asked_and_its_answer_is_taken_once() {
    let mut asking = Asking::default();
    let late = Instant(0) + 2 * OPTIMISTIC_ASK_PAUSE_MAX;
    assert!(asking.is_due(late, BlockRead::Absent, true, 7));
    let question = ExposeQuestion { exposure: 0, known: 0, connection: 1, windows: 7..=8 };
    let answer = Mailbox::default();
    let asked = Asked {
        question,
        needed: 7..=7,
        was_known: false,
        outcome: BlockRead::Unknown,
        is_first: false,
        is_long: false,
        answer: answer.clone(),
    };
    asking.asked = Some(asked);
    assert!(!asking.is_due(late, BlockRead::Absent, true, 7));
    assert!(asking.take_answered().is_none());
    *answer.lock_here() = Some(Done::Lost(Failure::Closed));
    let (asked, done) = asking.take_answered().unwrap();
    assert!(answer_of(done, &"server".into()).is_err());
    assert!(asking.take_answered().is_none());
    asking.answered(&asked, false, false);
    assert_eq!((asking.vain, asking.pause), (Some(7), OPTIMISTIC_ASK_PAUSE_MIN));
    asking.answered(&asked, false, false);
    assert_eq!(asking.pause, 2 * OPTIMISTIC_ASK_PAUSE_MIN);
    asking.answered(&asked, true, true);
    assert_eq!((asking.vain, asking.pause), (None, OPTIMISTIC_ASK_PAUSE_MIN));
    assert!(asking.is_due(late, BlockRead::Absent, true, 7));
}
