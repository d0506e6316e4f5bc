//! The data of READ and WRITE over RDMA is placed once: no copy in user space, on either side, with
//! one server and with data servers. This is a test program of its own, because the counters belong
//! to the process.

// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

use dafs_mem::{Site, copies};
use dafs_nfs_client::mount::{Create, File, Mount, MountOptions, NfsUrl, OpenOptions, StableHow};
use dafs_server::{Config, DataRdma, ExportSource, NodeConfig, NodePlace, Server};
use dafs_service::Squash;
use std::collections::BTreeMap;
use tempfile::TempDir;

/// The largest transfer.
const BYTES_MAX: usize = 1 << 20;

/// Messages are copied into and out of rings and staging areas, data is not.
const MESSAGE_BYTES_MAX: u64 = 2048;

fn copied() -> BTreeMap<&'static str, u64> {
    let counts = copies().filter(|count| count.site != Site::Inspect);
    counts.map(|count| (count.site.label(), count.bytes)).collect()
}

/// Returns the bytes copied since then, by place.
fn since(before: &BTreeMap<&'static str, u64>) -> Vec<(&'static str, u64)> {
    let now = copied().into_iter().map(|(site, bytes)| (site, bytes - before[site]));
    now.filter(|(_, bytes)| *bytes > 0).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 / 5) as u8).collect()
}

/// Bytes of a stripe.
const UNIT: u32 = 64 << 10;

fn transfer(file: &File, mount: &Mount, bytes: usize, name: &str, copied_bytes_max: u64) {
    let memory = mount.allocate(bytes).unwrap();
    memory.view().copy_from(&pattern(bytes), Site::Inspect);
    let check = |before: &BTreeMap<&'static str, u64>, what: &str| {
        let copied = since(before);
        let sum: u64 = copied.iter().map(|(_, bytes)| bytes).sum();
        assert!(sum <= copied_bytes_max, "{name}: {what} {bytes} bytes: {copied:?}");
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

/// There is one test, so that no other copies in this process meanwhile.
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
                transfer(&file, &mount, bytes, &name, MESSAGE_BYTES_MAX);
            }
            file.close().unwrap();
        }
    }
    server.stop();
    past_the_server();
}

/// Transfers to and from data servers over RDMA.
fn past_the_server() {
    let base = TempDir::new().unwrap();
    let directory = |name: &str| {
        let path = base.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let any = Some("127.0.0.1:0".parse().unwrap());
    let node = |number: u32| NodeConfig {
        number,
        place: NodePlace::Directory {
            path: directory(&format!("node{number}")),
            listen: any,
            rdma: DataRdma { soft: any, verbs: None },
            dafs_listen: None,
            dafs_verbs: false,
        },
    };
    let names = directory("names");
    let mut config = Config::for_directory(names.clone());
    config.exports[0].source = ExportSource::Striped {
        path: names,
        unit_bytes: UNIT.try_into().unwrap(),
        copies: 1,
        nodes: (1..=3).map(node).collect(),
        cluster_secret: None,
    };
    config.exports[0].options.squash = Squash::None;
    config.exports[0].options.admits.unprivileged_ports = true;
    config.listen = Vec::new();
    config.nfs.rdma_listen = Some(any.into_iter().collect());
    config.nfs.grace_time = Some(std::time::Duration::ZERO);
    config.nfs.no_delegations = true;
    config.state_directory = Some(directory("state"));
    config.threads = 1;
    let server = Server::start(&config).unwrap();
    let address = server.nfs_rdma_addresses()[0];
    let name = "past the server";
    let url = NfsUrl::parse(&format!("nfs+rdma://{address}/?transport=iwarp")).unwrap();
    let mount = Mount::connect(&url, &MountOptions::default()).unwrap();
    let file = mount.open(name.as_bytes(), &OpenOptions::read_write().create(Create::New));
    let file = file.unwrap();
    // Each stripe has messages of its own, and the first writes also send those that find data
    // servers. All of them are shorter than the data of one stripe.
    for bytes in [300_001, BYTES_MAX] {
        transfer(&file, &mount, bytes, name, u64::from(UNIT) - 1);
    }
    file.close().unwrap();
    server.stop();
}
