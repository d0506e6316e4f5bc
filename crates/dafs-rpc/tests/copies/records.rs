//! The server copies the first bytes of a large record over TCP, which came with its head.

use crate::alone;
use crate::sockets::{Raw, Server, call, pattern, procedures, sum};
use dafs_mem::{Site, copied_bytes};
use dafs_rpc::server::Config;

#[test]
fn little_of_a_large_record_is_copied() {
    let _alone = alone();
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    let data = pattern(1 << 20);
    let one = call(7, procedures::SUM_LATER, &data);
    // The client may not expect the first large record.
    raw.send(&one);
    raw.reply().unwrap();
    let before = copied_bytes(Site::RpcStaging) + copied_bytes(Site::RpcDeferred);
    for _ in 0..20 {
        raw.send(&one);
        assert_eq!(raw.reply().unwrap().2, sum(&data));
    }
    let copied = copied_bytes(Site::RpcStaging) + copied_bytes(Site::RpcDeferred) - before;
    assert!(copied < 10 << 20, "{copied} bytes copied");
}
