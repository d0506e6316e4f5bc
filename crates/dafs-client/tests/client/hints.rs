//! Cache hints, seen in the cache of the server's kernel.

use crate::served::{Served, TRANSPORTS, on_each_transport, pattern, status};
use dafs_client::{AccessPattern, Create, HintWord, Likelihood, OpenOptions, Stability, Status};
use dafs_testkit::{Cached, PAGE_BYTES, eventually};

const BYTES: usize = 2 << 20;

fn cold(served: &Served, name: &str) -> Option<Cached> {
    Cached::cold(&served.path().join(name), &pattern(BYTES))
}

#[test]
fn what_is_read_once_leaves_the_cache_of_the_server() {
    for (served, client) in on_each_transport() {
        let Some(local) = cold(&served, "file") else { return };
        let mut bytes = vec![0; BYTES];
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), BYTES);
        assert_eq!(local.bytes(), BYTES);
        // The hint of one open says nothing about another's transfers.
        let once = client.open(b"file", &OpenOptions::read().hint(HintWord::DONE)).unwrap();
        assert_eq!(once.hint(), HintWord::DONE);
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), BYTES);
        assert_eq!(local.bytes(), BYTES);
        assert_eq!(once.read_at(&mut bytes, 0).unwrap(), BYTES);
        assert!(bytes == pattern(BYTES));
        eventually("the file leaves", || local.bytes() == 0);
        once.set_hint(HintWord::NONE);
        let buffer = client.buffer(BYTES).unwrap();
        assert_eq!(once.read_into(&buffer, 0..BYTES, 0).unwrap(), BYTES);
        assert_eq!(local.bytes(), BYTES);
        once.set_hint(HintWord::DONE);
        let mut batch = client.batch();
        batch.read(&once, &[(0, BYTES)], &[(&buffer, 0..BYTES)]).unwrap();
        assert_eq!(batch.run().unwrap().remove(0).unwrap(), BYTES);
        eventually("the file leaves after a batch", || local.bytes() == 0);
    }
}

#[test]
fn what_is_written_once_leaves_when_it_is_stable() {
    for (served, client) in on_each_transport() {
        if cold(&served, "probe").is_none() {
            return;
        }
        let options = OpenOptions::read_write().create(Create::New).hint(HintWord::DONE);
        let file = client.open(b"file", &options).unwrap();
        let local = Cached::of(&served.path().join("file"));
        let content = pattern(BYTES);
        file.write_at(&content, 0, Stability::FileSync).unwrap();
        eventually("stable data leaves", || local.bytes() == 0);
        file.write_at(&content, 0, Stability::Unstable).unwrap();
        eventually("a commit drops the rest", || {
            file.commit(0, 0).unwrap();
            local.bytes() == 0
        });
        let offset = file.append(&content[..100_000], Stability::DataSync).unwrap();
        assert_eq!(offset, BYTES as u64);
        eventually("appended data leaves", || local.bytes() == 0);
        assert!(served.content("file")[..BYTES] == content);
    }
}

#[test]
fn ranges_are_prefetched_and_dropped() {
    for (served, client) in on_each_transport() {
        let Some(local) = cold(&served, "file") else { return };
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        file.prefetch(0, 1 << 20).unwrap();
        eventually("the range is there", || local.bytes_in(0..1 << 20) == 1 << 20);
        file.prefetch(0, 0).unwrap();
        eventually("the file is there", || local.bytes() == BYTES);
        let normal = AccessPattern::Normal;
        // A page that is still being read does not leave.
        eventually("the range leaves", || {
            file.cache_hint(1 << 20, 1 << 20, normal, HintWord::DONE).unwrap();
            local.bytes() == 1 << 20
        });
        file.cache_hint(0, 0, normal, HintWord::CACHED).unwrap();
        assert_eq!(local.bytes(), 1 << 20, "other clients may still want it");
        file.cache_hint(0, 0, normal, HintWord::AGAIN).unwrap();
        eventually("all leaves", || {
            file.cache_hint(0, 0, AccessPattern::DontNeed, HintWord::NONE).unwrap();
            local.bytes() == 0
        });
        assert_eq!(status(file.prefetch(u64::MAX, 1)), Status::Inval);
    }
}

#[test]
fn a_pattern_at_open_changes_the_read_ahead() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let client = served.client(transport);
        let Some(local) = cold(&served, "file") else { return };
        let read = |pattern| {
            local.drop_all();
            let options = OpenOptions::read().pattern(pattern);
            let file = client.open(b"file", &options).unwrap();
            let mut bytes = vec![0; PAGE_BYTES];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), PAGE_BYTES);
            assert_eq!(file.read_at(&mut bytes, PAGE_BYTES as u64).unwrap(), PAGE_BYTES);
            local.bytes()
        };
        assert_eq!(read(AccessPattern::Random), 2 * PAGE_BYTES);
        assert!(read(AccessPattern::Normal) > 2 * PAGE_BYTES);
        assert!(read(AccessPattern::Sequential) > 2 * PAGE_BYTES);
    }
}

#[test]
fn hints_of_every_bit_pattern_change_no_content() {
    let served = Served::new();
    let client = served.client(TRANSPORTS[0]);
    let options = OpenOptions::read_write().create(Create::New);
    let file = client.open(b"file", &options).unwrap();
    let content = pattern(10_000);
    let mut found = vec![0; 10_000];
    for word in (0..0x80).chain([0x80, u32::MAX]) {
        file.set_hint(HintWord::from_bits(word));
        file.write_at(&content, 0, Stability::Unstable).unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 10_000);
        assert!(found == content, "{word:#x}");
    }
    let rather = HintWord { read: Some(Likelihood::Rather), ..HintWord::NONE };
    file.set_hint(rather);
    assert_eq!(file.hint(), rather);
    file.close().unwrap();
}
