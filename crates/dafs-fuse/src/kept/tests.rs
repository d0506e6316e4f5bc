//! Files of a server that loses unstable data whenever a test says so.

use super::file::{Failure, Queue, RetainedFile, Store};
use super::memory::Memory;
use crate::kernel::Errno;
use crate::limits::{KEPT_BYTES_MAX, KEPT_PIECE_COST, KEPT_UNCOPIED_MIN, WRITE_BYTES_MAX};
use dafs_client::{Verifier, WriteState};
use dafs_mem::{Buffer, Site};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

mod orders;

/// One file at the server.
#[derive(Debug, Default)]
struct Inner {
    content: Vec<u8>,
    stable: Vec<u8>,
    run: u64,
    commits: usize,
    writes: usize,
    /// So many operations succeed before one fails so, and the server has lost all unstable data.
    fails_after: Option<(usize, Option<Failure>)>,
    is_locked_out: bool,
    /// The number of writes after which it is locked out.
    locks_out_after: Option<usize>,
    /// The next COMMIT fails temporarily, and no data is lost.
    puts_commit_off: bool,
    /// The offset of the next write that is refused.
    refuses_at: Option<u64>,
    writes_stably: bool,
    /// Runs between the arrival of the next COMMIT and its execution.
    in_commit: Option<Meanwhile>,
}

struct Meanwhile(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

#[derive(Debug, Clone, Default)]
struct Fake(Arc<Mutex<Inner>>);

impl Inner {
    fn crash(&mut self) {
        self.content = self.stable.clone();
        self.run += 1;
    }

    fn verifier(&self) -> Verifier {
        Verifier(self.run.to_ne_bytes())
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        let len = self.content.len().max(end);
        self.content.resize(len, 0);
        self.content[offset as usize..end].copy_from_slice(bytes);
    }

    fn cut(&mut self, size: usize) {
        self.content.resize(size, 0);
        // A truncation is stable when it is answered, but earlier writes need not be.
        self.stable.resize(size, 0);
    }
}

impl Fake {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    fn begin(&self) -> Result<MutexGuard<'_, Inner>, Failure> {
        let mut inner = self.lock();
        match &mut inner.fails_after {
            Some((0, failure)) => {
                let failure = *failure;
                inner.fails_after = None;
                inner.crash();
                failure.map_or(Ok(()), Err)?;
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
        Ok(inner)
    }
}

impl Store for Fake {
    type Writer = ();
    type Buffer = Buffer;

    fn write(
        &self,
        (): &(),
        from: &Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<WriteState, Failure> {
        let bytes = from.slice(range.start, range.len()).unwrap().to_vec(Site::Inspect);
        let mut inner = self.begin()?;
        if inner.refuses_at.take_if(|at| *at == offset).is_some() {
            return Err(Failure::Final(Errno::ENOSYS));
        }
        inner.put(offset, &bytes);
        inner.writes += 1;
        inner.is_locked_out |= inner.locks_out_after.is_some_and(|count| inner.writes >= count);
        if inner.writes_stably {
            inner.stable = inner.content.clone();
            return Ok(WriteState::Stable);
        }
        Ok(WriteState::Unstable(inner.verifier()))
    }

    fn write_stably(&self, (): &(), from: &Buffer, len: usize, offset: u64) -> Result<(), Failure> {
        let bytes = from.slice(0, len).unwrap().to_vec(Site::Inspect);
        let mut inner = self.begin()?;
        inner.put(offset, &bytes);
        let end = offset as usize + len;
        let stable = inner.stable.len().max(end);
        inner.stable.resize(stable, 0);
        inner.stable[offset as usize..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn commit(&self) -> Result<Verifier, Failure> {
        let meanwhile = self.lock().in_commit.take();
        if let Some(Meanwhile(act)) = meanwhile {
            act();
        }
        let mut inner = self.begin()?;
        if std::mem::take(&mut inner.puts_commit_off) {
            return Err(Failure::Passing(Errno::EAGAIN));
        }
        inner.stable = inner.content.clone();
        inner.commits += 1;
        Ok(inner.verifier())
    }

    fn buffer(&self) -> Result<Buffer, Failure> {
        Buffer::zeroed(WRITE_BYTES_MAX as usize).map_err(|_| Failure::Passing(Errno::ENOMEM))
    }

    fn may_write_again(&self) -> bool {
        !self.lock().is_locked_out
    }

    fn size(&self) -> Option<u64> {
        Some(self.lock().content.len() as u64)
    }

    fn restarts(&self) -> u64 {
        self.lock().run
    }
}

#[derive(Default)]
struct Mount {
    memory: Arc<Memory<Buffer>>,
    queue: Arc<Queue<Fake>>,
}

impl Mount {
    fn open(&self) -> (Fake, Arc<RetainedFile<Fake>>) {
        let fake = Fake::default();
        (fake.clone(), RetainedFile::new(fake, self.memory.clone(), self.queue.clone()))
    }
}

fn opened() -> (Mount, Fake, Arc<RetainedFile<Fake>>) {
    let mount = Mount::default();
    let (server, file) = mount.open();
    (mount, server, file)
}

/// The buffer of one thread.
struct Room(Buffer);

impl Room {
    fn new() -> Self {
        Self(Buffer::zeroed(WRITE_BYTES_MAX as usize).unwrap())
    }

    fn with(&mut self, bytes: &[u8]) -> &mut Buffer {
        self.0.view().copy_from(bytes, Site::Inspect);
        &mut self.0
    }

    fn write(&mut self, file: &RetainedFile<Fake>, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        file.write(&(), self.with(bytes), bytes.len(), offset)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn lost_data_is_written_again_without_an_error() {
    let (mount, server, file) = opened();
    let mut seen = file.seen();
    let mut room = Room::new();
    room.write(&file, 0, b"first").unwrap();
    room.write(&file, 100, &vec![7; KEPT_UNCOPIED_MIN]).unwrap();
    room.write(&file, 3, b"XX").unwrap();
    server.lock().crash();
    assert!(server.lock().content.is_empty());
    file.settle().unwrap();
    file.told(&mut seen).unwrap();
    server.lock().crash();
    let content = server.lock().content.clone();
    assert_eq!(&content[..5], b"firXX");
    assert_eq!(&content[100..], &vec![7; KEPT_UNCOPIED_MIN]);
    // Once it is stable no request is sent, and nothing is retained.
    let commits = server.lock().commits;
    file.settle().unwrap();
    assert_eq!((server.lock().commits, mount.memory.used_bytes()), (commits, 0));
}

#[test]
fn a_later_write_that_finds_a_new_server_brings_back_the_earlier_ones() {
    let (_mount, server, file) = opened();
    let mut room = Room::new();
    room.write(&file, 0, b"early").unwrap();
    server.lock().crash();
    room.write(&file, 5, b" late").unwrap();
    assert_eq!(server.lock().content, b"early late");
}

#[test]
fn a_read_after_a_restart_returns_the_written_bytes() {
    let (_mount, server, file) = opened();
    Room::new().write(&file, 0, b"data").unwrap();
    assert!(!file.is_in_doubt());
    server.lock().crash();
    assert!(file.is_in_doubt());
    file.settle_after_restart().unwrap();
    assert!(!file.is_in_doubt());
    assert_eq!(server.lock().content, b"data");
}

#[test]
fn each_open_hears_of_a_loss_once() {
    let final_failure = Some(Failure::Final(Errno::ENOSYS));
    for (fails_after, is_locked_out, reason) in [
        // COMMIT; the write after it; no request at all, because others may have written.
        (Some((0, final_failure)), false, Errno::ENOSYS),
        (Some((1, final_failure)), false, Errno::ENOSYS),
        (None, true, Errno::EIO),
    ] {
        let (mount, server, file) = opened();
        let (mut one, mut two) = (file.seen(), file.seen());
        Room::new().write(&file, 0, b"data").unwrap();
        server.lock().crash();
        server.lock().fails_after = fails_after;
        server.lock().is_locked_out = is_locked_out;
        file.settle().unwrap();
        assert_eq!(file.told(&mut one), Err(reason));
        assert_eq!(file.told(&mut one), Ok(()));
        assert_eq!(file.told(&mut two), Err(reason));
        assert_eq!(file.told(&mut file.seen()), Ok(()), "who opens it later");
        assert_eq!(mount.memory.used_bytes(), 0);
        // From here on the file works again.
        server.lock().is_locked_out = false;
        Room::new().write(&file, 0, b"again").unwrap();
        file.settle().unwrap();
        assert_eq!((file.told(&mut one), file.told(&mut two)), (Ok(()), Ok(())));
        assert_eq!(server.lock().stable, b"again");
    }
}

#[test]
fn a_close_reports_a_loss_and_leaves_it_reportable() {
    let (_mount, server, file) = opened();
    let mut seen = file.seen();
    Room::new().write(&file, 0, b"data").unwrap();
    server.lock().crash();
    server.lock().is_locked_out = true;
    file.settle().unwrap();
    assert_eq!(file.tell(seen), Err(Errno::EIO));
    assert_eq!(file.tell(seen), Err(Errno::EIO));
    assert_eq!(file.told(&mut seen), Err(Errno::EIO));
    assert_eq!((file.tell(seen), file.told(&mut seen)), (Ok(()), Ok(())));
}

#[test]
fn an_append_comes_behind_what_a_restart_has_lost() {
    let (mount, server, file) = opened();
    let mut room = Room::new();
    room.write(&file, 0, &[7; 100]).unwrap();
    server.lock().crash();
    let append = |_: &Buffer| {
        let mut inner = server.lock();
        let end = inner.content.len() as u64;
        inner.put(end, b"end");
        inner.stable = inner.content.clone();
        Ok(end)
    };
    file.append(room.with(b"end"), 3, append).unwrap();
    let content = server.lock().stable.clone();
    assert_eq!((&content[..100], &content[100..]), (&[7; 100][..], &b"end"[..]));
    assert_eq!(mount.memory.used_bytes(), 0);
}

#[test]
fn a_commit_covers_no_write_begun_during_it() {
    let (_mount, server, file) = opened();
    let mut room = Room::new();
    room.write(&file, 0, b"before").unwrap();
    // During the commit a thread writes, and then the server restarts.
    let (writing, other) = (file.clone(), server.clone());
    server.lock().in_commit = Some(Meanwhile(Box::new(move || {
        Room::new().write(&writing, 6, b" while").unwrap();
        other.lock().crash();
    })));
    file.settle().unwrap();
    assert!(server.lock().stable.starts_with(b"before"), "it was said to be stable");
    file.settle().unwrap();
    assert_eq!(server.lock().stable, b"before while");
}

#[test]
fn a_rewrite_may_be_stable_at_once() {
    let (mount, server, file) = opened();
    let mut seen = file.seen();
    Room::new().write(&file, 0, b"data").unwrap();
    server.lock().crash();
    server.lock().writes_stably = true;
    file.settle().unwrap();
    file.told(&mut seen).unwrap();
    let inner = server.lock();
    assert_eq!((inner.writes, &inner.stable[..]), (2, &b"data"[..]));
    drop(inner);
    assert!(mount.queue.all().is_empty());
    assert_eq!(mount.memory.used_bytes(), 0);
}

#[test]
fn a_rewrite_before_a_failure_is_committed_too() {
    let (mount, server, file) = opened();
    let mut room = Room::new();
    for offset in [0, 100, 200] {
        room.write(&file, offset, b"piece").unwrap();
    }
    server.lock().crash();
    // COMMIT, two writes, and then the server is unreachable.
    server.lock().fails_after = Some((3, Some(Failure::Passing(Errno::ENOLCK))));
    assert_eq!(file.settle(), Err(Errno::ENOLCK));
    file.resize(150, || {
        server.lock().cut(150);
        Ok(())
    })
    .unwrap();
    file.settle().unwrap();
    server.lock().crash();
    let content = server.lock().content.clone();
    assert_eq!((&content[..5], &content[100..105]), (&b"piece"[..], &b"piece"[..]));
    assert_eq!(mount.memory.used_bytes(), 0);
}

#[test]
fn a_server_that_is_away_for_a_time_costs_nothing() {
    for operations in 0..3 {
        let (_mount, server, file) = opened();
        let mut room = Room::new();
        let mut seen = file.seen();
        room.write(&file, 0, b"one").unwrap();
        room.write(&file, 10, &vec![3; KEPT_UNCOPIED_MIN]).unwrap();
        server.lock().crash();
        server.lock().fails_after = Some((operations, Some(Failure::Passing(Errno::ENOLCK))));
        assert_eq!(file.settle(), Err(Errno::ENOLCK));
        file.settle().unwrap();
        file.told(&mut seen).unwrap();
        assert_eq!(&server.lock().stable[..3], b"one");
        assert_eq!(server.lock().stable.len(), 10 + KEPT_UNCOPIED_MIN);
    }
}

#[test]
fn nothing_is_written_after_a_lock_is_given_up() {
    let (_mount, server, file) = opened();
    let mut seen = file.seen();
    Room::new().write(&file, 0, b"mine").unwrap();
    assert_eq!(file.unlock(|| ()), (Ok(()), ()));
    server.lock().put(0, b"your");
    server.lock().crash();
    server.lock().stable = b"your".to_vec();
    server.lock().crash();
    file.settle().unwrap();
    assert_eq!(server.lock().content, b"your");
    // Also when the server is unreachable at that moment.
    Room::new().write(&file, 0, b"mine").unwrap();
    server.lock().fails_after = Some((0, Some(Failure::Passing(Errno::ENOLCK))));
    assert_eq!(file.unlock(|| ()), (Err(Errno::ENOLCK), ()));
    file.settle().unwrap();
    assert_eq!(server.lock().content, b"your");
    assert_eq!(file.told(&mut seen), Err(Errno::EIO));
    // A later write is retained by itself.
    Room::new().write(&file, 0, b"mine").unwrap();
    server.lock().puts_commit_off = true;
    file.unlock(|| ()).0.unwrap_err();
    Room::new().write(&file, 4, b"later").unwrap();
    server.lock().crash();
    file.settle().unwrap();
    assert_eq!(server.lock().content, b"yourlater");
    assert_eq!(file.told(&mut seen), Err(Errno::EIO));
}

#[test]
fn a_lock_that_is_given_up_while_the_server_puts_off_a_commit_costs_nothing() {
    let (mount, server, file) = opened();
    let mut seen = file.seen();
    Room::new().write(&file, 0, b"data").unwrap();
    server.lock().puts_commit_off = true;
    assert_eq!(file.unlock(|| ()), (Err(Errno::EAGAIN), ()));
    assert_eq!(file.told(&mut seen), Ok(()));
    file.settle().unwrap();
    assert_eq!((file.told(&mut seen), &server.lock().stable[..]), (Ok(()), &b"data"[..]));
    assert_eq!(mount.memory.used_bytes(), 0);
}

#[test]
fn an_append_is_done_once() {
    let (_mount, server, file) = opened();
    let mut room = Room::new();
    room.write(&file, 0, b"aaaa").unwrap();
    // Another client has truncated the file meanwhile.
    server.lock().cut(2);
    let append = |_: &Buffer| {
        let mut inner = server.lock();
        inner.put(2, b"bb");
        inner.stable = inner.content.clone();
        Ok(2)
    };
    file.append(room.with(b"bb"), 2, append).unwrap();
    server.lock().crash();
    file.settle().unwrap();
    assert_eq!(server.lock().stable, b"aabb");
}

#[test]
fn a_server_that_loses_all_for_ever_is_not_asked_for_ever() {
    #[derive(Debug)]
    struct Forgetful(Fake);
    impl Store for Forgetful {
        type Writer = ();
        type Buffer = Buffer;
        fn write(
            &self,
            writer: &(),
            from: &Buffer,
            range: Range<usize>,
            offset: u64,
        ) -> Result<WriteState, Failure> {
            self.0.write(writer, from, range, offset)
        }
        fn write_stably(&self, _: &(), _: &Buffer, _: usize, _: u64) -> Result<(), Failure> {
            Ok(())
        }
        fn commit(&self) -> Result<Verifier, Failure> {
            self.0.lock().crash();
            self.0.commit()
        }
        fn buffer(&self) -> Result<Buffer, Failure> {
            self.0.buffer()
        }
        fn may_write_again(&self) -> bool {
            true
        }
        fn size(&self) -> Option<u64> {
            None
        }
        fn restarts(&self) -> u64 {
            0
        }
    }
    let file = RetainedFile::new(Forgetful(Fake::default()), Arc::default(), Arc::default());
    let mut seen = file.seen();
    file.write(&(), Room::new().with(b"data"), 4, 0).unwrap();
    file.settle().unwrap();
    assert_eq!(file.told(&mut seen), Err(Errno::EIO));
}

#[test]
fn no_more_is_kept_than_may_be_whoever_writes() {
    let mount = Mount::default();
    let files: Vec<_> = (0..300).map(|_| mount.open()).collect();
    let mut room = Room::new();
    let long = vec![1; KEPT_UNCOPIED_MIN];
    let mut random = Random(77);
    for turn in 0..400_000_u64 {
        let (_, file) = &files[random.below(files.len())];
        // Far apart, so that the overhead is largest.
        room.write(file, 2 * (turn % 5000), b"x").unwrap();
        if turn % 1000 == 0 {
            room.write(file, 0, &long).unwrap();
        }
        assert!(mount.memory.used_bytes() <= KEPT_BYTES_MAX + KEPT_PIECE_COST);
    }
    assert!(files.iter().any(|(server, _)| server.lock().commits > 0));
    // A file that cannot be made stable stops neither the others, nor itself.
    for (server, _) in &files {
        server.lock().fails_after = Some((0, Some(Failure::Passing(Errno::ENOLCK))));
    }
    mount.memory.charge(KEPT_BYTES_MAX - mount.memory.used_bytes()).unwrap().set(0);
    let full = std::iter::from_fn(|| mount.memory.charge(KEPT_PIECE_COST)).collect::<Vec<_>>();
    let (server, file) = mount.open();
    room.write(&file, 0, b"through").unwrap();
    assert_eq!(server.lock().stable, b"through");
    drop(full);
}

#[test]
fn a_stable_write_is_not_retained() {
    let (mount, server, file) = opened();
    server.lock().writes_stably = true;
    Room::new().write(&file, 0, b"data").unwrap();
    file.settle().unwrap();
    assert_eq!((server.lock().commits, mount.memory.used_bytes()), (0, 0));
}

/// Random changes and crashes, compared with an array.
#[test]
fn crashes_change_nothing() {
    const FILE_BYTES: usize = 3 * KEPT_UNCOPIED_MIN;
    for seed in 1..=20 {
        let (mount, server, file) = opened();
        let mut seen = file.seen();
        let (mut random, mut room, mut model) =
            (Random(seed * 0x9e37_79b9), Room::new(), Vec::new());
        for turn in 0..300_u32 {
            let offset = random.below(FILE_BYTES);
            let len = match random.below(4) {
                0 => KEPT_UNCOPIED_MIN + random.below(1000),
                _ => 1 + random.below(3000),
            };
            let bytes = vec![turn as u8; len];
            let write = |model: &mut Vec<u8>| {
                let end = model.len().max(offset + len);
                model.resize(end, 0);
                model[offset..offset + len].copy_from_slice(&bytes);
            };
            match random.below(12) {
                0 => server.lock().crash(),
                1 => file.settle().unwrap(),
                2 => {
                    let size = offset;
                    let change = || {
                        server.lock().cut(size);
                        Ok(())
                    };
                    file.resize(size as u64, change).unwrap();
                    model.resize(size, 0);
                }
                3 => {
                    file.write_stably(&(), room.with(&bytes), len, offset as u64).unwrap();
                    write(&mut model);
                }
                4 => {
                    // In the middle of the retransmission.
                    server.lock().crash();
                    server.lock().fails_after = Some((1 + random.below(5), None));
                    file.settle().unwrap();
                    server.lock().fails_after = None;
                }
                _ => {
                    room.write(&file, offset as u64, &bytes).unwrap();
                    write(&mut model);
                }
            }
        }
        file.settle().unwrap();
        file.told(&mut seen).unwrap();
        server.lock().crash();
        // Missing bytes at the end are zeros that were never written.
        let mut found = server.lock().content.clone();
        found.resize(model.len(), 0);
        assert!(found == model, "seed {seed}");
        assert_eq!(mount.memory.used_bytes(), 0);
    }
}

#[test]
fn several_write_while_the_server_crashes_and_others_make_it_stable() {
    const THREADS: usize = 4;
    const TURNS: usize = 300;
    // So often that data is lost, and not before all of it can have been retransmitted.
    const CRASH_EVERY: usize = 2 * 50 * THREADS;
    let (_mount, server, file) = opened();
    let mut seen = file.seen();
    let (left, crashes) = (AtomicUsize::new(THREADS), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (file, left, crashes) = (&file, &left, &crashes);
            scope.spawn(move || {
                let mut room = Room::new();
                for turn in 0..TURNS {
                    while turn == TURNS / 2 && crashes.load(Ordering::SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                    let offset = (turn % 50 * THREADS + thread) * 8;
                    room.write(file, offset as u64, &[turn as u8; 8]).unwrap();
                }
                left.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            while left.load(Ordering::SeqCst) > 0 {
                file.settle().unwrap();
            }
        });
        scope.spawn(|| {
            let mut before = 0;
            while left.load(Ordering::SeqCst) > 0 {
                let mut inner = server.lock();
                if inner.commits + inner.writes > before + CRASH_EVERY {
                    inner.crash();
                    crashes.fetch_add(1, Ordering::SeqCst);
                    before = inner.commits + inner.writes;
                }
                drop(inner);
                std::thread::yield_now();
            }
        });
    });
    file.settle().unwrap();
    file.told(&mut seen).unwrap();
    let stable = server.lock().stable.clone();
    for (place, bytes) in stable.chunks(8).enumerate() {
        let turn = (TURNS - 50 + place / THREADS) as u8;
        assert_eq!(bytes, [turn; 8], "place {place}");
    }
}
