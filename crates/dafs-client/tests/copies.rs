//! The counters of copies for each way of moving data. Alone in its process, because the counters
//! belong to the process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod served;

use dafs_client::{
    CacheOptions, Client, Create, NewFile, OpenOptions, SetAttributes, Stability, TransportChoice,
};
use dafs_mem::{Site, copied_bytes};
use dafs_testkit::eventually;
use served::{Served, TRANSPORTS, connected, pattern};

/// Bytes copied since `before`, by site, without the inspections of the test.
fn copied(before: &[u64]) -> Vec<(Site, u64)> {
    let since = |(site, before): (&Site, &u64)| (*site, copied_bytes(*site) - before);
    let all = Site::ALL.iter().zip(before).map(since);
    all.filter(|(site, bytes)| *bytes > 0 && *site != Site::Inspect).collect()
}

fn snapshot() -> Vec<u64> {
    Site::ALL.iter().map(|site| copied_bytes(*site)).collect()
}

#[test]
fn bulk_data_is_placed_once() {
    const BYTES: usize = 1 << 20;
    for transport in TRANSPORTS {
        let served = Served::new();
        let client = served.client(transport);
        let file = client.open(b"big", &OpenOptions::read_write().create(Create::New)).unwrap();
        let buffer = client.buffer(BYTES).unwrap();
        buffer.view().copy_from(&pattern(BYTES), Site::Inspect);
        let before = snapshot();
        for _ in 0..8 {
            file.write_from(&buffer, 0..BYTES, 0, Stability::Unstable).unwrap();
            file.read_into(&buffer, 0..BYTES, 0).unwrap();
        }
        assert!(buffer.view().to_vec(Site::Inspect) == pattern(BYTES));
        // Messages pass the rings and the staging area of the transport; the 16 MiB of data must
        // not be counted.
        let found = copied(&before);
        let total: u64 = found.iter().map(|(_, bytes)| bytes).sum();
        assert!(total < 64 << 10, "{transport:?}: {found:?}");
        let client_sites = [Site::ClientInlineRead, Site::ClientInlineWrite, Site::ClientStaging];
        assert!(!found.iter().any(|(site, _)| client_sites.contains(site)), "{found:?}");
    }

    // Small data over TCP is copied once, out of the reply; none is copied on the way in.
    let (served, client) = connected();
    let file = client.open(b"small", &OpenOptions::read_write().create(Create::New)).unwrap();
    let buffer = client.buffer(4096).unwrap();
    let before = snapshot();
    file.write_from(&buffer, 0..4096, 0, Stability::Unstable).unwrap();
    file.read_into(&buffer, 0..4096, 0).unwrap();
    let found = copied(&before);
    assert!(found.contains(&(Site::ClientInlineRead, 4096)), "{found:?}");
    assert!(!found.iter().any(|(site, _)| *site == Site::ClientInlineWrite), "{found:?}");

    // Appended data is copied into a message, and into the copy that is kept until the answer.
    let before = snapshot();
    file.append(&pattern(4096), Stability::DataSync).unwrap();
    let found = copied(&before);
    assert!(found.contains(&(Site::ClientInlineWrite, 2 * 4096)), "{found:?}");
    assert!(found.contains(&(Site::ClientKept, 4096)), "{found:?}");

    // The same for operations of a group.
    let group = client.completion_group();
    let before = snapshot();
    group.append(0, &file, &buffer, 0..100, Stability::DataSync).unwrap();
    group.wait(&mut Vec::new(), 1, None).unwrap();
    file.submit_append(&buffer, 0..100, Stability::DataSync).unwrap().wait().unwrap();
    let found = copied(&before);
    assert!(found.contains(&(Site::ClientInlineWrite, 2 * 200)), "{found:?}");

    a_small_file_is_copied_into_its_chain(&client);

    // Through the cache each byte is copied once on its way in and once on its way out.
    let client = served.client_with(|options| options.cache = Some(CacheOptions::default()));
    let file = client.open(b"cached", &OpenOptions::read_write().create(Create::New)).unwrap();
    let mut data = pattern(BYTES);
    let before = snapshot();
    file.write_at(&data, 0, Stability::Unstable).unwrap();
    file.commit(0, 0).unwrap();
    file.read_at(&mut data, 0).unwrap();
    let found = copied(&before);
    assert!(found.contains(&(Site::ClientCache, 2 * BYTES as u64)), "{found:?}");
    let total: u64 = found.iter().map(|(_, bytes)| bytes).sum();
    assert!(total < 2 * BYTES as u64 + (64 << 10), "{found:?}");

    hits_are_copied_once();
}

/// The content of a small file is copied into its chain, and out of it. The second copy is kept until the answer.
fn a_small_file_is_copied_into_its_chain(client: &Client) {
    let (content, attributes) = (pattern(4096), SetAttributes::mode(0o644));
    let before = snapshot();
    let new = NewFile {
        dir: client.root(),
        temporary_name: b".new",
        name: b"new",
        data: &content,
        attributes: &attributes,
    };
    client.begin_new_file(&new).unwrap().wait().unwrap();
    let found = copied(&before);
    assert!(found.contains(&(Site::ClientInlineWrite, 3 * 4096)), "{found:?}");
    assert!(found.contains(&(Site::ClientKept, 2 * 4096)), "{found:?}");
}

/// Optimistic reads. Over shared memory the one copy is that of the reader. By RDMA the adapter places the bytes,
/// but for the head of what arrives with other bytes.
fn hits_are_copied_once() {
    const BYTES: usize = 16 << 10;
    const READS: u64 = 100;
    for transport in TRANSPORTS {
        let is_mapped = transport == TransportChoice::Shm;
        let served = Served::with(|setup| match is_mapped {
            true => setup.optimistic = true,
            false => setup.optimistic_remotely = true,
        });
        served.with_file("shown", 32 * 4096);
        let client = served.client_with(|options| {
            options.transport = transport;
            options.optimistic = true;
        });
        let file = client.open(b"shown", &OpenOptions::read()).unwrap();
        let buffer = client.buffer(BYTES).unwrap();
        let mut before = Vec::new();
        eventually("all reads are hits", || {
            let hits = client.optimistic_stats().hits;
            before = snapshot();
            for _ in 0..READS {
                file.read_into(&buffer, 0..BYTES, 0).unwrap();
            }
            client.optimistic_stats().hits - hits == READS
        });
        let found = copied(&before);
        let mapped = (Site::ShmRdma, READS * BYTES as u64);
        assert_eq!(found.contains(&mapped), is_mapped, "{found:?}");
        let own = [Site::ClientInlineRead, Site::ClientStaging, Site::ServerInline];
        assert!(!found.iter().any(|(site, _)| own.contains(site)), "{found:?}");
        let total: u64 = found.iter().map(|(_, bytes)| bytes).sum();
        assert!(!is_mapped || total < mapped.1 + (64 << 10), "{found:?}");
    }
}
