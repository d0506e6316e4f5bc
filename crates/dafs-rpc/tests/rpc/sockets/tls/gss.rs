//! Calls of RPCSEC_GSS over sockets, in the clear and inside TLS.

use super::super::common::{Raw, procedures};
use super::World;
use dafs_rpc::gss::{ContextLimits, Contexts};
use dafs_rpc::server::Config;
use dafs_testkit_rpc::gss::{Client, Inline, ToyKeys, accepted, init, init_results, ticket};
use dafs_wire::rpc::FragmentMark;
use dafs_wire::rpc::gss::{Credential, InitResults, Service};
use rustls::{ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

fn connect(world: &World, inside_tls: bool) -> Box<dyn Connection> {
    if inside_tls {
        Box::new(world.foreign_client(world.foreign(false, &["sunrpc"])))
    } else {
        Box::new(Raw::connect(&world.server).0)
    }
}

trait Connection: Read + Write {}

impl Connection for TcpStream {}

impl Connection for StreamOwned<ClientConnection, TcpStream> {}

fn send(connection: &mut dyn Connection, message: &[u8]) {
    let mark = FragmentMark::whole(message.len()).unwrap().to_bytes();
    connection.write_all(&[&mark, message].concat()).unwrap();
    connection.flush().unwrap();
}

/// The next record. None when the connection has ended.
fn record(connection: &mut dyn Connection) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    connection.read_exact(&mut mark).ok()?;
    let mut record = vec![0; FragmentMark::from_bytes(mark).len as usize];
    connection.read_exact(&mut record).ok()?;
    Some(record)
}

/// The procedure of the calls of [`Client`] returns the arguments.
const _: () = assert!(procedures::ECHO == 1);

#[test]
fn a_replay_has_no_answer_and_ends_its_connection() {
    let contexts = Contexts::new(ContextLimits::default());
    let world = World::with_gss(Config::default(), Some(Arc::new(Inline(contexts.clone()))));
    let mut first = connect(&world, false);
    send(&mut *first, &init(Credential::Init, &ticket(0, 9, 200, "anna")));
    let reply = record(&mut *first).unwrap();
    let InitResults::Complete { handle, .. } = init_results(accepted(&reply).1) else { panic!() };
    let client = Client { keys: ToyKeys::initiator(9), handle: handle.to_vec() };
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    for (sequence, (inside_tls, then_inside_tls)) in (1..).zip(ways) {
        let message = client.call(sequence, Service::Integrity, b"args");
        let mut used = connect(&world, inside_tls);
        send(&mut *used, &message);
        let reply = record(&mut *used).unwrap();
        assert_eq!(client.results(sequence, Service::Integrity, &reply), b"args");
        // On another connection, and on the same one.
        let mut other = connect(&world, then_inside_tls);
        for connection in [&mut other, &mut used] {
            send(&mut **connection, &message);
            assert_eq!(record(&mut **connection), None);
        }
        // The context goes on.
        let next = client.call(100 + sequence, Service::Privacy, b"more");
        let mut again = connect(&world, then_inside_tls);
        send(&mut *again, &next);
        let reply = record(&mut *again).unwrap();
        assert_eq!(client.results(100 + sequence, Service::Privacy, &reply), b"more");
    }
    assert_eq!(contexts.counts().replayed, 8);
}
