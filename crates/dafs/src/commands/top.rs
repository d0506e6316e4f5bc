//! `dafs top`: for the administrator of a running server.

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{say, say_json};
use dafs_server::{AdminReply, AdminRequest, ClientReport, ExposedReport};
use indicatif::BinaryBytes;
use serde::Serialize;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Show the work of a server of this host: the requests of its clients, the busiest first, and its
/// optimistic reads
///
/// Optimistic reads are no requests, so the server counts none: the client that reads does. The first
/// line shows the files and blocks that they can read, and the requests for these files that were sent all the
/// same.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    #[command(flatten)]
    place: Place,
    /// Seconds of one interval
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Intervals to show; without end if left out
    #[arg(long, value_name = "N")]
    count: Option<u32>,
    /// Most clients to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    clients: usize,
    /// Print one JSON object per interval
    #[arg(long)]
    json: bool,
}

/// The counts of a server at one moment.
struct Look {
    time: Instant,
    clients: Vec<ClientReport>,
    exposed: ExposedReport,
}

/// The work of a server in an interval.
#[derive(Debug, PartialEq, Serialize)]
struct Activity {
    /// The busiest first.
    clients: Vec<ClientActivity>,
    optimistic: OptimisticActivity,
}

/// The work for one client, per second.
#[derive(Debug, PartialEq, Serialize)]
struct ClientActivity {
    client: String,
    name: String,
    transport: String,
    requests: f64,
    read_bytes: f64,
    written_bytes: f64,
}

/// Optimistic reads: numbers now, and events per second.
#[derive(Debug, PartialEq, Serialize)]
struct OptimisticActivity {
    files: u64,
    small_files: u64,
    frames_published: u64,
    frames_waiting: u64,
    frames_free: u64,
    missed: f64,
    published: f64,
    wasted: f64,
    changed: f64,
    evicted: f64,
    restored: f64,
    given: f64,
}

impl Activity {
    fn between(before: &Look, after: &Look) -> Self {
        let seconds = (after.time - before.time).as_secs_f64().max(0.001);
        // A server that has started again counts from 0.
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let former: HashMap<u64, &ClientReport> =
            before.clients.iter().map(|client| (client.client, client)).collect();
        let of = |client: &ClientReport| {
            let former = former.get(&client.client);
            let since = |count: fn(&ClientReport) -> u64| {
                rate(former.map_or(0, |former| count(former)), count(client))
            };
            let is_known = !client.transport.is_empty();
            let transport = if is_known { &client.transport } else { &client.door };
            ClientActivity {
                client: format!("{:016x}", client.client),
                name: client.name.clone(),
                transport: transport.clone(),
                requests: since(|client| client.operations),
                read_bytes: since(|client| client.read_bytes),
                written_bytes: since(|client| client.written_bytes),
            }
        };
        let mut clients: Vec<_> = after.clients.iter().map(of).collect();
        clients.sort_by(|one, other| other.requests.total_cmp(&one.requests));
        let (was, is) = (&before.exposed, &after.exposed);
        let optimistic = OptimisticActivity {
            files: is.files,
            small_files: is.small_files,
            frames_published: is.frames_published,
            frames_waiting: is.frames_waiting,
            frames_free: is.frames_free,
            missed: rate(was.missed, is.missed),
            published: rate(was.published, is.published),
            wasted: rate(was.wasted, is.wasted),
            changed: rate(was.changed, is.changed),
            evicted: rate(was.evicted, is.evicted),
            restored: rate(was.restored, is.restored),
            given: rate(was.given, is.given),
        };
        Self { clients, optimistic }
    }
}

impl Top {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let (mut before, mut left) = (self.look()?, self.count);
        while left != Some(0) {
            std::thread::sleep(Duration::from_secs(self.seconds.into()));
            let after = self.look()?;
            self.show(&Activity::between(&before, &after))?;
            before = after;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }

    fn look(&self) -> Result<Look, Failure> {
        let time = Instant::now();
        let AdminReply::Clients(clients) = self.place.ask(&AdminRequest::Clients)? else {
            return Err(other_answer());
        };
        let AdminReply::Exposed(exposed) = self.place.ask(&AdminRequest::Exposed)? else {
            return Err(other_answer());
        };
        Ok(Look { time, clients, exposed })
    }

    fn show(&self, activity: &Activity) -> Result<(), Failure> {
        if self.json {
            return say_json(activity);
        }
        if std::io::stdout().is_terminal() {
            // The top left corner of an empty screen.
            say!("\x1b[H\x1b[2J")?;
        }
        let shown = &activity.optimistic;
        say!(
            "optimistic reads: {} files and {} small ones, blocks of 4 KiB: {} shown, {} waiting, {} free; \
             requests for these files {:.0}/s",
            shown.files,
            shown.small_files,
            shown.frames_published,
            shown.frames_waiting,
            shown.frames_free,
            shown.missed
        )?;
        say!(
            "blocks per second: {:.0} put there, {:.0} in vain, {:.0} changed, {:.0} made room, {:.0} \
             came back; segments given away {:.1}/s",
            shown.published,
            shown.wasted,
            shown.changed,
            shown.evicted,
            shown.restored,
            shown.given
        )?;
        say!(
            "{:>16} {:<9} {:>10} {:>12} {:>12}  name",
            "client",
            "transport",
            "requests/s",
            "read/s",
            "written/s"
        )?;
        let bytes = |rate: f64| BinaryBytes(rate as u64).to_string();
        activity.clients.iter().take(self.clients).try_for_each(|client| {
            say!(
                "{:>16} {:<9} {:>10.0} {:>12} {:>12}  {}",
                client.client,
                client.transport,
                client.requests,
                bytes(client.read_bytes),
                bytes(client.written_bytes),
                client.name
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_server::LatencyReport;

    fn client(client: u64, operations: u64) -> ClientReport {
        ClientReport {
            client,
            door: "dafs".to_owned(),
            name: format!("c{client}"),
            transport: String::new(),
            principal: String::new(),
            address: String::new(),
            silent_seconds: 0,
            courtesy: false,
            opens: 0,
            locks: 0,
            delegations: 0,
            operations,
            read_bytes: 8 * operations,
            written_bytes: 0,
            latency: LatencyReport::default(),
            holds: Vec::new(),
        }
    }

    #[test]
    fn rates_are_those_of_the_interval_and_the_busiest_client_comes_first() {
        let time = Instant::now();
        let was = ExposedReport { missed: 10, restored: 7, files: 5, ..ExposedReport::default() };
        let before = Look { time, clients: vec![client(1, 100), client(2, 100)], exposed: was };
        let is = ExposedReport { missed: 30, restored: 3, files: 1, ..was };
        let clients = vec![client(1, 102), client(2, 110), client(3, 4)];
        let after = Look { time: time + Duration::from_secs(2), clients, exposed: is };
        let activity = Activity::between(&before, &after);
        let rates: Vec<_> =
            activity.clients.iter().map(|client| (client.name.as_str(), client.requests)).collect();
        assert_eq!(rates, [("c2", 5.0), ("c3", 2.0), ("c1", 1.0)]);
        assert_eq!(
            (activity.clients[0].read_bytes, &*activity.clients[0].transport),
            (40.0, "dafs")
        );
        let OptimisticActivity { files, missed, restored, .. } = activity.optimistic;
        assert_eq!((files, missed, restored), (1, 10.0, 0.0), "a restart is no negative rate");
    }
}
