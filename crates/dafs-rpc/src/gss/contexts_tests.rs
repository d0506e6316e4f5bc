//! The table of contexts against a model.

use super::*;
use dafs_dat::connections::Origin;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// Limits with one part of the table.
const LIMITS: ContextLimits = ContextLimits {
    contexts: 16,
    half_open: 8,
    half_open_per_host: 4,
    begins_per_second: u32::MAX,
};
const UNPROVEN_MAX: usize = 2;
const PROVEN_MAX: usize = 14;

const SECOND: u64 = 1_000_000_000;

/// Tokens that protect nothing.
#[derive(Debug)]
struct NoKeys;

impl MessageKeys for NoKeys {
    fn mic_bytes(&self) -> usize {
        17
    }

    fn mic(&self, _: &[&[u8]], mic: &mut [u8]) {
        mic.fill(7);
    }

    fn verify(&self, _: &[&[u8]], _: &[u8]) -> Result<(), BadToken> {
        Ok(())
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        plain_bytes
    }

    fn seal(&self, parts: &[&[u8]], token: &mut [u8]) {
        token.copy_from_slice(&parts.concat());
    }

    fn open(&self, token: &[u8], plain: &mut [u8]) -> Result<usize, BadToken> {
        plain[..token.len()].copy_from_slice(token);
        Ok(token.len())
    }
}

fn established(principal: u8, seconds: u64) -> Established {
    let (exported_name, display_name) = ([principal].into(), Box::default());
    Established {
        principal: Principal { exported_name, display_name },
        remaining: Duration::from_secs(seconds),
        keys: Box::new(NoKeys),
    }
}

/// A mechanism that needs no token.
struct Ready(Option<Established>);

impl PartialContext for Ready {
    fn accept(&mut self, _: &[u8]) -> Step {
        Step::Complete { token: Vec::new(), established: self.0.take().unwrap() }
    }
}

fn enter(contexts: &Arc<Contexts>, origin: Origin, seconds: u64, now_ns: u64) -> Arc<Context> {
    enter_of(contexts, origin, (0, seconds), now_ns)
}

/// Establishes a context of a principal, with a ticket for these seconds.
fn enter_of(
    contexts: &Arc<Contexts>,
    origin: Origin,
    (principal, seconds): (u8, u64),
    now_ns: u64,
) -> Arc<Context> {
    let establishing = contexts.begin(origin, 0, now_ns).unwrap();
    let ready = Ready(Some(established(principal, seconds)));
    let InitAnswer::Complete { context, .. } = establishing.step(b"", now_ns, || Box::new(ready))
    else {
        panic!("not established")
    };
    context
}

/// A context of a table of its own.
pub(crate) fn context() -> Arc<Context> {
    enter(&Contexts::new(LIMITS), Origin::Sim(1), 1000, 0)
}

#[derive(Debug, Clone)]
enum Op {
    Enter { principal: u8, seconds: u64, is_used: bool },
    Use(usize),
    Destroy(usize),
    Tick,
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..4, 0u64..400, any::<bool>()).prop_map(|(principal, seconds, is_used)| {
            Op::Enter { principal, seconds, is_used }
        }),
        6 => any::<usize>().prop_map(Op::Use),
        1 => any::<usize>().prop_map(Op::Destroy),
        1 => Just(Op::Tick),
        2 => (1u64..30).prop_map(Op::Pass),
    ]
}

/// A context of the model.
struct Modelled {
    context: Arc<Context>,
    principal: u8,
    end_ns: u64,
    /// The order of its last call; none before the first.
    used: Option<u64>,
}

/// All contexts, in the order in which they were established.
#[derive(Default)]
struct Model(Vec<Modelled>);

impl Model {
    fn remove_first_unproven_above(&mut self, max: usize) {
        while self.0.iter().filter(|of| of.used.is_none()).count() > max {
            let first = self.0.iter().position(|of| of.used.is_none()).unwrap();
            self.0.remove(first);
        }
    }

    fn proven_of(&self, principal: u8) -> usize {
        let of_principal = |of: &&Modelled| of.used.is_some() && of.principal == principal;
        self.0.iter().filter(of_principal).count()
    }

    /// The principal with the most contexts loses its least recently used one.
    fn remove_proven_above(&mut self, max: usize) {
        while self.0.iter().filter(|of| of.used.is_some()).count() > max {
            let proven = self.0.iter().enumerate().filter(|(_, of)| of.used.is_some());
            let rank = |of: &Modelled| (Reverse(self.proven_of(of.principal)), of.used);
            let (gone, _) = proven.min_by_key(|(_, of)| rank(of)).unwrap();
            self.0.remove(gone);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_table_is_that_of_the_model(ops in prop::collection::vec(op(), 1..300)) {
        let contexts = Contexts::new(LIMITS);
        let mut model = Model::default();
        let mut gone: Vec<Arc<Context>> = Vec::new();
        let mut now_ns = 0;
        for op in ops {
            // Each use has a time of its own, so the order is known.
            now_ns += 1;
            let before: Vec<_> = model.0.iter().map(|of| of.context.clone()).collect();
            match op {
                Op::Enter { principal, seconds, is_used } => {
                    // One host alone has half of the room: it loses its oldest above that.
                    let context =
                        enter_of(&contexts, Origin::Sim(1), (principal, seconds), now_ns);
                    model.remove_first_unproven_above(UNPROVEN_MAX / 2 - 1);
                    let end_ns = now_ns + (seconds + 60) * SECOND;
                    let used = is_used.then_some(now_ns);
                    if is_used {
                        contexts.use_now(&context, now_ns);
                    }
                    model.0.push(Modelled { context, principal, end_ns, used });
                    model.remove_proven_above(PROVEN_MAX);
                }
                Op::Use(at) if !model.0.is_empty() => {
                    let at = at % model.0.len();
                    let handle = model.0[at].context.handle().to_bytes();
                    let found = contexts.find(&handle, now_ns);
                    prop_assert_eq!(found.is_some(), now_ns < model.0[at].end_ns);
                    if let Some(context) = found {
                        contexts.use_now(&context, now_ns);
                        model.0[at].used = Some(now_ns);
                        model.remove_proven_above(PROVEN_MAX);
                    } else {
                        model.0.remove(at);
                    }
                }
                Op::Destroy(at) if !model.0.is_empty() => {
                    let modelled = model.0.remove(at % model.0.len());
                    contexts.destroy(&modelled.context);
                }
                Op::Tick => {
                    contexts.tick(now_ns);
                    model.0.retain(|of| now_ns < of.end_ns);
                }
                Op::Pass(seconds) => now_ns += seconds * SECOND,
                _ => {}
            }
            let stays = |context: &Arc<Context>| {
                model.0.iter().any(|of| of.context.handle() == context.handle())
            };
            gone.extend(before.into_iter().filter(|context| !stays(context)));
            prop_assert_eq!(contexts.counts().contexts as usize, model.0.len());
        }
        for context in &gone {
            prop_assert!(contexts.find(&context.handle().to_bytes(), now_ns).is_none());
        }
        for of in &model.0 {
            let found = contexts.find(&of.context.handle().to_bytes(), now_ns);
            prop_assert_eq!(found.is_some(), now_ns < of.end_ns);
        }
        // All is released in the end.
        contexts.tick(u64::MAX);
        let counts = contexts.counts();
        prop_assert_eq!(counts.contexts, 0);
        let left = counts.evicted + counts.expired + counts.destroyed;
        prop_assert_eq!(counts.established, left);
    }
}

#[test]
fn a_table_in_several_parts_has_its_limit() {
    let contexts = Contexts::new(ContextLimits { contexts: 4096, ..LIMITS });
    let mut first = None;
    for now_ns in 0..6000 {
        let context = enter(&contexts, Origin::Sim(1), 1000, now_ns);
        contexts.use_now(&context, now_ns);
        first.get_or_insert(context);
    }
    let counts = contexts.counts();
    assert_eq!((counts.contexts, counts.evicted), (3584 / 3 * 3, 6000 - 3584 / 3 * 3));
    let first = first.unwrap();
    assert!(contexts.find(&first.handle().to_bytes(), 6000).is_none());
}

#[test]
fn threads_share_the_table() {
    let contexts = Contexts::new(LIMITS);
    std::thread::scope(|scope| {
        for host in 0..4 {
            let contexts = &contexts;
            scope.spawn(move || {
                for now_ns in 0..2000 {
                    let context = enter(contexts, Origin::Sim(host), now_ns % 7, now_ns);
                    if now_ns % 3 != 0 {
                        contexts.use_now(&context, now_ns);
                    }
                    if now_ns % 5 == 0 {
                        contexts.destroy(&context);
                    }
                    if now_ns % 100 == 0 {
                        contexts.tick(now_ns * SECOND / 10);
                    }
                }
            });
        }
    });
    assert!(contexts.counts().contexts as usize <= LIMITS.contexts);
    contexts.tick(u64::MAX);
    let counts = contexts.counts();
    assert_eq!((counts.contexts, counts.half_open, counts.established), (0, 0, 8000));
    assert_eq!(counts.evicted + counts.expired + counts.destroyed, 8000);
}
