//! The data of READ and WRITE over RDMA is placed once: no copy in user space, on either side. A test
//! program of its own, because the counters belong to the process.

// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

use dafs_mem::{Site, copies};
use dafs_nfs_client::mount::{Create, File, Mount, MountOptions, NfsUrl, OpenOptions, StableHow};
use dafs_server::{Config, Server};
use dafs_service::Squash;
use std::collections::BTreeMap;
use tempfile::TempDir;

/// The largest transfer.
const BYTES_MAX: usize = 1 << 20;

/// Messages are copied in and out of rings and staging areas, data is not.
const MESSAGE_BYTES_MAX: u64 = 2048;

fn copied() -> BTreeMap<&'static str, u64> {
    let counts = copies().filter(|count| count.site != Site::Inspect);
    counts.map(|count| (count.site.label(), count.bytes)).collect()
}

/// Bytes copied since, by place.
fn since(before: &BTreeMap<&'static str, u64>) -> Vec<(&'static str, u64)> {
    let now = copied().into_iter().map(|(site, bytes)| (site, bytes - before[site]));
    now.filter(|(_, bytes)| *bytes > 0).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 / 5) as u8).collect()
}

fn transfer(file: &File, mount: &Mount, bytes: usize, name: &str) {
    let memory = mount.allocate(bytes).unwrap();
    memory.view().copy_from(&pattern(bytes), Site::Inspect);
    let check = |before: &BTreeMap<&'static str, u64>, what: &str| {
        let copied = since(before);
        let sum: u64 = copied.iter().map(|(_, bytes)| bytes).sum();
        assert!(sum <= MESSAGE_BYTES_MAX, "{name}: {what} {bytes} bytes: {copied:?}");
    };
    for stability in [StableHow::Unstable, StableHow::FileSync] {
        let before = copied();
        file.write(memory.whole(), 0, stability).unwrap();
        check(&before, "write");
    }
    memory.view().fill(0);
    let before = copied();
    assert_eq!(file.read(memory.whole(), 0).unwrap(), bytes);
    check(&before, "read");
    assert!(memory.view().to_vec(Site::Inspect) == pattern(bytes), "{name}: {bytes} bytes");
}

/// One test, so that nothing else copies in this process meanwhile.
#[test]
fn data_above_the_inline_size_is_not_copied() {
    let (directory, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut config = Config::for_directory(directory.path().to_owned());
    config.listen = Vec::new();
    config.nfs.rdma_listen = Some(vec!["127.0.0.1:0".parse().unwrap()]);
    config.nfs.grace_time = Some(std::time::Duration::ZERO);
    config.nfs.no_delegations = true;
    config.state_directory = Some(state.path().to_owned());
    config.threads = 1;
    config.exports[0].options.squash = Squash::None;
    let server = Server::start(&config).unwrap();
    let address = server.nfs_rdma_addresses()[0];
    for transport in ["iwarp", "shm"] {
        for version in ["3", "4.1", "4.2"] {
            let name = format!("{transport}-{version}");
            let url = format!("nfs+rdma://{address}/?vers={version}&transport={transport}");
            let url = NfsUrl::parse(&url).unwrap();
            let mount = Mount::connect(&url, &MountOptions::default()).unwrap();
            let options = OpenOptions::read_write().create(Create::New);
            let file = mount.open(name.as_bytes(), &options).unwrap();
            for bytes in [5 << 10, 12_001, 65_537, 300_001, BYTES_MAX] {
                transfer(&file, &mount, bytes, &name);
            }
            file.close().unwrap();
        }
    }
    server.stop();
}
