//! An export of a GlusterFS volume: through the server as any other, and by clients that use the
//! data servers of its bricks. Each test starts a cluster of three bricks on loopback, which ends
//! with it. Without GlusterFS all tests here are skipped.

use super::common::{self, WRITE, address, any, commit, device, layout, session};
use dafs_nfs_client::{Handle, NfsError, OpenFile, OpenOptions, Options, Session, connect};
use dafs_server::{
    Config, DataRdma, DataServerPlace, ExportSource, GlusterConfig, GlusterDataServer, Server,
};
use dafs_testkit::engines::{self, EngineCluster};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

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
        place: DataServerPlace::Local(any(), DataRdma::default()),
        brick: format!("{net}.{number}:{}/{number}/brick", dir.display()),
    };
    let mut config = common::config(base.to_path_buf(), base.join("state"));
    config.exports[0].source = ExportSource::Gluster(GlusterConfig {
        volume: "dist".to_owned(),
        servers: vec![(format!("{net}.1"), None)],
        root: "/".to_owned(),
        data_servers: (1..=3).map(data_server).collect(),
        cluster_secret: None,
    });
    config.listen = Vec::new();
    config.nfs.no_delegations = true;
    config
}

/// The placement of a file: whole on one data server.
struct Place {
    stateid: Stateid,
    handle: Handle,
    server: SocketAddr,
}

fn placement(session: &Session, file: &OpenFile) -> Result<Place, NfsError> {
    let (stateid, body) = layout(session, file, WRITE)?;
    let layout = FilesLayout::decode(&mut Decoder::new(&body)).unwrap();
    assert_eq!((layout.handles.len(), layout.first_stripe_index), (1, 0));
    let handle = Handle(layout.handles[0].0.to_vec());
    let body = device(session, layout.device)?;
    let device = FilesDevice::decode(&mut Decoder::new(&body)).unwrap();
    assert_eq!((&device.stripe_indices[..], device.servers.len()), (&[0][..], 1));
    Ok(Place { stateid, handle, server: address(device.servers[0].0[0].address) })
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
        let place = placement(&client, &file).unwrap();
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
            commit(&client, &file, place.stateid, last + 1).unwrap_err().status(),
            Some(Status::Inval)
        );
        commit(&client, &file, place.stateid, last).unwrap();
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
