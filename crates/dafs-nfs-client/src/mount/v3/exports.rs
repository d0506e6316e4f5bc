//! First handles by MOUNT (RFC 1813 appendix I), and the server of MOUNT.
//!
//! Our servers answer MOUNT on the port of NFS. Others answer it on a port of its own, which their
//! port mapper reports (RFC 1833), and only over TCP even if NFS is used over RDMA.

use crate::files::Handle;
use crate::mount::error::{MountError, Result};
use crate::mount::limits::{EXPORT_LIST_BYTES_MAX, EXPORTS_MAX, SMALL_RESULT_BYTES};
use crate::mount::link::{Link, is_loss};
use crate::mount::options::own_identity;
use crate::mount::{reserved, route};
use dafs_rpc::AcceptStatus;
use dafs_rpc::client::{CallError, Identity, Options, Pending, Procedure, Results, RpcClient};
use dafs_wire::mount3::{self, decode_mounted};
use dafs_wire::nfs4::Status;
use dafs_wire::xdr::{Decoder, Encoder};

/// The port of the port mapper.
const PORTMAP_PORT: u16 = 111;

/// GETPORT of the port mapper.
const GETPORT: Procedure = Procedure { program: 100_000, version: 2, procedure: 3 };

/// The number of TCP.
const PROTOCOL_TCP: u32 = 6;

/// The server of MOUNT.
#[derive(Debug)]
pub(super) struct Mounter {
    rpc: RpcClient,
}

impl Mounter {
    /// Finds the server of MOUNT.
    pub(super) fn find(link: &Link) -> Result<Self> {
        let (mut retry_timer, mut connected) = (link.retry_timer(), link.connected());
        loop {
            let same = Self { rpc: connected.rpc.clone() };
            let asked = same.submit(mount3::Procedure::Null, &[], SMALL_RESULT_BYTES);
            match asked.and_then(|pending| link.wait(pending)) {
                Ok(_) => {
                    link.note_answer();
                    return Ok(same);
                }
                Err(CallError::NotDone(
                    AcceptStatus::ProgramUnavailable | AcceptStatus::ProgramMismatch(_),
                )) => break,
                Err(error) if is_loss(&error) => {
                    connected = link.reconnect(&connected, &error, &mut retry_timer)?;
                }
                Err(error) => return Err(link.rejected(error)),
            }
        }
        link.note_answer();
        let server = link.server();
        Self::elsewhere(link)
            .map_err(|reason| MountError::Connect { server: server.clone(), reason: reason.into() })
    }

    /// Asks the port mapper, and connects to the port that it reports.
    fn elsewhere(link: &Link) -> Result<Self, String> {
        let options = link.options();
        let no_mapper = |error: &dyn std::fmt::Display| {
            format!(
                "NFSv3 needs MOUNT, which the server does not answer here, and its port mapper \
                 cannot be asked ({error}); use vers=4.2 or vers=4.1"
            )
        };
        let mut reason = String::new();
        // Neither of them takes RPCSEC_GSS on the usual servers, so the user is only claimed. The
        // handle that MOUNT yields opens nothing by itself.
        let identity = match &options.identity {
            Identity::Gss(_) => own_identity(),
            claimed => claimed.clone(),
        };
        for address in route::resolve(link.route().host(), PORTMAP_PORT)? {
            let (call_timeout, identity) = (options.connect_timeout, identity.clone());
            let rpc = Options { call_timeout, identity, ..link.rpc_options() };
            let tls = rpc.tls.as_ref().map(|tls| tls.for_program(mount3::PROGRAM, mount3::VERSION));
            // No port mapper has TLS.
            let in_clear = Options { tls: None, ..rpc.clone() };
            let rpc = Options { tls, ..rpc };
            let asked = RpcClient::connect(address, in_clear, None)
                .map_err(|error| no_mapper(&error))
                .and_then(|mapper| mount_port(&mapper).map_err(|error| no_mapper(&error)));
            let port = match asked {
                Ok(0) => return Err("the server does not offer MOUNT over TCP".to_owned()),
                Ok(port) => port,
                Err(error) => {
                    reason = error;
                    continue;
                }
            };
            let mut address = address;
            address.set_port(port);
            let connected = reserved::connect(address, options)
                .and_then(|stream| RpcClient::from_stream(stream, rpc, None));
            match connected {
                Ok(rpc) => return Ok(Self { rpc }),
                Err(error) => reason = format!("MOUNT on {address}: {error}"),
            }
        }
        Err(reason)
    }

    fn call(
        &self,
        procedure: mount3::Procedure,
        args: &[u8],
        results_bytes_max: usize,
    ) -> Result<Results, CallError> {
        self.submit(procedure, args, results_bytes_max)?.wait()
    }

    fn submit(
        &self,
        procedure: mount3::Procedure,
        args: &[u8],
        results_bytes_max: usize,
    ) -> Result<Pending, CallError> {
        let procedure = Procedure {
            program: mount3::PROGRAM,
            version: mount3::VERSION,
            procedure: procedure.number(),
        };
        let args = [args];
        let request = dafs_rpc::client::Request::new(procedure, &args, results_bytes_max);
        self.rpc.submit_request(&request)
    }

    /// The handle of an exported directory, or of one below it, and the numbers of the flavours that
    /// the server takes there.
    pub(super) fn mount(&self, link: &Link, path: &[u8]) -> Result<(Handle, Vec<u32>)> {
        let mut args = Vec::new();
        Encoder::new(&mut args).opaque(path);
        let answer = self.call(mount3::Procedure::Mnt, &args, SMALL_RESULT_BYTES);
        let results = answer.map_err(|error| link.rejected(error))?;
        match decode_mounted(&results)? {
            Ok((handle, flavors)) => Ok((Handle(handle.0.to_vec()), flavors)),
            // The numbers are those of NFS.
            Err(status) => Err(MountError::Refused {
                operation: mount3::Procedure::Mnt.name(),
                status: Status::from_u32(status.number()),
            }),
        }
    }

    /// The paths that are exported.
    pub(super) fn exports(&self, link: &Link) -> Result<Vec<Vec<u8>>> {
        let answer = self.call(mount3::Procedure::Export, &[], EXPORT_LIST_BYTES_MAX);
        let results = answer.map_err(|error| link.rejected(error))?;
        let mut d = Decoder::new(&results);
        let mut paths = Vec::new();
        while d.bool()? && paths.len() < EXPORTS_MAX {
            paths.push(d.opaque(mount3::PATH_BYTES_MAX)?.to_vec());
            while d.bool()? {
                d.opaque(mount3::NAME_BYTES_MAX)?;
            }
        }
        Ok(paths)
    }
}

/// The TCP port of MOUNT; 0 if there is none.
fn mount_port(mapper: &RpcClient) -> Result<u16, CallError> {
    let mut args = Vec::new();
    let mut e = Encoder::new(&mut args);
    [mount3::PROGRAM, mount3::VERSION, PROTOCOL_TCP, 0].into_iter().for_each(|word| e.u32(word));
    let results = mapper.call(GETPORT, &args)?;
    let port = Decoder::new(&results).u32().map_err(|_| CallError::Malformed)?;
    u16::try_from(port).map_err(|_| CallError::Malformed)
}
