//! Random chains and requests between them, against a simple second implementation of the rules.

use super::{BACK, FH, FORW, STATEID, many, post};
use crate::common::*;
use dafs_wire::dafs::{self, FileHandle, Path, Reply, Request, StateId, Status};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Null,
    SecInfo,
    GetRoot,
    /// Of a file's name, or of an unused one.
    Lookup(Option<usize>),
    Read(usize),
    Write(usize),
    Unlock(usize),
}

#[derive(Debug, Clone, Copy)]
struct Step {
    what: What,
    flags: u16,
    /// Events that pass before the next request is sent, and jobs that run.
    events: u8,
    jobs: u8,
}

const FILES: [&[u8]; 2] = [b"f", b"g"];
const MISSING: &[u8] = b"missing";

fn what() -> impl Strategy<Value = What> {
    let file = || 0..FILES.len();
    prop_oneof![
        2 => Just(What::Null),
        1 => Just(What::SecInfo),
        2 => Just(What::GetRoot),
        3 => proptest::option::weighted(0.8, file()).prop_map(What::Lookup),
        3 => file().prop_map(What::Read),
        4 => file().prop_map(What::Write),
        1 => file().prop_map(What::Unlock),
    ]
}

/// Flags that mostly match, so that chains result.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let noise = prop_oneof![12 => Just(0), 1 => 0..64_u16];
    let step = (what(), any::<bool>(), any::<[bool; 2]>(), noise, 0..6_u8, 0..3_u8);
    prop::collection::vec(step, 1..60).prop_map(|steps| {
        let mut goes_on = false;
        let mut list = Vec::new();
        for (what, forw, takes, noise, events, jobs) in steps {
            let mut flags = if forw { FORW } else { 0 };
            if goes_on {
                flags |= BACK;
                flags |= if takes[0] { FH } else { 0 };
                flags |= if takes[1] { STATEID } else { 0 };
            }
            let flags = flags ^ noise;
            goes_on = flags & FORW != 0;
            list.push(Step { what, flags, events, jobs });
        }
        // Ends the chain, so that the next request is independent.
        list.push(Step {
            what: What::Null,
            flags: if goes_on { BACK } else { 0 },
            events: 0,
            jobs: 0,
        });
        list
    })
}

/// An object of the tree, or an open of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Root,
    File(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Is(Status),
    /// The exact error of these arguments does not depend on the chain.
    Error,
}

/// The chain rules of the specification, applied in the order of sending.
#[derive(Debug, Default)]
struct Model {
    goes_on: bool,
    failed: bool,
    bulk: bool,
    fh: Option<Object>,
    state: Option<usize>,
}

impl Model {
    fn step(&mut self, step: &Step) -> Expected {
        let has = |flag| step.flags & flag != 0;
        let (forw, back) = (has(FORW), has(BACK));
        let matches = self.goes_on == back;
        if !(self.goes_on && back) {
            (self.failed, self.bulk, self.fh, self.state) = (false, false, None, None);
        }
        self.goes_on = forw;
        let simple = matches!(step.what, What::Null | What::GetRoot | What::Lookup(_));
        let formed = matches
            && !(has(super::SAVE) && !(simple && forw))
            && !((has(FH) || has(STATEID)) && !back)
            && !(step.what == What::SecInfo && (forw || back))
            && !(self.bulk && matches!(step.what, What::Write(_)))
            && step.flags < 32;
        let expected = if !formed {
            Expected::Is(Status::ChainForm)
        } else if self.failed {
            Expected::Is(Status::ChainBroken)
        } else {
            self.run(step.what, has(FH), has(STATEID))
        };
        // The form depends on sent requests, executed or not.
        self.bulk |= matches!(step.what, What::Read(_));
        self.failed |= expected != Expected::Is(Status::Ok);
        expected
    }

    fn run(&mut self, what: What, takes_fh: bool, takes_state: bool) -> Expected {
        let given = match what {
            What::Null | What::SecInfo => None,
            What::GetRoot => {
                self.fh = Some(Object::Root);
                None
            }
            What::Lookup(_) => Some(Object::Root),
            What::Read(file) | What::Write(file) | What::Unlock(file) => Some(Object::File(file)),
        };
        let Some(mut fh) = given else { return Expected::Is(Status::Ok) };
        if takes_fh {
            match self.fh {
                Some(taken) => fh = taken,
                None => return Expected::Is(Status::ChainForm),
            }
        }
        match what {
            What::Lookup(name) => match (fh, name) {
                (Object::Root, Some(file)) => self.fh = Some(Object::File(file)),
                (Object::Root, None) => return Expected::Is(Status::NoEnt),
                (Object::File(_), _) => return Expected::Error,
            },
            What::Read(file) | What::Write(file) | What::Unlock(file) => {
                let mut state = file;
                if takes_state {
                    match self.state {
                        Some(taken) => state = taken,
                        None => return Expected::Is(Status::ChainForm),
                    }
                }
                if fh != Object::File(state) {
                    return Expected::Error;
                }
                (self.fh, self.state) = (Some(fh), Some(state));
            }
            _ => {}
        }
        Expected::Is(Status::Ok)
    }
}

fn request<'a>(step: &Step, root: FileHandle, files: &[File], data: &'a [u8]) -> Request<'a> {
    let (takes_fh, takes_state) = (step.flags & FH != 0, step.flags & STATEID != 0);
    // A value that is taken from the chain must not be used from the request.
    let fh = |fh| if takes_fh { FileHandle::ZERO } else { fh };
    let file = |file: usize| File {
        fh: fh(files[file].fh),
        id: if takes_state { StateId::ONES } else { files[file].id },
    };
    const PATHS: [[&[u8]; 1]; 3] = [[FILES[0]], [FILES[1]], [MISSING]];
    match step.what {
        What::Null => Request::Null,
        What::SecInfo => Request::SecInfo,
        What::GetRoot => Request::GetRootHandle,
        What::Lookup(name) => {
            let path = Path::new(&PATHS[name.unwrap_or(2)]);
            Request::Lookup(dafs::Lookup { dir: fh(root), path })
        }
        What::Read(name) => read_inline(file(name), 0, 1),
        What::Write(name) => write_inline(file(name), 0, data),
        What::Unlock(name) => Request::LockU(dafs::LockU {
            fh: file(name).fh,
            lock_type: dafs::LockType::Write,
            state_id: file(name).id,
            offset: 0,
            length: 1,
        }),
    }
}

/// Takes the arrived answers.
fn collect(
    world: &mut World,
    client: usize,
    outstanding: &mut BTreeMap<u16, usize>,
    answers: &mut [Option<Answer>],
) {
    outstanding.retain(|stream, index| {
        answers[*index] = world.clients[client].take_answer(*stream);
        answers[*index].is_none()
    });
}

fn run(steps: &[Step], slow: bool) {
    let (mut world, client) = World::with_session(many());
    let files = FILES.map(|name| world.open(client, name));
    for file in files {
        world.write(client, file, 0, b"x");
    }
    world.disk.set_slow(slow);
    world.hold_jobs = true;
    let root = world.root();
    let (mut outstanding, mut answers) = (BTreeMap::new(), Vec::new());
    for (index, step) in steps.iter().enumerate() {
        answers.push(None);
        let data = [index as u8];
        let request = request(step, root, &files, &data);
        let stream = post(&mut world, client, step.flags, &request);
        outstanding.insert(stream, index);
        for _ in 0..step.events {
            world.step();
        }
        for _ in 0..step.jobs {
            world.run_job();
        }
        collect(&mut world, client, &mut outstanding, &mut answers);
    }
    world.release();
    collect(&mut world, client, &mut outstanding, &mut answers);
    assert!(outstanding.is_empty(), "requests without an answer");
    let mut model = Model::default();
    for (index, step) in steps.iter().enumerate() {
        let answer = answers[index].as_ref().unwrap();
        let (expected, status) = (model.step(step), answer.status());
        let as_expected = match expected {
            Expected::Is(expected) => status == expected,
            Expected::Error => {
                !matches!(status, Status::Ok | Status::ChainForm | Status::ChainBroken)
            }
        };
        assert!(as_expected, "{index}: {step:?}: {status:?} instead of {expected:?}");
        if let Ok(Reply::ReadInline(reply)) = answer.reply() {
            assert_eq!(reply.data.len(), 1);
        }
    }
    for file in files {
        assert_eq!(world.status(client, &close(file)), Status::Ok);
    }
    assert_eq!(world.counts().pending, 0);
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn chains_do_what_the_model_says(steps in steps(), slow in any::<bool>()) {
        run(&steps, slow);
    }
}
