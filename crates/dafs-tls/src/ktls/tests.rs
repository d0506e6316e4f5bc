//! Tests of the parts that need no kernel with TLS, and of the whole way where the kernel has it.

use super::*;
use crate::keys::Side;
use crate::{Channel, OpenError, Opened, sealed_bytes};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn keys(side: Side) -> TrafficKeys {
    TrafficKeys::of_test(side, Suite::Aes256, 0)
}

#[test]
fn the_kernels_structures_have_their_fields_in_order() {
    let info = crypto_info(&TrafficKeys::of_test(Side::Client, Suite::Aes128, 0x0102).send);
    assert_eq!(info.len(), 40);
    assert_eq!(info[..2], 0x0304u16.to_ne_bytes());
    assert_eq!(info[2..4], 51u16.to_ne_bytes());
    assert_eq!(info[4..12], [0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab]);
    let key: Vec<u8> = (1..=16).collect();
    assert_eq!(info[12..28], key);
    assert_eq!(info[28..32], [0xa0, 0xa1, 0xa2, 0xa3]);
    assert_eq!(info[32..], [0, 0, 0, 0, 0, 0, 1, 2]);
    let info = crypto_info(&TrafficKeys::of_test(Side::Client, Suite::Aes256, 0).send);
    assert_eq!(info.len(), 56);
    assert_eq!(info[2..4], 52u16.to_ne_bytes());
    let key: Vec<u8> = (1..=32).collect();
    assert_eq!(info[12..44], key);
}

#[test]
fn reads_of_a_socket_without_types_are_data_or_a_cut() {
    let (mut client, server) = tcp_pair();
    client.write_all(b"data").unwrap();
    let judge = Judge::new(Side::Server);
    let mut tls = KernelTls { judge, suite: Suite::Aes128, controls: 0 };
    let mut place = [0; 16];
    let views = [VolatileSlice::from_mut(&mut place)];
    assert_eq!(tls.receive(server.as_fd(), &views).unwrap(), Received::Data(4));
    drop(client);
    assert_eq!(tls.receive(server.as_fd(), &views).unwrap(), Received::Cut);
    assert!(tls.records(server.as_fd()).is_err());
}

#[test]
fn bytes_of_a_record_are_found_in_the_views() {
    let (mut first, mut second) = ([1, 2], [3, 4, 5]);
    let views = [VolatileSlice::from_mut(&mut first), VolatileSlice::from_mut(&mut second)];
    assert_eq!(first_bytes(&views, 4), [1, 2, 3, 4]);
    assert_eq!(first_bytes(&views, 1), [1]);
    assert_eq!(first_bytes(&views, 0), []);
}

/// Where the kernel has no TLS, the keys come back and the socket still works with them.
fn check_fallback(reason: &NoKernelTls) {
    assert!(reason.to_string().contains("kernel"));
    let (mut client, mut server) = tcp_pair();
    let Err(InstallError::Unavailable { keys: back, .. }) =
        install(server.as_fd(), keys(Side::Server))
    else {
        panic!("the kernel has no TLS, and takes keys");
    };
    let mut channel = Channel::new(*back);
    let mut other = Channel::new(keys(Side::Client));
    let mut record = vec![0; sealed_bytes(5)];
    other.sealer.seal(&[b"plain"], &mut record).unwrap();
    client.write_all(&record).unwrap();
    let mut received = vec![0; record.len()];
    server.read_exact(&mut received).unwrap();
    assert_eq!(channel.opener.open(&mut received), Ok(Opened::Data(&mut b"plain".to_owned())));
}

/// Where it has, this end is the kernel and the other one is in user space.
fn check_kernel() {
    let (mut client, server) = tcp_pair();
    let mut tls = install(server.as_fd(), keys(Side::Server)).unwrap();
    let mut other = Channel::new(keys(Side::Client));
    let mut record = vec![0; sealed_bytes(5)];
    other.sealer.seal(&[b"plain"], &mut record).unwrap();
    client.write_all(&record).unwrap();
    let mut place = [0; 64];
    let views = [VolatileSlice::from_mut(&mut place)];
    assert_eq!(tls.receive(server.as_fd(), &views).unwrap(), Received::Data(5));
    assert_eq!(&place[..5], b"plain");
    (&server).write_all(b"answer").unwrap();
    let mut answer = vec![0; sealed_bytes(6)];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(other.opener.open(&mut answer), Ok(Opened::Data(&mut b"answer".to_owned())));
    assert_eq!(tls.records(server.as_fd()).unwrap(), Records { sent: 1, received: 1 });
    client.write_all(&other.sealer.close(Alert::CLOSE_NOTIFY).unwrap()).unwrap();
    let views = [VolatileSlice::from_mut(&mut place)];
    assert_eq!(tls.receive(server.as_fd(), &views).unwrap(), Received::Closed);
    tls.close(server.as_fd(), Alert::RECORD_OVERFLOW).unwrap();
    let mut alert = vec![0; sealed_bytes(2)];
    client.read_exact(&mut alert).unwrap();
    let wanted = OpenError::Control(ControlError::PeerAlert(Alert::RECORD_OVERFLOW));
    assert_eq!(other.opener.open(&mut alert), Err(wanted));
}

/// A connection that its peer has ended stays in user space, for what the peer has sent before.
fn check_ended() {
    let (client, mut server) = tcp_pair();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    let refused = install(server.as_fd(), keys(Side::Server));
    assert!(matches!(refused, Err(InstallError::Unavailable { reason: NoKernelTls::Ended, .. })));
}

#[test]
fn the_kernel_takes_over_or_the_keys_come_back() {
    match available() {
        Ok(()) => {
            check_kernel();
            check_ended();
        }
        Err(reason) => check_fallback(&reason),
    }
}
