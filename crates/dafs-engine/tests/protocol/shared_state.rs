//! The effects on DAFS clients of state that clients of other protocols hold.

use crate::common::*;
use dafs_service::{
    Caller, Client, ClientAddress, ClientKey, ExchangeId, Front, Handle, Identity, OpenHow,
    OpenRequest, Opened, Protection, Share, StateRef,
};
use dafs_store::{CreateHow, Cred, SetAttr, Wait};
use dafs_wire::dafs::{self, Status};
use std::sync::{Arc, Weak};

/// A front end whose clients do not answer.
struct Silent;

impl Front for Silent {
    fn recall(&self, _: ClientKey, _: &Handle, _: StateRef, _: bool) {}
    fn get_attr(&self, _: ClientKey, _: &Handle, _: u64) {}
    fn lock_available(&self, _: ClientKey, _: &Handle, _: &[u8]) {}
    fn client_gone(&self, _: ClientKey) {}
}

struct NfsClient {
    client: Arc<Client>,
    cred: Cred,
}

impl NfsClient {
    fn new(world: &World) -> Self {
        let identity = Identity { mechanism: "sys", principal: Vec::new() };
        let request = {
            let address = ClientAddress { ip: [192, 0, 2, 1].into(), privileged: true };
            let host = Default::default();
            ExchangeId {
                owner: b"nfs",
                verifier: [1; 8],
                identity,
                host,
                address,
                update: false,
                protection: Protection::None,
            }
        };
        let key = world.service.clients.exchange_id(&request, 0).unwrap().client.key();
        let client = world.service.clients.confirm(key, 0).unwrap();
        client.set_front(Weak::<Silent>::new());
        world.service.set_back_channel(&client, true);
        world.service.clients.reclaim_complete(&client).unwrap();
        Self { client, cred: Cred::new(1, 1) }
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            client: &self.client,
            cred: &self.cred,
            subject: dafs_service::Subject::Server,
            wait: Wait::Never,
            now_ns: 0,
        }
    }

    fn open(&self, world: &World, name: &[u8], share: Share) -> Opened {
        let attr = SetAttr { mode: Some(0o666), ..SetAttr::default() };
        let how = OpenHow::Create(CreateHow::Unchecked, attr);
        let root = world.service.root();
        let request = OpenRequest::by_name(&root, name, b"owner", share, how);
        world.service.opens.open(self.caller(), &request).unwrap()
    }
}

const BOTH: Share = Share { read: true, write: true, deny_read: false, deny_write: false };

#[test]
fn a_delegation_of_an_nfs_client_makes_dafs_clients_ask_again() {
    let (mut world, session) = World::with_session(Setup::default());
    let nfs = NfsClient::new(&world);
    let opened = nfs.open(&world, b"f", BOTH);
    let delegation = opened.delegation.unwrap();
    let handle = *opened.state.handle();
    let root = world.root();
    let open = open_request(root, F, b"owner");
    assert_eq!(world.open_with(session, &open).map(|_| ()), Err(Status::Delay));
    assert_eq!(world.status(session, &remove(root, b"f", false)), Status::Delay);
    assert_eq!(world.status(session, &rename(root, b"f", b"g")), Status::Delay);
    let fh = found(&world.call(session, &lookup(root, F)));
    assert_eq!(attributes(&mut world, session, fh).map(|_| ()), Err(Status::Delay));
    let anonymous = File { fh, id: dafs::StateId([0; 8]) };
    assert_eq!(world.status(session, &read_inline(anonymous, 0, 1)), Status::Delay);
    assert_eq!(world.status(session, &set(anonymous, size(9))), Status::Delay);
    world.service.delegations.take_back(nfs.caller(), Some(&handle), delegation.state).unwrap();
    assert_eq!(world.status(session, &set(anonymous, size(9))), Status::Ok);
    let file = world.open_with(session, &open).unwrap();
    assert_eq!(world.status(session, &close(file)), Status::Ok);
    world.service.opens.close(nfs.caller(), &handle, opened.state.id()).unwrap();
    assert_eq!(world.status(session, &remove(root, b"f", true)), Status::Ok);
}

#[test]
fn denials_of_nfs_clients_hold_for_dafs_clients() {
    let (mut world, session) = World::with_session(Setup::default());
    let nfs = NfsClient::new(&world);
    // Opened by both, so that there is no delegation.
    let file = world.open(session, b"f");
    let plain = nfs.open(&world, b"f", BOTH);
    assert!(plain.delegation.is_err());
    let refused = {
        let root = world.service.root();
        let share = Share { deny_write: true, ..BOTH };
        let request = OpenRequest::by_name(&root, b"f", b"other", share, OpenHow::Existing);
        world.service.opens.open(nfs.caller(), &request).map(|_| ())
    };
    assert_eq!(refused, Err(dafs_service::ServiceError::ShareDenied));
    assert_eq!(world.status(session, &close(file)), Status::Ok);
    world.service.opens.close(nfs.caller(), plain.state.handle(), plain.state.id()).unwrap();
    let denying = nfs.open(&world, b"f", Share { deny_write: true, ..BOTH });
    if let Ok(delegation) = denying.delegation {
        let handle = denying.state.handle();
        world.service.delegations.take_back(nfs.caller(), Some(handle), delegation.state).unwrap();
    }
    let root = world.root();
    let open = open_request(root, F, b"owner");
    assert_eq!(world.open_with(session, &open).map(|_| ()), Err(Status::Denied));
    let anonymous = File { fh: file.fh, id: dafs::StateId([0; 8]) };
    assert_eq!(world.status(session, &write_inline(anonymous, 0, b"x")), Status::Denied);
    assert_eq!(world.status(session, &read_inline(anonymous, 0, 1)), Status::Ok);
}
