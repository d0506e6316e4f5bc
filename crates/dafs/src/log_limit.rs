//! A rate limit of lines in a server's log, because any client can cause them.
//!
//! A cause is a place in the code. Each may write a burst of lines, and then about one in a second;
//! a single peer gets less of these. Suppressed lines are counted. Their count is logged before the
//! next line of the cause, or before any line after the cause was quiet for a while. Lines that no
//! peer causes, and those for debugging, are not limited. Nor are errors that name no peer: they
//! may report lost data.
//!
//! Invariants
//! * The code and a constant bound the memory for causes and peers.

use crate::limits::{
    LOG_BURST, LOG_INTERVAL, LOG_PEER_BURST, LOG_PEER_CHARACTERS_MAX, LOG_PEER_INTERVAL,
    LOG_PEERS_MAX, LOG_QUIET,
};
use dafs_mem::Mutex;
use std::collections::HashMap;
use std::fmt::{self, Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{self, Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// The number of lines suppressed since the start.
pub(crate) fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// The form of a line.
enum Form {
    Text(Format),
    Json(Format<Json>),
}

/// The ordinary format, or JSON, for the lines within the limit.
pub(crate) struct Limited {
    form: Form,
    causes: Mutex<HashMap<Identifier, Cause>>,
}

impl Limited {
    pub(crate) fn text() -> Self {
        Self { form: Form::Text(Format::default()), causes: Mutex::default() }
    }

    pub(crate) fn json() -> Self {
        Self { form: Form::Json(format::json()), causes: Mutex::default() }
    }
}

impl<S, N> FormatEvent<S, N> for Limited
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (metadata, now) = (event.metadata(), Instant::now());
        let target = metadata.target();
        let own = target == "dafs" || target.starts_with("dafs::");
        let mut causes = self.causes.lock();
        if !own && *metadata.level() <= Level::INFO {
            let mut peer = Peer::default();
            event.record(&mut peer);
            let peer = peer.name.as_deref();
            let cause = causes.entry(metadata.callsite()).or_insert_with(|| Cause::of(metadata));
            if is_limited(*metadata.level(), peer) && !cause.admit(peer, now) {
                LEFT_OUT.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
        for cause in causes.values_mut() {
            if let Some(count) = cause.tell(now) {
                let Cause { target, line, .. } = cause;
                match &self.form {
                    Form::Text(_) => {
                        writeln!(writer, "({count} lines of {target}:{line} were left out)")?;
                    }
                    Form::Json(_) => writeln!(
                        writer,
                        "{{\"left_out\":{count},\"target\":\"{target}\",\"line\":{line}}}"
                    )?,
                }
            }
        }
        drop(causes);
        match &self.form {
            Form::Text(format) => format.format_event(context, writer, event),
            Form::Json(format) => format.format_event(context, writer, event),
        }
    }
}

/// True if a peer may have caused a line.
fn is_limited(level: Level, peer: Option<&str>) -> bool {
    level != Level::ERROR || peer.is_some()
}

/// The peer of a line, without its port.
#[derive(Default)]
struct Peer {
    name: Option<String>,
}

impl Visit for Peer {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if matches!(field.name(), "peer" | "host") {
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = write!(text, "{value:?}");
            // Without the port of an address, or the number of a process.
            let end = text.rfind(':').unwrap_or(text.len());
            let begin = text.find("uid ").unwrap_or(0).min(end);
            self.name = Some(text[begin..end].chars().take(LOG_PEER_CHARACTERS_MAX).collect());
        }
    }
}

/// Lines from one place in the code.
#[derive(Default)]
struct Cause {
    target: &'static str,
    line: u32,
    all: Bucket,
    peers: HashMap<String, Bucket>,
    left_out: u64,
    /// Time of the latest suppressed line; `None` if the count is due now.
    left_out_at: Option<Instant>,
}

impl Cause {
    fn of(metadata: &'static Metadata<'static>) -> Self {
        let line = metadata.line().unwrap_or_default();
        Self { target: metadata.target(), line, ..Self::default() }
    }

    /// Counts a line. Returns true if it is to be written.
    fn admit(&mut self, peer: Option<&str>, now: Instant) -> bool {
        let admitted = peer.is_none_or(|peer| self.admit_peer(peer, now))
            && self.all.take(LOG_BURST, LOG_INTERVAL, now);
        if !admitted {
            self.left_out += 1;
        }
        self.left_out_at = (!admitted).then_some(now);
        admitted
    }

    /// The number of suppressed lines, when the report is due.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        let quiet = |at: Instant| now.saturating_duration_since(at) >= LOG_QUIET;
        let due = self.left_out > 0 && self.left_out_at.is_none_or(quiet);
        due.then(|| std::mem::take(&mut self.left_out))
    }

    fn admit_peer(&mut self, peer: &str, now: Instant) -> bool {
        if let Some(bucket) = self.peers.get_mut(peer) {
            return bucket.take(LOG_PEER_BURST, LOG_PEER_INTERVAL, now);
        }
        if self.peers.len() >= LOG_PEERS_MAX {
            self.peers.retain(|_, bucket| !bucket.is_full(now));
        }
        // With more peers, only the limit of the cause applies.
        self.peers.len() >= LOG_PEERS_MAX
            || self.peers.entry(peer.to_owned()).or_default().take(
                LOG_PEER_BURST,
                LOG_PEER_INTERVAL,
                now,
            )
    }
}

/// A token bucket, represented by the time when it will be full.
#[derive(Default)]
struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes a token, if there is one.
    fn take(&mut self, burst: u32, interval: Duration, now: Instant) -> bool {
        let full_at = self.full_at.unwrap_or(now).max(now) + interval;
        let admitted = full_at.saturating_duration_since(now) <= interval * burst;
        if admitted {
            self.full_at = Some(full_at);
        }
        admitted
    }

    /// True if all tokens are there.
    fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(cause: &mut Cause, peer: Option<&str>, lines: u32, now: Instant) -> u32 {
        (0..lines).map(|_| u32::from(cause.admit(peer, now))).sum()
    }

    #[test]
    fn a_cause_writes_some_lines_at_once_and_then_one_in_a_while() {
        let (mut cause, mut now) = (Cause::default(), Instant::now());
        assert_eq!(admitted(&mut cause, None, 10_000, now), LOG_BURST);
        assert_eq!(cause.tell(now), None);
        now += LOG_INTERVAL;
        assert!(cause.admit(None, now));
        assert_eq!(cause.tell(now), Some(u64::from(10_000 - LOG_BURST)));
        assert!(!cause.admit(None, now));
        // The cause is quiet from here on, so any line reports it.
        assert_eq!((cause.tell(now), cause.tell(now + LOG_QUIET)), (None, Some(1)));
        now += LOG_INTERVAL * LOG_BURST * 2;
        assert_eq!(admitted(&mut cause, None, 10_000, now), LOG_BURST);
    }

    #[test]
    fn an_error_that_names_no_peer_is_never_left_out() {
        assert!(!is_limited(Level::ERROR, None));
        assert!(is_limited(Level::ERROR, Some("192.0.2.1")));
        assert!(is_limited(Level::WARN, None));
    }

    #[test]
    fn a_peer_does_not_take_the_lines_about_others() {
        let (mut cause, now) = (Cause::default(), Instant::now());
        assert_eq!(admitted(&mut cause, Some("192.0.2.1"), 10_000, now), LOG_PEER_BURST);
        assert_eq!(admitted(&mut cause, Some("192.0.2.2"), 1, now), 1);
        // Many peers together get no more than the cause has, and no unbounded memory.
        let many = (0..10_000).map(|peer| format!("peer {peer}"));
        let lines: u32 = many.map(|peer| admitted(&mut cause, Some(&peer), 1, now)).sum();
        assert_eq!(lines, LOG_BURST - LOG_PEER_BURST - 1);
        assert!(cause.peers.len() <= LOG_PEERS_MAX);
        let later = now + LOG_PEER_INTERVAL * 2 * LOG_PEER_BURST;
        assert_eq!(admitted(&mut cause, Some("198.51.100.1"), 1, later), 1);
        assert_eq!(cause.peers.len(), 1, "quiet peers are removed");
    }
}
