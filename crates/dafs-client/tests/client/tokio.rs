//! Operations awaited under tokio, on both of its runtimes: results, timeouts, and cancelled tasks.

use crate::served::{Served, TRANSPORTS, Wire, connected, open_file};
use dafs_client::{Client, Error, File, IoBuffer, OpenOptions, Stability};
use dafs_mem::Site;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

const BLOCK: usize = 4096;

/// Shorter than any operation that a test blocks.
const SHORT: Duration = Duration::from_millis(20);

/// A timeout that is reached only by a deadlock.
const STUCK: Duration = Duration::from_secs(60);

fn runtimes() -> [Runtime; 2] {
    let one = Builder::new_current_thread().enable_all().build().unwrap();
    let several = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    [one, several]
}

/// A file of so many blocks, and memory for it.
fn filled(served: &Served, client: &Client, blocks: usize) -> (Arc<File>, IoBuffer, Vec<u8>) {
    let content = served.with_file("file", blocks * BLOCK);
    (Arc::new(open_file(client)), client.buffer(blocks * BLOCK).unwrap(), content)
}

async fn read_block(file: &File, buffer: &IoBuffer, block: usize) -> Result<usize, Error> {
    let at = block * BLOCK;
    file.submit_read(buffer, at..at + BLOCK, at as u64)?.await
}

#[test]
fn tasks_have_their_results() {
    for (runtime, transport) in runtimes().into_iter().zip(TRANSPORTS) {
        for transport in [transport, TRANSPORTS[0]] {
            let served = Served::new();
            let client = served.client(transport);
            let (file, buffer, content) = filled(&served, &client, 64);
            runtime.block_on(async {
                let tasks: Vec<_> = (0..64)
                    .map(|block| {
                        let (file, buffer) = (file.clone(), buffer.clone());
                        tokio::spawn(async move { read_block(&file, &buffer, block).await })
                    })
                    .collect();
                for task in tasks {
                    assert_eq!(timeout(STUCK, task).await.unwrap().unwrap().unwrap(), BLOCK);
                }
                assert!(buffer.view().to_vec(Site::Inspect) == content);
                let behind = (content.len() - 10) as u64;
                let stability = Stability::FileSync;
                let write = file.submit_write(&buffer, 0..100, behind, stability).unwrap();
                assert_eq!(write.await.unwrap(), 100);
                assert_eq!(file.submit_read(&buffer, 0..100, behind).unwrap().await.unwrap(), 100);
                assert_eq!(file.submit_read(&buffer, 0..9, 1 << 40).unwrap().await.unwrap(), 0);
            });
            assert!(buffer.slice(0, 100).unwrap().to_vec(Site::Inspect) == content[..100]);
        }
    }
}

#[test]
fn commits_and_appends_are_awaited() {
    const COUNT: usize = 40;
    // Inline and direct.
    let kinds =
        TRANSPORTS.into_iter().flat_map(|transport| [(transport, 100), (transport, 20_000)]);
    let runtimes = runtimes();
    for (runtime, (transport, bytes)) in runtimes.iter().cycle().zip(kinds) {
        let served = Served::new();
        let client = served.client(transport);
        let (file, buffer, content) = filled(&served, &client, COUNT * bytes / BLOCK + 1);
        buffer.view().copy_from(&content, Site::Inspect);
        runtime.block_on(async {
            let stable = Stability::DataSync;
            let tasks: Vec<_> = (0..COUNT)
                .map(|number| {
                    let (file, buffer) = (file.clone(), buffer.clone());
                    let at = number * bytes..(number + 1) * bytes;
                    tokio::spawn(async move { file.submit_append(&buffer, at, stable)?.await })
                })
                .collect();
            let mut places = Vec::new();
            for task in tasks {
                places.push(timeout(STUCK, task).await.unwrap().unwrap().unwrap() as usize);
            }
            let written = served.content("file");
            assert_eq!(written.len(), content.len() + COUNT * bytes);
            for (number, place) in places.iter().enumerate() {
                let want = &content[number * bytes..(number + 1) * bytes];
                assert!(&written[*place..place + bytes] == want, "{number} is not at {place}");
            }
            let end = file.submit_append(&buffer, 3..3, stable).unwrap().await.unwrap();
            assert_eq!(end, written.len() as u64);
            assert!(file.submit_append(&buffer, 0..1, Stability::Unstable).is_err());
            let write = file.submit_write(&buffer, 0..100, end, Stability::Unstable).unwrap();
            assert_eq!(write.await.unwrap(), 100);
            // Both cover earlier writes.
            let both = [(); 2].map(|()| file.submit_commit(0, 0).unwrap());
            for commit in both {
                timeout(STUCK, commit).await.unwrap().unwrap();
            }
            let reading = client.open(b"/file", &OpenOptions::read()).unwrap();
            let refused = reading.submit_append(&buffer, 0..1, stable).unwrap().await;
            assert!(refused.is_err(), "who may not write");
        });
    }
}

#[test]
fn a_loss_is_told_to_the_commit_that_is_awaited() {
    let [runtime, _] = runtimes();
    let (mut served, client) = connected();
    let (file, buffer, _) = filled(&served, &client, 1);
    file.write_from(&buffer, 0..BLOCK, 0, Stability::Unstable).unwrap();
    served.stop();
    served.start();
    runtime.block_on(async {
        // It is over, and its result has not been taken.
        let mut commit = file.submit_commit(0, 0).unwrap();
        while !commit.is_done() {
            tokio::task::yield_now().await;
        }
        assert!(commit.cancel(), "it is over");
        drop(commit);
        let lost = file.submit_commit(0, 0).unwrap().await;
        assert!(matches!(lost, Err(Error::WritesLost)), "{lost:?}");
        file.submit_commit(0, 0).unwrap().await.unwrap();
    });
}

#[test]
#[expect(clippy::await_holding_lock, reason = "it holds up a thread of the wire, and no task")]
fn a_time_that_runs_out_ends_the_waiting_and_nothing_else() {
    for runtime in runtimes() {
        let served = Served::new();
        let wire = Wire::new(served.address, || None);
        let client = wire.client();
        let (file, buffer, content) = filled(&served, &client, 4);
        runtime.block_on(async {
            let held = wire.held.lock().unwrap();
            assert!(timeout(SHORT, read_block(&file, &buffer, 0)).await.is_err());
            // One that is polled again after that.
            let mut kept = file.submit_read(&buffer, BLOCK..2 * BLOCK, BLOCK as u64).unwrap();
            assert!(timeout(SHORT, &mut kept).await.is_err());
            drop(held);
            assert_eq!(timeout(STUCK, kept).await.unwrap().unwrap(), BLOCK);
            // The server has done the abandoned operation before.
            assert_eq!(read_block(&file, &buffer, 2).await.unwrap(), BLOCK);
        });
        assert!(buffer.slice(0, 3 * BLOCK).unwrap().to_vec(Site::Inspect) == content[..3 * BLOCK]);
    }
}

#[test]
#[expect(clippy::await_holding_lock, reason = "it holds up a thread of the wire, and no task")]
fn tasks_that_are_given_up_leave_nothing_behind() {
    for runtime in runtimes() {
        let served = Served::new();
        let wire = Wire::new(served.address, || None);
        let client = wire.client();
        let (file, buffer, content) = filled(&served, &client, 64);
        runtime.block_on(async {
            let held = wire.held.lock().unwrap();
            let tasks: Vec<_> = (0..64)
                .map(|block| {
                    // Memory that ends with the task, although the server may still write to it.
                    let (file, own) = (file.clone(), client.buffer(64 * BLOCK).unwrap());
                    tokio::spawn(async move { read_block(&file, &own, block).await })
                })
                .collect();
            for task in &tasks {
                // Each task has run, or never will.
                tokio::task::yield_now().await;
                task.abort();
            }
            // Before the data can come, which a thread that still runs a task would find.
            for task in tasks {
                let ended = task.await;
                assert!(matches!(&ended, Err(error) if error.is_cancelled()), "{ended:?}");
            }
            drop(held);
            for block in 0..64 {
                assert_eq!(read_block(&file, &buffer, block).await.unwrap(), BLOCK);
            }
        });
        assert!(buffer.view().to_vec(Site::Inspect) == content);
        // Abandoned operations end, too.
        while client.stats().in_flight > 0 {
            client.ping().unwrap();
        }
    }
}

#[test]
fn a_group_is_awaited_by_its_descriptor() {
    for (runtime, transport) in runtimes().into_iter().zip(TRANSPORTS) {
        let served = Served::new();
        let client = served.client(transport);
        let (file, buffer, content) = filled(&served, &client, 64);
        let group = client.completion_group();
        runtime.block_on(async {
            let descriptor = group.descriptor().unwrap();
            // SAFETY: the descriptor is the group's, which outlives this and keeps it open.
            let ready = unsafe { AsyncFd::register(descriptor) }.unwrap();
            for block in 0..64 {
                let at = block * BLOCK;
                group.read(block as u64, &file, &buffer, at..at + BLOCK, at as u64).unwrap();
            }
            let mut completions = Vec::new();
            while completions.len() < 64 {
                let mut guard = timeout(STUCK, ready.readable()).await.unwrap().unwrap();
                // Before the poll, so that later completions are signalled again.
                guard.clear_ready();
                group.poll(&mut completions);
            }
            assert!(completions.iter().all(|done| matches!(done.result, Ok(BLOCK))));
        });
        assert!(buffer.view().to_vec(Site::Inspect) == content);
    }
}
