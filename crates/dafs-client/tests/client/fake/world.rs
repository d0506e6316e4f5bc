//! A client core, the fake server, and the network between them.

use super::*;

/// A client core, a fake server and the network between them.
pub struct World {
    pub network: SimNetwork,
    pub server: FakeServer,
    pub adapter: SimAdapter,
    pub core: SessionCore,
    pub done: HashMap<u64, Done>,
    pub now: Instant,
    /// The connection is lost when a recovering client has taken so many further batches of events
    /// from its adapter, before it processes them.
    pub lose_unread: Option<usize>,
    next_tag: u64,
}

impl World {
    pub fn with(
        seed: u64,
        faults: SimFaults,
        config: SessionConfig,
        prepare: impl FnOnce(&mut FakeServer),
    ) -> Self {
        let network = SimNetwork::new(seed, faults);
        let mut server = FakeServer::new(Box::new(network.adapter(1)));
        server.adapter.listen(&Address::Sim(1)).unwrap();
        prepare(&mut server);
        let mut adapter = network.adapter(2);
        let now = Instant(0);
        let core = SessionCore::connect(&mut adapter, config, &Address::Sim(1), now).unwrap();
        let done = HashMap::new();
        Self { network, server, adapter, core, done, now, lose_unread: None, next_tag: 1 }
    }

    pub fn config() -> SessionConfig {
        SessionConfig::new(b"client".to_vec(), Verifier([5; 8]))
    }

    /// A world whose session is open.
    pub fn open(config: SessionConfig) -> Self {
        Self::open_with(config, |_| {})
    }

    /// A world whose server may call.
    pub fn bound(config: SessionConfig) -> Self {
        let mut world = Self::open(config);
        assert_eq!(world.core.back_stage(), BackStage::Off);
        world.core.want_back(&mut world.adapter, world.now);
        world.run(|world| world.core.back_stage() != BackStage::Coming);
        assert_eq!(world.core.back_stage(), BackStage::Bound);
        world
    }

    pub fn open_with(config: SessionConfig, prepare: impl FnOnce(&mut FakeServer)) -> Self {
        let mut world = Self::with(1, SimFaults::none(), config, prepare);
        world.run(|world| {
            world.core.stage() != Stage::Opening && world.core.stage() != Stage::Connecting
        });
        assert_eq!(world.core.stage(), Stage::Ready, "{:?}", world.core.failure());
        world
    }

    fn settle(&mut self) {
        loop {
            let mut events = Vec::new();
            self.adapter.poll(self.now, &mut events);
            let quiet = events.is_empty();
            if !quiet && self.core.stage() == Stage::Recovering {
                match self.lose_unread {
                    Some(0) => {
                        for endpoint in self.network.endpoints(2) {
                            self.network.lose(endpoint);
                        }
                        // The adapter has detected the loss; the client has not.
                        self.now = self.now + Duration::from_millis(1);
                        self.network.advance_to(self.now);
                        self.lose_unread = None;
                    }
                    batches => self.lose_unread = batches.map(|batches| batches - 1),
                }
            }
            for event in events {
                self.core.handle(&mut self.adapter, event, self.now);
            }
            if self.core.next_timeout().is_some_and(|at| at <= self.now) {
                self.core.on_time(&mut self.adapter, self.now);
            }
            self.adapter.flush();
            self.server.poll(self.now);
            while let Some(Completed { tag, done }) = self.core.take_completed() {
                assert!(self.done.insert(tag, done).is_none(), "call {tag} completed twice");
            }
            if quiet && !self.network.is_ready(1) && !self.network.is_ready(2) {
                return;
            }
        }
    }

    /// One step of time; false when no event is left.
    pub fn step(&mut self) -> bool {
        self.step_until(Instant(u64::MAX))
    }

    /// One step of time, not beyond `end`.
    fn step_until(&mut self, end: Instant) -> bool {
        self.settle();
        let times = [
            self.network.next_event(),
            self.core.next_timeout(),
            self.adapter.next_timeout(),
            self.server.adapter.next_timeout(),
        ];
        let Some(next) = times.into_iter().flatten().min() else { return false };
        self.now = self.now.max(next.min(end));
        self.network.advance_to(self.now);
        self.settle();
        true
    }

    /// Runs until the condition holds.
    pub fn run(&mut self, mut until: impl FnMut(&Self) -> bool) {
        for _ in 0..1_000_000 {
            if until(self) {
                return;
            }
            assert!(self.step(), "the world stands still");
        }
        panic!("the world does not come to an end");
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.core.stage() != Stage::Over {
            if !self.step_until(end) {
                self.now = end;
            }
        }
    }

    pub fn run_all(&mut self, tags: &[u64]) {
        self.run(|world| tags.iter().all(|tag| world.done.contains_key(tag)));
    }

    pub fn memory(&mut self, content: &[u8]) -> Arc<dafs_client::core::RegisteredMemory> {
        let buffer = self.adapter.allocate(content.len()).unwrap();
        buffer.view().copy_from(content, Site::Inspect);
        self.core.register(&mut self.adapter, buffer).unwrap()
    }

    pub fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    pub fn try_read(
        &mut self,
        into: Piece,
        offset: u64,
    ) -> Result<u64, dafs_client::core::Refused> {
        let tag = self.tag();
        let call =
            ReadCall { handle: ROOT, state_id: StateId::ZERO, offset, into, hint: HintWord::NONE };
        let deadline = Some(Duration::from_secs(60));
        self.core.submit_read(&mut self.adapter, self.now, tag, call, deadline)?;
        Ok(tag)
    }

    pub fn read(&mut self, into: Piece, offset: u64) -> u64 {
        self.try_read(into, offset).unwrap()
    }

    pub fn write(&mut self, from: Piece, offset: u64) -> u64 {
        self.write_stable(from, offset, Stability::Unstable)
    }

    pub fn write_stable(&mut self, from: Piece, offset: u64, stability: Stability) -> u64 {
        self.write_as(from, offset, stability, None)
    }

    /// Writes data that was cached under a delegation.
    pub fn write_by(&mut self, from: Piece, delegation: StateId) -> u64 {
        self.write_as(from, 0, Stability::Unstable, Some(delegation))
    }

    fn write_as(
        &mut self,
        from: Piece,
        offset: u64,
        stability: Stability,
        delegation: Option<StateId>,
    ) -> u64 {
        let tag = self.tag();
        let (handle, state_id) = (ROOT, StateId::ZERO);
        let call = WriteCall {
            handle,
            state_id,
            offset,
            stability,
            from,
            delegation,
            hint: HintWord::NONE,
        };
        let deadline = Some(Duration::from_secs(60));
        self.core.submit_write(&mut self.adapter, self.now, tag, call, deadline).unwrap();
        tag
    }

    pub fn ask_and_wait(&mut self, request: &Request<'_>) -> u64 {
        let tag = self.ask(request);
        self.run_all(&[tag]);
        tag
    }

    /// Sends so many reads.
    pub fn reads(&mut self, into: &Piece, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.read(into.clone(), 0)).collect()
    }

    pub fn read_and_wait(&mut self, into: Piece, offset: u64) -> u64 {
        let tag = self.read(into, offset);
        self.run_all(&[tag]);
        tag
    }

    pub fn write_and_wait(&mut self, from: Piece, offset: u64) -> u64 {
        let tag = self.write(from, offset);
        self.run_all(&[tag]);
        tag
    }

    /// The client's connection is lost.
    pub fn lose(&mut self) {
        let endpoint = self.network.endpoints(2)[0];
        self.network.lose(endpoint);
    }

    /// The client's connection is lost, and the client has noticed.
    pub fn lose_and_notice(&mut self) {
        self.lose();
        self.run(|world| world.core.stage() == Stage::Recovering);
    }

    pub fn ask(&mut self, request: &Request<'_>) -> u64 {
        let tag = self.tag();
        let deadline = Some(Duration::from_secs(60));
        self.core.submit(&mut self.adapter, self.now, tag, request, None, deadline).unwrap();
        tag
    }
}

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}
