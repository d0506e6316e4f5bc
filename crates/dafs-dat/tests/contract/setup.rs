//! Promises about set-up.

use super::World;
use dafs_dat::{Address, ConnectError, Event, PRIVATE_DATA_BYTES_MAX};

pub fn private_data_passes_both_ways(world: &mut World) {
    let ask: Vec<u8> = (0..PRIVATE_DATA_BYTES_MAX as u8).collect();
    world.connect_with(&ask, b"an answer");
}

pub fn too_much_private_data_is_refused(world: &mut World) {
    let (_, address) = world.start_listening();
    let long = [0; PRIVATE_DATA_BYTES_MAX + 1];
    let domain = world.client.domain;
    let error = world.client.adapter.connect(domain, &address, &long).unwrap_err();
    assert!(matches!(error, ConnectError::PrivateData { .. }), "{error}");
}

pub fn a_reject_carries_its_reason(world: &mut World) {
    let (_, address) = world.start_listening();
    let domain = world.client.domain;
    let client = world.client.adapter.connect(domain, &address, b"let me in").unwrap();
    let (request, _) = world.server_request();
    world.server.adapter.reject(request, b"no");
    let data = world.client_event(|event| match event {
        Event::ConnectFailed { endpoint, error } if *endpoint == client => match &**error {
            ConnectError::Rejected(data) => Some(data.clone()),
            error => panic!("{error}"),
        },
        _ => None,
    });
    assert_eq!(data, b"no");
}

pub fn a_connection_without_a_listener_fails(world: &mut World) {
    // An address with a former listener.
    let address = match world.listen.clone() {
        Address::Tcp(mut address) => {
            address.set_port(1);
            Address::Tcp(address)
        }
        Address::Verbs(mut address) => {
            address.set_port(1);
            Address::Verbs(address)
        }
        Address::Shm(name) => Address::Shm(format!("{name}-nobody")),
        Address::Sim(host) => Address::Sim(host + 1000),
    };
    let domain = world.client.domain;
    match world.client.adapter.connect(domain, &address, b"") {
        Err(_) => {}
        Ok(client) => world.client_event(|event| match event {
            Event::ConnectFailed { endpoint, .. } if *endpoint == client => Some(()),
            _ => None,
        }),
    }
}

pub fn the_peer_is_known(world: &mut World) {
    let link = world.connect();
    let peer = world.server.adapter.peer(link.server).unwrap();
    assert!(peer.address.is_some() || peer.process.is_some() || peer.sim_host.is_some());
    world.client.adapter.abort(link.client);
    world.client_gone(link.client);
    assert!(world.client.adapter.peer(link.client).is_none());
}
