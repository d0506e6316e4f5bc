//! Registration with the rpcbind of this host, for NFSv3 clients that ask it for ports (RFC 1833
//! 3).

use dafs_rpc::client::{Options, Procedure, RpcClient};
use dafs_wire::xdr::{Decoder, Encoder};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const RPCBIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 111);
const PORTMAPPER: u32 = 100_000;
const PORTMAPPER_VERSION: u32 = 2;
const SET: u32 = 1;
const UNSET: u32 = 2;
const TCP: u32 = 6;

/// The registered programs and versions.
const PROGRAMS: [(u32, u32); 3] = [(100_003, 3), (100_003, 4), (100_005, 3)];

/// The entries of one server. They are removed when this is dropped.
pub(super) struct Registration {
    port: u16,
}

impl Registration {
    /// Registers the port, in place of entries that an earlier server left there. On a host without
    /// rpcbind it writes to the log, and the server starts all the same.
    pub(super) fn make(port: u16) -> Option<Self> {
        let outcome = connect().and_then(|rpcbind| {
            for (program, version) in PROGRAMS {
                change(&rpcbind, UNSET, program, version, 0)?;
                if !change(&rpcbind, SET, program, version, port)? {
                    return Err("it refused; is the server root?".to_owned());
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => Some(Self { port }),
            Err(error) => {
                tracing::warn!("NFS is not registered with rpcbind: {error}");
                None
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let outcome = connect().and_then(|rpcbind| {
            let unset = |(program, version)| change(&rpcbind, UNSET, program, version, self.port);
            PROGRAMS.into_iter().try_for_each(|entry| unset(entry).map(drop))
        });
        if let Err(error) = outcome {
            tracing::warn!("NFS could not be taken out of rpcbind: {error}");
        }
    }
}

fn connect() -> Result<RpcClient, String> {
    let timeout = Duration::from_secs(2);
    let options = Options { connect_timeout: timeout, call_timeout: timeout, ..Options::default() };
    RpcClient::connect(RPCBIND, options, None).map_err(|error| format!("{RPCBIND}: {error}"))
}

/// Sets or removes one entry. Returns false when rpcbind refuses, or there was none to remove.
fn change(
    rpcbind: &RpcClient,
    procedure: u32,
    program: u32,
    version: u32,
    port: u16,
) -> Result<bool, String> {
    let mut args = Vec::new();
    let mut encoder = Encoder::new(&mut args);
    for number in [program, version, TCP, u32::from(port)] {
        encoder.u32(number);
    }
    let what = Procedure { program: PORTMAPPER, version: PORTMAPPER_VERSION, procedure };
    let results = rpcbind.call(what, &args).map_err(|error| error.to_string())?;
    Decoder::new(&results).bool().map_err(|error| error.to_string())
}
