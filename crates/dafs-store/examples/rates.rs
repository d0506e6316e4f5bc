//! How many metadata operations per second a posix store does, on one thread.
//!
//! `rates DIRECTORY [FILES] [OPERATION]` works in a new directory below DIRECTORY, best on tmpfs,
//! and prints the processor time of each operation, or of the one that is named, and the rate that
//! one processor would do. With one operation
//! and `strace -c -f` the system calls per operation can be counted.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on stops")]

use dafs_store::*;
use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread: what others do on the machine matters little to it.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

struct Bench {
    store: PosixStore,
    cred: Cred,
    files: usize,
    only: Option<String>,
}

impl Bench {
    fn time(&self, what: &str, count: usize, mut act: impl FnMut(usize)) {
        if self.only.as_deref().is_some_and(|only| only != what) {
            return;
        }
        let start = processor_seconds();
        (0..count).for_each(&mut act);
        self.report(what, count, start);
    }

    fn report(&self, what: &str, count: usize, start: f64) {
        let seconds = processor_seconds() - start;
        let (rate, micros) = (count as f64 / seconds, seconds * 1e6 / count as f64);
        println!("{what:24} {rate:12.0} per s {micros:8.2} us");
    }

    fn create(&self, dir: &FileId, name: &str) -> Created {
        let attr = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let mode = OpenMode { read: true, write: true };
        let how = CreateHow::Guarded;
        self.store.create(&self.cred, dir, name.as_bytes(), how, &attr, mode).unwrap()
    }

    fn list(&self, dir: &FileId, attr: bool) -> usize {
        let mut seen = 0;
        let mut cookie = 0;
        loop {
            let mut page = 0;
            let end = self.store.readdir(&self.cred, dir, cookie, attr, &mut |entry| {
                if page == 200 {
                    return false;
                }
                page += 1;
                cookie = entry.cookie;
                true
            });
            seen += page;
            if end.unwrap() {
                return seen;
            }
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().unwrap_or_else(|| "/dev/shm".into());
    let files = arguments.next().map_or(20_000, |count| count.parse().unwrap());
    let only = arguments.next();
    let directory = tempfile::tempdir_in(parent).unwrap();
    std::os::unix::fs::chown(directory.path(), Some(1000), Some(100)).unwrap();
    let options = PosixOptions::new(ExportSecret::generate().unwrap());
    let store = PosixStore::open(directory.path(), options).unwrap();
    let bench = Bench { store, cred: Cred::new(1000, 100), files, only };
    run(&bench);
}

fn run(bench: &Bench) {
    let (store, cred, root) = (&bench.store, &bench.cred, bench.store.root());
    let attr = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let dir = store.make(cred, &root, b"d", NewObject::Directory, &attr).unwrap().id;
    let names: Vec<String> = (0..bench.files).map(|at| format!("file{at:07}")).collect();
    let mut ids = Vec::with_capacity(names.len());
    let start = processor_seconds();
    names.iter().for_each(|name| ids.push(bench.create(&dir, name).id));
    bench.report("create, close", names.len(), start);
    let count = names.len();
    bench.time("getattr, first", count, |at| {
        store.getattr(&ids[at]).unwrap();
    });
    bench.time("getattr", count, |at| {
        store.getattr(&ids[at % 64]).unwrap();
    });
    bench.time("lookup", count, |at| {
        store.lookup(cred, &dir, names[at % 64].as_bytes()).unwrap();
    });
    bench.time("peek", count, |at| {
        store.peek(cred, &dir, names[at % 64].as_bytes()).unwrap();
    });
    bench.time("lookup, missing", count, |_| {
        assert!(store.lookup(cred, &dir, b"missing").is_err());
    });
    bench.time("access", count, |at| {
        store.access(cred, &ids[at % 64], AccessMask::all()).unwrap();
    });
    let read = OpenMode { read: true, write: false };
    bench.time("open, close", count, |at| drop(store.open(cred, &ids[at % 64], read).unwrap()));
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    bench.time("setattr mode", count, |at| {
        store.setattr(cred, &ids[at % 64], &mode, None).unwrap();
    });
    for (what, attr) in [("readdir", false), ("readdir with attributes", true)] {
        if bench.only.as_deref().is_none_or(|only| only == what) {
            let start = processor_seconds();
            let seen = bench.list(&dir, attr);
            bench.report(what, seen, start);
        }
    }
    bench.time("lookup, first", count, |at| {
        store.lookup(cred, &dir, names[at].as_bytes()).unwrap();
    });
    bench.time("rename", count, |at| {
        let (from, to) = (names[at].as_bytes(), format!("x{at}"));
        store.rename(cred, &dir, from, &dir, to.as_bytes()).unwrap();
        store.rename(cred, &dir, to.as_bytes(), &dir, from).unwrap();
    });
    bench.time("peek, remove_known", count, |at| {
        let (id, _) = store.peek(cred, &dir, names[at].as_bytes()).unwrap();
        store.remove_known(cred, &dir, names[at].as_bytes(), &id).unwrap();
    });
}
