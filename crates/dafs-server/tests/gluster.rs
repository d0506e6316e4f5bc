//! An export of a GlusterFS volume: through the server as any other, and by clients that use the
//! data servers of its bricks. Each test starts a cluster of three bricks on loopback, which ends
//! with it. Without GlusterFS all tests here are skipped.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use dafs_nfs_client::{Handle, NfsError, OpenFile, OpenOptions, Options, Session, connect};
use dafs_server::{
    Config, DataRdma, DataServerPlace, ExportSource, GlusterConfig, GlusterDataServer, Server,
};
use dafs_service::Squash;
use dafs_testkit::engines::{self, EngineCluster};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const WRITE: u32 = 2;

struct Cluster {
    dir: PathBuf,
    net: String,
    _running: EngineCluster,
}

fn cluster() -> Option<Cluster> {
    let running = engines::glusterfs()?;
    let (dir, server) = running.description.split_once(' ').expect("the cluster has started");
    let net = server.strip_suffix(".1").unwrap().to_owned();
    Some(Cluster { dir: PathBuf::from(dir), net, _running: running })
}

fn config(cluster: &Cluster, base: &Path) -> Config {
    let Cluster { dir, net, .. } = cluster;
    let data_server = |number: u32| GlusterDataServer {
        place: DataServerPlace::Here("127.0.0.1:0".parse().unwrap(), DataRdma::default()),
        brick: format!("{net}.{number}:{}/{number}/brick", dir.display()),
    };
    let mut config = Config::for_directory(base.to_path_buf());
    config.exports[0].source = ExportSource::Gluster(GlusterConfig {
        volume: "dist".to_owned(),
        servers: vec![(format!("{net}.1"), None)],
        root: "/".to_owned(),
        data_servers: (1..=3).map(data_server).collect(),
        cluster_secret: None,
    });
    config.exports[0].options.squash = Squash::None;
    config.listen = Vec::new();
    config.nfs.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.nfs.grace_time = Some(Duration::ZERO);
    config.nfs.no_delegations = true;
    config.state_directory = Some(base.join("state"));
    config.threads = 1;
    config
}

fn session(server: &Server, owner: &[u8]) -> Session {
    let options = Options { minor_version: 1, ..Options::new(owner) };
    connect(server.nfs_addresses()[0], &options).unwrap()
}

fn address(text: &[u8]) -> SocketAddr {
    let numbers: Vec<u16> =
        std::str::from_utf8(text).unwrap().split('.').map(|n| n.parse().unwrap()).collect();
    let [a, b, c, d, high, low] = numbers[..] else { panic!("{numbers:?}") };
    format!("{a}.{b}.{c}.{d}:{}", high * 256 + low).parse().unwrap()
}

/// The placement of a file: whole on one data server.
struct Place {
    stateid: Stateid,
    handle: Handle,
    server: SocketAddr,
}

fn layout(session: &Session, file: &OpenFile) -> Result<Place, NfsError> {
    let args = LayoutgetArgs {
        signal_available: false,
        layout_type: LAYOUT_FILES,
        io_mode: WRITE,
        offset: 0,
        length: u64::MAX,
        length_min: 4096,
        stateid: file.stateid,
        result_bytes_max: 4096,
    };
    let mut results = session.call(|compound| {
        compound.op(&Op::Putfh(PutfhArgs { handle: &file.handle.0 })).op(&Op::Layoutget(args));
    })?;
    results.skip(&[OpNum::Putfh])?;
    let ResultBody::Layoutget(granted) = results.take(OpNum::Layoutget)? else { panic!() };
    let body = granted.layouts[0].content.body;
    let layout = FilesLayout::decode(&mut Decoder::new(body)).unwrap();
    assert_eq!((layout.handles.len(), layout.first_stripe_index), (1, 0));
    let (stateid, handle) = (granted.stateid, Handle(layout.handles[0].0.to_vec()));
    let args = GetdeviceinfoArgs {
        device_id: layout.device,
        layout_type: LAYOUT_FILES,
        result_bytes_max: 4096,
        notifications: Bitmap::EMPTY,
    };
    let mut results = session.call(|compound| {
        compound.op(&Op::Getdeviceinfo(args));
    })?;
    let ResultBody::Getdeviceinfo(told) = results.take(OpNum::Getdeviceinfo)? else { panic!() };
    let device = FilesDevice::decode(&mut Decoder::new(told.address.body)).unwrap();
    assert_eq!((&device.stripe_indices[..], device.servers.len()), (&[0][..], 1));
    Ok(Place { stateid, handle, server: address(device.servers[0].0[0].address) })
}

fn commit(session: &Session, file: &OpenFile, place: &Place, last: u64) -> Result<(), NfsError> {
    let args = LayoutcommitArgs {
        offset: 0,
        length: u64::MAX,
        reclaim: false,
        stateid: place.stateid,
        last_write_offset: Some(last),
        time_modify: None,
        update: LayoutBody { layout_type: LAYOUT_FILES, body: b"" },
    };
    let mut results = session.call(|compound| {
        compound.op(&Op::Putfh(PutfhArgs { handle: &file.handle.0 })).op(&Op::Layoutcommit(args));
    })?;
    results.skip(&[OpNum::Putfh, OpNum::Layoutcommit]).map(|_| ())
}

#[test]
fn clients_reach_the_bricks_by_themselves() {
    let Some(cluster) = cluster() else { return };
    let dir = TempDir::new().unwrap();
    let server = Server::start(&config(&cluster, dir.path())).unwrap();
    let (client, other) = (session(&server, b"pnfs"), session(&server, b"plain"));
    let options = Options { minor_version: 1, back_slots: 0, ..Options::new(b"pnfs") };
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 / 5) as u8).collect();
    let mut used = Vec::new();
    for number in 0..24 {
        let name = format!("file {number}");
        let file = client.create(&client.root().unwrap(), name.as_bytes()).unwrap();
        let place = layout(&client, &file).unwrap();
        let data = connect(place.server, &options).unwrap();
        let write = |stateid| data.write(&place.handle, stateid, 5, &bytes, StableHow::FileSync);
        let written = write(file.stateid).unwrap();
        // The modification time does not change by itself, so no client is told that all is stable.
        assert_eq!((written.count as usize, written.committed), (bytes.len(), StableHow::DataSync));
        let (got, eof) = data.read(&place.handle, file.stateid, 5, 1 << 20).unwrap();
        assert!(got == bytes && eof);
        let there = OpenOptions { create: dafs_nfs_client::Create::No, ..OpenOptions::default() };
        let same = other.open(&other.root().unwrap(), name.as_bytes(), &there).unwrap();
        let (got, _) = other.read(&same.handle, same.stateid, 5, 1 << 20).unwrap();
        assert!(got == bytes, "through the server");
        let last = 4 + bytes.len() as u64;
        assert_eq!(
            commit(&client, &file, &place, last + 1).unwrap_err().status(),
            Some(Status::Inval)
        );
        commit(&client, &file, &place, last).unwrap();
        // Without an open no client has a right here.
        let forged = Stateid { seqid: 1, other: [7; 12] };
        assert!(write(forged).is_err());
        client.close(&file).unwrap();
        assert!(write(file.stateid).is_err(), "after the close");
        used.push(place.server);
        let on_bricks: Vec<_> = (1..=3)
            .filter_map(|brick| {
                let path = cluster.dir.join(format!("{brick}/brick/{name}"));
                std::fs::read(path).ok().filter(|content| !content.is_empty())
            })
            .collect();
        assert!(on_bricks.len() == 1 && on_bricks[0][5..] == bytes, "whole on one brick");
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 3, "all data servers have something");
    server.stop();
}
