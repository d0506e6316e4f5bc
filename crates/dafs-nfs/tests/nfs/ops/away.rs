//! A store whose data servers do not answer.

use super::helper::*;
use super::layouts::{get, give_back, granted};
use crate::common::World;
use dafs_store::{
    Capabilities, Device, DeviceKey, FileId, LayoutForm, Layouts, MemoryOptions, MemoryStore,
    NfsAddresses, Packing, Placement, Result, Spread, StoreError, Stripes,
};
use dafs_testkit::stores::layer::{Layer, Layered};
use dafs_wire::nfs4::*;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

const DEVICE: DeviceKey = DeviceKey([9; 16]);
const UNIT: u32 = 65_536;

struct Away;

impl Layouts for Away {
    fn placement(&self, _: &FileId, _: bool) -> Result<Option<Placement>> {
        let spread = Spread::Stripes(Stripes {
            device: DEVICE,
            first_place: 0,
            unit_bytes: NonZeroU32::new(UNIT).unwrap(),
            packing: Packing::Sparse,
            handles: vec![b"component".as_slice().into()],
        });
        Ok(Some(Placement { epoch: 1, spread }))
    }

    fn device(&self, key: &DeviceKey) -> Option<Device> {
        let servers = vec![NfsAddresses::over_tcp(vec!["127.0.0.1:2049".parse().unwrap()])];
        (*key == DEVICE).then_some(Device { pattern: vec![0], servers })
    }

    fn devices(&self) -> Vec<DeviceKey> {
        vec![DEVICE]
    }

    fn commit(&self, _: &FileId, _: Option<u64>) -> Result<u64> {
        Err(StoreError::Busy)
    }

    fn recover_size(&self, _: &FileId) -> Result<()> {
        Err(StoreError::Busy)
    }

    fn drop_grants(&self, _: &FileId) -> Result<()> {
        Err(StoreError::Busy)
    }

    fn grant_ttl(&self) -> Duration {
        Duration::from_secs(8)
    }

    fn take_moved(&self, _: &mut dyn FnMut(FileId)) {}
}

impl Layer for Away {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        let layouts = Some(LayoutForm::Stripes);
        Capabilities { layouts, layout_unit_bytes: UNIT, ..below }
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        Some(self)
    }
}

/// A client that has the file "f" open, and may have written it at data servers.
fn writing(minor: u32) -> (Client, Vec<u8>, Stateid) {
    let names = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let mut client = Client::of(World::over(Arc::new(Layered::new(names, Away))), minor);
    let (fh, open) = client.file(b"f");
    let answer = client.send(&[putfh(&fh), get(open, 2)]);
    let layout = granted(&answer, 2).0;
    assert_eq!(client.send(&[putfh(&fh), give_back(layout)]).status(), Status::Ok);
    // Data servers do not ask about a client again that has just returned a layout.
    let again = client.send(&[putfh(&fh), get(open, 2)]);
    assert_eq!(again.status(), Status::Ok);
    (client, fh, open)
}

#[test]
fn a_file_is_closed_while_data_servers_are_away() {
    let (mut client, fh, open) = writing(1);
    let size = || getattr(&[Attr::Size]);
    assert_eq!(client.send(&[putfh(&fh), size()]).status(), Status::Delay);
    // Then Linux sends CLOSE alone. With DELAY it would repeat all.
    assert_eq!(client.send(&[putfh(&fh), size(), close(open)]).status(), Status::Access);
    assert_eq!(client.send(&[putfh(&fh), close(open)]).status(), Status::Ok);
}

#[test]
fn a_listing_tells_which_attributes_are_not_known() {
    let (mut client, _, _) = writing(1);
    let list = |request| {
        Op::Readdir(ReaddirArgs {
            cookie: 0,
            cookie_verifier: Verifier::default(),
            directory_bytes: 0,
            result_bytes_max: 4000,
            request,
        })
    };
    let answer = client.at_root(&[list(Attr::set(&[Attr::RdattrError, Attr::Size]))]);
    let ResultBody::Readdir(result) = answer.body(2) else { panic!("{:?}", answer.results()) };
    let entry = result.entries().next().unwrap();
    assert_eq!(entry.name, b"f");
    let told = Attributes::decode(&entry.attributes).unwrap();
    assert_eq!((told.rdattr_error, told.size), (Some(Status::Delay), None));
    assert_eq!(client.at_root(&[list(Attr::set(&[Attr::Size]))]).status(), Status::Delay);
}

#[test]
fn a_commit_does_not_ask_for_the_size() {
    let (mut client, fh, _) = writing(1);
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    assert_eq!(client.send(&[putfh(&fh), commit]).status(), Status::Ok);
}

#[test]
fn seek_waits_for_the_size_of_what_the_client_writes() {
    let (mut client, fh, open) = writing(2);
    let seek = Op::Seek(SeekArgs { stateid: open, offset: 0, what: SeekWhat::Hole });
    assert_eq!(client.send(&[putfh(&fh), seek]).status(), Status::Delay);
}
