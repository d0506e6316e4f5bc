//! `dafs ping`: round trips to a server, and the transport.

use crate::failure::Failure;
use crate::output::say;
use crate::session::Sessions;
use dafs_client::{DafsUrl, ProofMethod, Proven, TlsPeer};
use serde_json::json;
use std::time::Duration;

/// Measure round trips to a server, and show the transport and the reason for it
#[derive(Debug, clap::Args)]
pub(crate) struct Ping {
    /// The server: dafs://HOST[:PORT]
    url: DafsUrl,
    /// Round trips
    #[arg(short, long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Says who the client is for the server, and how it knows.
fn who(proven: &Proven) -> String {
    let name = proven.name.as_deref().unwrap_or("a principal");
    match proven.method {
        ProofMethod::Gss => format!("you are {name}, proven by Kerberos"),
        ProofMethod::Password => format!("you are {name}, proven by a password"),
        _ => {
            "you have proven nothing: the server knows your address, and on its own host your user"
                .to_owned()
        }
    }
}

/// Says how the connection is protected.
fn protection(tls: &TlsPeer) -> String {
    let server = tls.subject.as_deref().unwrap_or("the server");
    format!("TLS 1.3 with {}, {server} has proven its name by its certificate", tls.suite)
}

impl Ping {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let client = sessions.dafs_client(&self.url)?;
        let transport = client.transport();
        if !self.json {
            say!("{}: transport {}: {}", client.server(), transport.kind, transport.why)?;
            if let Some(tls) = client.tls() {
                say!("{}", protection(&tls))?;
            }
            say!("{}", who(&client.session().proven))?;
        }
        let mut times = Vec::with_capacity(self.count as usize);
        for _ in 0..self.count {
            times.push(client.ping().map_err(|error| Failure::remote(&self.url, &error.into()))?);
        }
        times.sort_unstable();
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1000.0;
        // INVARIANT: the count is at least 1, so there is a first, a middle and a last time.
        let (min, max) = (microseconds(times[0]), microseconds(times[times.len() - 1]));
        let median = microseconds(times[times.len() / 2]);
        if self.json {
            let session = client.session();
            let report = json!({
                "server": client.server(),
                "transport": transport.kind.to_string(),
                "why": transport.why,
                "round_trips": times.len(),
                "min_microseconds": min,
                "median_microseconds": median,
                "max_microseconds": max,
                "lease_seconds": session.lease.as_secs(),
                "read_bytes_max": session.read_bytes_max,
                "write_bytes_max": session.write_bytes_max,
                "trusted": session.trusted,
                "proven_by": session.proven.method.to_string(),
                "proven_name": session.proven.name,
                "checksums": session.checksums,
                "tls": client.tls().map(|tls| tls.suite.to_string()),
            });
            say!("{report}")
        } else {
            say!("{} round trips: {min:.1} / {median:.1} / {max:.1} us min/median/max", {
                times.len()
            })
        }
    }
}
