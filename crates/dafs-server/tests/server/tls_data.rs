//! TLS at data servers, in processes of their own and in that of the metadata server: clients in TLS use
//! them, and no data server gives more than the export of a file does.

use crate::common::{WRITE, pattern, session};
use crate::striped::{UNIT, config, create, data_sessions, far_with, placement};
use crate::tls::{Pki, mount, read, write};
use dafs_nfs_client::NfsError;
use dafs_rpc::client::CallError;
use dafs_server::{Config, DataProcess, ExportSource, Server};
use dafs_service::TransportSecurity;
use dafs_testkit::eventually;
use dafs_wire::nfs4::{StableHow, Status};
use dafs_wire::rpc::{AuthStatus, RejectStatus};
use std::path::Path;
use tempfile::TempDir;

/// The configuration of a cluster with certificates, and its data servers in processes of their own.
pub(crate) fn cluster(base: &Path, pki: &Pki, apart: bool) -> (Vec<DataProcess>, Config) {
    let (processes, mut config) = match apart {
        true => far_with(base, |data| data.general.tls = Some(pki.server_files())),
        false => (Vec::new(), config(base)),
    };
    config.tls = Some(pki.server_files());
    config.exports[0].options.admits.unprivileged_ports = true;
    (processes, config)
}

/// Bytes of a stripe for mounts. They use no layout of shorter ones.
pub(crate) const STRIPE: usize = 64 << 10;

pub(crate) fn make_stripes_long(config: &mut Config) {
    let ExportSource::Striped { unit_bytes, .. } = &mut config.exports[0].source else {
        panic!("the source")
    };
    *unit_bytes = (STRIPE as u32).try_into().unwrap();
}

/// Bytes that clients have written at data servers.
pub(crate) fn written_there(base: &Path) -> u64 {
    crate::striped::reports(base).iter().map(|node| node.written_bytes).sum()
}

#[test]
fn mounts_in_tls_use_data_servers_in_tls() {
    use TransportSecurity::{Mtls, Tls};
    for (apart, least) in [(true, Tls), (true, Mtls), (false, Mtls)] {
        let (dir, pki) = (TempDir::new().unwrap(), Pki::new());
        let (processes, mut config) = cluster(dir.path(), &pki, apart);
        config.exports[0].options.admits.transport_security = least;
        make_stripes_long(&mut config);
        let server = Server::start(&config).unwrap();
        let address = server.nfs_addresses()[0];
        let mounted = mount(address, &format!("pnfs=yes&{}", pki.options(least))).unwrap();
        let data = pattern(9 * STRIPE, 1);
        eventually("data servers are used", || {
            write(&mounted, "f", &data).unwrap();
            assert!(read(&mounted, "f", data.len()).unwrap() == data);
            written_there(dir.path()) >= data.len() as u64
        });
        // Neither here nor there in the clear.
        let clear = mount(address, "pnfs=yes").and_then(|mount| read(&mount, "f", 1));
        assert!(clear.is_err(), "{apart} {least}");
        drop(mounted);
        server.stop();
        processes.into_iter().for_each(DataProcess::stop);
    }
}

#[test]
fn a_data_server_refuses_clear_calls_for_files_whose_export_demands_tls() {
    for apart in [true, false] {
        let (dir, pki) = (TempDir::new().unwrap(), Pki::new());
        let (processes, mut config) = cluster(dir.path(), &pki, apart);
        let server = Server::start(&config).unwrap();
        let client = session(&server, b"pnfs");
        let file = create(&client, b"f");
        eventually("a layout", || placement(&client, &file, WRITE).is_ok());
        let place = placement(&client, &file, WRITE).unwrap();
        let data = data_sessions(&place, b"pnfs");
        let write = |node: usize| {
            let handle = &place.handles[node];
            data[node].write(handle, file.stateid, node as u64 * UNIT, b"x", StableHow::FileSync)
        };
        write(0).unwrap();
        // From now on the export demands more. The client still has its layout, its session, and a
        // state-id.
        config.exports[0].options.admits.transport_security = TransportSecurity::Tls;
        server.set_read_config(Box::new(move || Ok(config.clone())));
        server.reload().unwrap();
        for node in [1, 2] {
            let error = write(node).unwrap_err();
            // A data server of the same process knows the rule before it looks at the call.
            let weak = RejectStatus::Auth(AuthStatus::TooWeak);
            let is_refused = match &error {
                NfsError::Call(CallError::Denied(status)) => *status == weak,
                error => matches!(error.status(), Some(Status::Access | Status::WrongSec)),
            };
            assert!(is_refused, "{apart}: {error:?}");
        }
        // A cached authorisation has its time.
        eventually("the cached one ends", || write(0).is_err());
        server.stop();
        processes.into_iter().for_each(DataProcess::stop);
    }
}
