//! A simulated Cloudflare: objects that restart, a queue that loses, doubles and delays, a KV that
//! lies, workers that die, clocks that jump. Everything follows from one seed.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use dormouse::agent::Agent;
use dormouse::decide::{ClaimReply, Report};
use dormouse::flow::home::{Home, LogStore, Outcome};
use dormouse::flow::{Verdict, index, relay, work};
use dormouse::json::Json;
use dormouse::ports::{
    Failpoint, Fault, Maker, ModelHealth, PinnedAgent, Queue, RunAnswer, RunCall, RunOp, RunResult,
    TenantAnswer, TenantCall, World,
};
use dormouse::run::event::PinnedTool;
use dormouse::run::{Row, State, fold};
use dormouse::signed::Signer;
use dormouse::tool::{Answer, OutboundRequest, Transport, TransportKind};
use dormouse::words::{RunId, TenantId, Timestamp};

use super::brain::{self, Brain, Held};
use super::invariants;
use super::people;
use super::rng::Rng;
use super::sink::Sink;

/// What may go wrong, in percent of the occasions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// A port call fails before its effect, or after it.
    pub call_fails: u64,
    /// The one who made a port call dies before its effect, or after it.
    pub caller_dies: u64,
    pub object_restarts: u64,
    pub message_lost: u64,
    pub message_doubled: u64,
    pub kv_lies: u64,
    pub clock_jumps: u64,
    pub tools_misbehave: bool,
    /// Whether anyone outside does anything before the end of the story.
    pub people: bool,
    /// Runs that are called off, and runs that are paused for a while.
    pub cancels: u64,
    pub pauses: u64,
}

impl Weather {
    pub const STORM: Self = Self {
        call_fails: 4,
        caller_dies: 3,
        object_restarts: 5,
        message_lost: 10,
        message_doubled: 15,
        kv_lies: 30,
        clock_jumps: 2,
        tools_misbehave: true,
        people: true,
        cancels: 15,
        pauses: 15,
    };
    pub const CALM: Self = Self {
        call_fails: 0,
        caller_dies: 0,
        object_restarts: 0,
        message_lost: 0,
        message_doubled: 0,
        kv_lies: 0,
        clock_jumps: 0,
        tools_misbehave: false,
        people: false,
        cancels: 0,
        pauses: 0,
    };
}

/// One fault at one port call, counted from the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    pub at_call: u64,
    pub fault: PlannedFault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlannedFault {
    FailsBefore,
    FailsAfter,
    DiesBefore,
    DiesAfter,
}

impl PlannedFault {
    pub const ALL: [Self; 4] = [
        Self::FailsBefore,
        Self::FailsAfter,
        Self::DiesBefore,
        Self::DiesAfter,
    ];
}

/// When a queue notices that a consumer is gone.
const REDELIVERED_AFTER_MS: i64 = 10_000;

type Task = Pin<Box<dyn Future<Output = ()>>>;

enum Happening {
    Poll(u64),
    Deliver {
        queue: usize,
        body: String,
        attempts: u32,
    },
    Alarm {
        run_id: RunId,
        set: u64,
    },
}

/// An object of a run: what is on disk, and what is in memory.
#[derive(Default)]
pub struct Object {
    pub home: Home,
    pub disk: Disk,
}

#[derive(Default)]
pub struct Disk {
    pub rows: RefCell<Vec<Row>>,
    pub alarm: RefCell<Option<Timestamp>>,
    /// The parents that called the run off before it existed.
    pub barred: RefCell<Vec<(TenantId, RunId)>>,
    /// Commits, alarms included: what is written in one turn is one.
    pub appends: RefCell<u64>,
}

impl LogStore for Disk {
    fn load(&self) -> Result<Vec<Row>, Fault> {
        Ok(self.rows.borrow().clone())
    }

    fn page(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        let rows = self.rows.borrow();
        let from = rows.iter().rposition(|row| row.seq <= seq).unwrap_or(0);
        Ok(rows[from..].iter().take(limit).cloned().collect())
    }

    fn page_back(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault> {
        let rows = self.rows.borrow();
        let count = rows.iter().filter(|row| row.seq <= seq).count();
        Ok(rows[count.saturating_sub(limit)..count].to_vec())
    }

    fn append(&self, rows: &[Row]) -> Result<(), Fault> {
        *self.appends.borrow_mut() += 1;
        self.rows.borrow_mut().extend_from_slice(rows);
        Ok(())
    }

    fn set_alarm(&self, at: Timestamp) -> Result<(), Fault> {
        *self.alarm.borrow_mut() = Some(at);
        Ok(())
    }

    fn clear_alarm(&self) -> Result<(), Fault> {
        *self.alarm.borrow_mut() = None;
        Ok(())
    }

    fn bar(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<(), Fault> {
        let barred = (tenant_id.clone(), parent_run_id.clone());
        self.barred.borrow_mut().push(barred);
        Ok(())
    }

    fn is_barred(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<bool, Fault> {
        let barred = (tenant_id.clone(), parent_run_id.clone());
        Ok(self.barred.borrow().contains(&barred))
    }
}

pub struct Inner {
    pub now_ms: i64,
    skew_ms: i64,
    pub rng: Rng,
    pub weather: Weather,
    planned: Option<Planned>,
    pub port_calls: u64,
    pub objects: BTreeMap<RunId, Object>,
    alarm_sets: u64,
    armed: BTreeMap<RunId, (Timestamp, u64)>,
    pub sink: Sink,
    pub brain: Brain,
    /// Calls that people put in the place of what a model wanted.
    pub supplied: Vec<(RunId, Json)>,
    kv: BTreeMap<String, String>,
    kv_old: BTreeMap<String, String>,
    pub tools: BTreeMap<String, PinnedTool>,
    pub agents: BTreeMap<String, Json>,
    /// What the tenant's index knows of each run: the log's length and the status.
    pub index: BTreeMap<RunId, (u64, String)>,
    /// Runs that may go on after they ended.
    reopened: BTreeSet<RunId>,
    pub strays: Vec<String>,
    /// Models that failed last: how often, and until when they rest.
    resting: BTreeMap<String, (u32, Timestamp)>,
    happenings: BinaryHeap<Reverse<(i64, u64)>>,
    what: BTreeMap<u64, Happening>,
    tasks: BTreeMap<u64, Task>,
    /// The message that a task works on: it comes again if the task dies.
    deliveries: BTreeMap<u64, (usize, String, u32)>,
    drawn: u64,
    current: Option<u64>,
    dying: bool,
    /// Everything that happened, for comparing two runs of one seed.
    pub trace: Vec<String>,
}

#[derive(Clone)]
pub struct Sim(pub Rc<RefCell<Inner>>, Rc<Signer>);

impl Sim {
    pub fn new(seed: u64, weather: Weather, planned: Option<Planned>) -> Self {
        let inner = Inner {
            now_ms: 1_800_000_000_000,
            skew_ms: 0,
            rng: Rng::new(seed),
            weather,
            planned,
            port_calls: 0,
            objects: BTreeMap::new(),
            alarm_sets: 0,
            armed: BTreeMap::new(),
            sink: Sink::default(),
            brain: Brain::default(),
            supplied: Vec::new(),
            kv: BTreeMap::new(),
            kv_old: BTreeMap::new(),
            tools: BTreeMap::new(),
            agents: BTreeMap::new(),
            index: BTreeMap::new(),
            reopened: BTreeSet::new(),
            strays: Vec::new(),
            resting: BTreeMap::new(),
            happenings: BinaryHeap::new(),
            what: BTreeMap::new(),
            tasks: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            drawn: 0,
            current: None,
            dying: false,
            trace: Vec::new(),
        };
        let signer = Signer::new(["a secret".to_owned()]).unwrap();
        Self(Rc::new(RefCell::new(inner)), Rc::new(signer))
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) -> u64 {
        let mut inner = self.0.borrow_mut();
        let id = inner.draw();
        inner.tasks.insert(id, Box::pin(task));
        let now = inner.now_ms;
        inner.schedule(now, Happening::Poll(id));
        id
    }

    /// Runs until nothing is left to happen, or the time is up.
    pub fn run_until(&self, end_ms: i64) {
        loop {
            let next = {
                let mut inner = self.0.borrow_mut();
                match inner.happenings.peek() {
                    Some(Reverse((at, _))) if *at <= end_ms => {}
                    _ => {
                        inner.now_ms = inner.now_ms.max(end_ms);
                        return;
                    }
                }
                let Some(Reverse((at, id))) = inner.happenings.pop() else {
                    return;
                };
                inner.now_ms = inner.now_ms.max(at);
                inner.what.remove(&id)
            };
            match next {
                Some(Happening::Poll(task)) => self.poll(task),
                Some(Happening::Deliver {
                    queue,
                    body,
                    attempts,
                }) => {
                    self.deliver(queue, body, attempts);
                }
                Some(Happening::Alarm { run_id, set }) => self.fire(run_id, set),
                None => {}
            }
        }
    }

    fn poll(&self, id: u64) {
        let Some(mut task) = self.0.borrow_mut().tasks.remove(&id) else {
            return;
        };
        {
            let mut inner = self.0.borrow_mut();
            inner.current = Some(id);
            inner.dying = false;
        }
        let done = task
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready();
        let mut inner = self.0.borrow_mut();
        inner.current = None;
        if !done && !inner.dying {
            inner.tasks.insert(id, task);
            return;
        }
        let delivery = inner.deliveries.remove(&id);
        if let (false, Some((queue, body, attempts))) = (done, delivery)
            && !inner.loses()
        {
            inner.redeliver(queue, body, attempts, REDELIVERED_AFTER_MS);
        }
        drop(inner);
        drop(task);
    }

    fn deliver(&self, queue: usize, body: String, attempts: u32) {
        let world = self.clone();
        self.0
            .borrow_mut()
            .note(|| format!("deliver {queue} attempt {attempts}"));
        let message = (queue, body.clone(), attempts);
        let task = self.spawn(async move {
            if queue == 2 {
                if index::index(&world, std::slice::from_ref(&body)).await == [false] {
                    world.0.borrow_mut().redeliver(queue, body, attempts, 5_000);
                }
                return;
            }
            let delivery = work::Delivery {
                body: &body,
                attempts,
            };
            if let Verdict::Retry { delay_s } = work::work(&world, delivery).await {
                let after_ms = i64::from(delay_s) * 1_000;
                world
                    .0
                    .borrow_mut()
                    .redeliver(queue, body.clone(), attempts, after_ms);
            }
        });
        self.0.borrow_mut().deliveries.insert(task, message);
    }

    fn fire(&self, run_id: RunId, set: u64) {
        let due = {
            let mut inner = self.0.borrow_mut();
            match inner.armed.get(&run_id) {
                Some((_, current)) if *current == set => {
                    inner.armed.remove(&run_id);
                    true
                }
                _ => false,
            }
        };
        if !due {
            return;
        }
        let world = self.clone();
        self.spawn(async move {
            let woken = {
                let mut inner = world.0.borrow_mut();
                let (now, random) = (inner.clock(), inner.rng.next());
                inner.note(|| format!("alarm {run_id}"));
                inner.with_object(&run_id, |object| {
                    *object.disk.alarm.borrow_mut() = None;
                    object.home.wake(&object.disk, now, random)
                })
            };
            let Ok(woken) = woken else { return };
            world.0.borrow_mut().after_turn(&run_id);
            relay::relay(&world, &woken.messages).await;
            for projection in woken.projections {
                let text = serde_json::to_string(&projection).unwrap();
                if world.send(Queue::Events, &[text]).await.is_ok() {
                    let mut inner = world.0.borrow_mut();
                    inner
                        .objects
                        .get_mut(&run_id)
                        .unwrap()
                        .home
                        .projected(projection.seq);
                }
            }
        });
    }

    /// One call of a port: time passes, things go wrong, and `effect` is had once or not at all.
    async fn port<T>(
        &self,
        name: &str,
        latency_ms: u64,
        effect: impl FnOnce(&mut Inner) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let wait = {
            let mut inner = self.0.borrow_mut();
            1 + inner.rng.below(latency_ms.max(1)) as i64
        };
        self.pause(wait).await;
        let (before, after) = self.0.borrow_mut().faults();
        let broken = |when: &str| Fault::new(name, "the simulated world", format!("failed {when}"));
        match before {
            Some(Going::Wrong) => return Err(broken("before its effect")),
            Some(Going::Dead) => return self.die().await,
            None => {}
        }
        let result = effect(&mut self.0.borrow_mut());
        match after {
            Some(Going::Wrong) => return Err(broken("after its effect")),
            Some(Going::Dead) => return self.die().await,
            None => {}
        }
        let wait = 1 + self.0.borrow_mut().rng.below(latency_ms.max(1)) as i64;
        self.pause(wait).await;
        result
    }

    async fn die<T>(&self) -> T {
        self.0.borrow_mut().dying = true;
        std::future::pending().await
    }

    async fn pause(&self, ms: i64) {
        let due = {
            let mut inner = self.0.borrow_mut();
            let due = inner.now_ms + ms;
            if let Some(task) = inner.current {
                inner.schedule(due, Happening::Poll(task));
            }
            due
        };
        let inner = self.0.clone();
        poll_fn(move |_| {
            if inner.borrow().now_ms >= due {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// How a port call goes wrong.
#[derive(Clone, Copy)]
enum Going {
    Wrong,
    Dead,
}

impl Inner {
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn schedule(&mut self, at_ms: i64, happening: Happening) {
        let id = self.draw();
        self.happenings.push(Reverse((at_ms, id)));
        self.what.insert(id, happening);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{} {}", self.now_ms, line());
        self.trace.push(line);
    }

    fn loses(&mut self) -> bool {
        let chance = self.weather.message_lost;
        self.rng.percent(chance)
    }

    /// The time as somebody reads it.
    fn clock(&mut self) -> Timestamp {
        if self.rng.percent(self.weather.clock_jumps) {
            self.skew_ms = self.rng.below(20_000) as i64 - 10_000;
        }
        if self.weather.clock_jumps == 0 {
            self.skew_ms = 0;
        }
        Timestamp::from_ms(self.now_ms + self.skew_ms)
    }

    fn faults(&mut self) -> (Option<Going>, Option<Going>) {
        let call = self.port_calls;
        self.port_calls += 1;
        if let Some(planned) = self.planned.filter(|planned| planned.at_call == call) {
            self.note(|| format!("call {call} {:?}", planned.fault));
            return match planned.fault {
                PlannedFault::FailsBefore => (Some(Going::Wrong), None),
                PlannedFault::FailsAfter => (None, Some(Going::Wrong)),
                PlannedFault::DiesBefore => (Some(Going::Dead), None),
                PlannedFault::DiesAfter => (None, Some(Going::Dead)),
            };
        }
        let (fails, dies) = (self.weather.call_fails, self.weather.caller_dies);
        let going = match self.rng.below(100) {
            n if n < fails => Some(Going::Wrong),
            n if n < fails + dies => Some(Going::Dead),
            _ => return (None, None),
        };
        if self.rng.percent(50) {
            (going, None)
        } else {
            (None, going)
        }
    }

    fn with_object<T>(&mut self, run_id: &RunId, turn: impl FnOnce(&mut Object) -> T) -> T {
        let restarts = self.rng.percent(self.weather.object_restarts);
        let object = self.objects.entry(run_id.clone()).or_default();
        if restarts {
            object.home = Home::default();
        }
        turn(object)
    }

    /// After every turn of an object: its alarm is the platform's, and the invariants hold.
    fn after_turn(&mut self, run_id: &RunId) {
        let alarm = *self.objects[run_id].disk.alarm.borrow();
        let armed = self.armed.get(run_id).map(|(at, _)| *at);
        if let Some(at) = alarm
            && armed != Some(at)
        {
            self.alarm_sets += 1;
            let set = self.alarm_sets;
            self.armed.insert(run_id.clone(), (at, set));
            let late = self.rng.below(50) as i64;
            let due = at.ms().max(self.now_ms) + late;
            self.schedule(
                due,
                Happening::Alarm {
                    run_id: run_id.clone(),
                    set,
                },
            );
        }
        if alarm.is_none() {
            self.armed.remove(run_id);
        }
        let armed = self.armed.get(run_id).map(|(at, _)| *at);
        let thorough = self.rng.percent(20);
        invariants::after_turn(&self.objects[run_id], armed, thorough);
    }

    fn redeliver(&mut self, queue: usize, body: String, attempts: u32, after_ms: i64) {
        let at = self.now_ms + after_ms;
        self.schedule(
            at,
            Happening::Deliver {
                queue,
                body,
                attempts: attempts + 1,
            },
        );
    }

    fn enqueue(&mut self, queue: usize, body: &str) {
        if self.rng.percent(self.weather.message_lost) {
            self.note(|| "a message was lost".into());
            return;
        }
        let copies = if self.rng.percent(self.weather.message_doubled) {
            1 + self.rng.below(3)
        } else {
            1
        };
        for copy in 0..copies {
            let late = self.rng.below(40) + copy * self.rng.below(6_000);
            let at = self.now_ms + late as i64;
            self.schedule(
                at,
                Happening::Deliver {
                    queue,
                    body: body.to_owned(),
                    attempts: 1 + copy as u32,
                },
            );
        }
    }

    fn call_run(&mut self, run_id: &RunId, text: &str) -> Result<RunAnswer, Fault> {
        let call: RunCall = serde_json::from_str(text).unwrap();
        let report = match &call.op {
            RunOp::Settle(settle) => {
                Some((settle.token, self.lease_token(run_id, settle.step_index)))
            }
            _ => None,
        };
        let answered = match &call.op {
            RunOp::Settle(settle) if matches!(settle.report, Report::Planned(_)) => {
                Some(settle.step_index)
            }
            _ => None,
        };
        let (now, random) = (self.clock(), self.rng.next());
        let outcome = self.with_object(run_id, |object| {
            object.home.handle(&object.disk, call, now, random)
        });
        let Outcome {
            answer,
            projections,
        } = outcome?;
        if let (Some((token, held)), Ok(RunResult::Settle(reply))) = (report, &answer.result) {
            invariants::only_the_holder_reports(run_id, token, held, reply.recorded);
            if let (Some(step_index), true) = (answered, reply.recorded) {
                let round = (run_id.clone(), step_index);
                self.brain.settled.insert(round, token);
            }
        }
        if let Ok(RunResult::Claim(ClaimReply::Asked(round))) = &answer.result {
            self.brain.hold(Held {
                run_id: run_id.clone(),
                step_index: round.step_index,
                token: round.token,
            });
        }
        self.after_turn(run_id);
        for projection in projections {
            let body = serde_json::to_string(&projection).unwrap();
            self.enqueue(2, &body);
            self.objects
                .get_mut(run_id)
                .unwrap()
                .home
                .projected(projection.seq);
        }
        // What crosses to the caller is text.
        let text = serde_json::to_string(&answer).unwrap();
        Ok(serde_json::from_str(&text).unwrap())
    }

    /// The token under which a step is held.
    fn lease_token(&self, run_id: &RunId, index: u32) -> Option<u64> {
        let of = |state: &State| Some(state.step(index)?.lease()?.token);
        let object = self.objects.get(run_id)?;
        match object.home.state() {
            Some(state) => of(state),
            None => of(&self.state_on_disk(run_id)?),
        }
    }

    fn call_tenant(&mut self, call: &TenantCall) -> TenantAnswer {
        match call {
            TenantCall::Register { run_id, maker, .. } => {
                let (agent, tools) = match maker {
                    Maker::Plan { tools } => (None, tools.clone()),
                    Maker::Agent { reference, .. } => {
                        let Some(definition) = self.agents.get(reference) else {
                            return TenantAnswer::UnknownAgent;
                        };
                        let tools = Agent::parse(definition).unwrap().tools_needed();
                        let agent = PinnedAgent {
                            label: format!("{reference}@1"),
                            definition: definition.clone(),
                        };
                        (Some(agent), tools)
                    }
                };
                self.index
                    .entry(run_id.clone())
                    .or_insert((0, "queued".into()));
                let known = tools.iter().filter_map(|name| {
                    self.tools
                        .get(name)
                        .map(|tool| (name.clone(), tool.clone()))
                });
                TenantAnswer::Registered {
                    run_id: run_id.clone(),
                    fresh: true,
                    agent,
                    tools: known.collect(),
                }
            }
            TenantCall::Project { projections } => {
                for projection in projections {
                    let entry = self.index.entry(projection.run_id.clone()).or_default();
                    if projection.seq > entry.0 {
                        *entry = (projection.seq, projection.status.clone());
                    }
                }
                TenantAnswer::Done
            }
            TenantCall::KeepDeadLetter { letter } => {
                self.strays.push(letter.message.clone());
                TenantAnswer::Done
            }
            TenantCall::StaleRuns { .. } => {
                let open = |status: &str| !matches!(status, "completed" | "failed" | "cancelled");
                let stale = self.index.iter().filter(|(run_id, (_, status))| {
                    open(status) || self.reopened.contains(*run_id)
                });
                TenantAnswer::Stale(stale.map(|(run_id, _)| run_id.clone()).collect())
            }
            TenantCall::ReopenRun { run_id } => {
                self.reopened.insert(run_id.clone());
                TenantAnswer::Done
            }
            TenantCall::ListTenants { .. } => TenantAnswer::Tenants(Vec::new()),
            TenantCall::ForgetRun { run_id } => {
                self.index.remove(run_id);
                TenantAnswer::Done
            }
            TenantCall::ModelHealth { models, now } => {
                let of = |model: &String| {
                    let found = self.resting.get(model);
                    ModelHealth {
                        rests_until: found.map(|(_, until)| *until).filter(|until| until > now),
                        troubled: found.is_some(),
                    }
                };
                TenantAnswer::ModelHealth(models.iter().map(of).collect())
            }
            TenantCall::ModelAnswered { model } => {
                self.resting.remove(model);
                TenantAnswer::Done
            }
            TenantCall::ModelFailed {
                model,
                retry_after_ms,
                now,
            } => {
                let found = self.resting.entry(model.clone()).or_insert((0, *now));
                found.0 += 1;
                let rests_ms = if found.0 < 3 { 0 } else { 5_000 };
                found.1 = now.plus_ms(retry_after_ms.unwrap_or(rests_ms));
                TenantAnswer::Done
            }
            other => panic!("the simulated tenant is not asked {other:?}"),
        }
    }

    /// Everything that happened, and every log.
    pub fn print(&self) {
        for line in &self.trace {
            println!("{line}");
        }
        for (run_id, object) in &self.objects {
            for row in &*object.disk.rows.borrow() {
                println!("{run_id} {} {}", row.seq, row.body);
            }
        }
    }

    pub fn state_on_disk(&self, run_id: &RunId) -> Option<State> {
        let rows = self.objects.get(run_id)?.disk.rows.borrow();
        fold::fold(&rows).expect("a log that can be read")
    }
}

impl World for Sim {
    fn now(&self) -> Timestamp {
        self.0.borrow_mut().clock()
    }

    fn random(&self) -> [u8; 32] {
        let mut inner = self.0.borrow_mut();
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&inner.rng.next().to_le_bytes());
        }
        bytes
    }

    async fn run(&self, run_id: &RunId, call: &RunCall) -> Result<RunAnswer, Fault> {
        let text = serde_json::to_string(call).unwrap();
        self.port("run", 5, |inner| inner.call_run(run_id, &text))
            .await
    }

    async fn tenant(&self, _: &TenantId, call: &TenantCall) -> Result<TenantAnswer, Fault> {
        self.port("tenant", 5, |inner| Ok(inner.call_tenant(call)))
            .await
    }

    async fn send(&self, queue: Queue, bodies: &[String]) -> Result<(), Fault> {
        let number = match queue {
            Queue::Plan => 0,
            Queue::Work => 1,
            Queue::Events => 2,
            Queue::Dead => 3,
        };
        self.port("send", 5, |inner| {
            for body in bodies {
                inner.enqueue(number, body);
            }
            Ok(())
        })
        .await
    }

    async fn outcome(&self, key: &str) -> Result<Option<String>, Fault> {
        self.port("kv get", 5, |inner| {
            let lies = inner.rng.percent(inner.weather.kv_lies);
            let held = if lies {
                inner.kv_old.get(key)
            } else {
                inner.kv.get(key)
            };
            Ok(held.cloned())
        })
        .await
    }

    async fn put_outcome(&self, key: &str, outcome: &str) -> Result<(), Fault> {
        self.port("kv put", 5, |inner| {
            let old = inner.kv.insert(key.to_owned(), outcome.to_owned());
            if let Some(old) = old {
                inner.kv_old.insert(key.to_owned(), old);
            }
            Ok(())
        })
        .await
    }

    async fn ask_platform_model(&self, _: &str, _: &str, _: i64) -> Answer {
        Answer::Transport(Transport {
            kind: TransportKind::Blocked,
            message: "there is no binding AI".to_owned(),
        })
    }

    async fn call_tool(&self, request: &OutboundRequest) -> Answer {
        let latency = if self.0.borrow_mut().rng.percent(5) {
            12_000
        } else {
            60
        };
        let called = self
            .port("tool", latency, |inner| {
                let trouble = inner.weather.tools_misbehave;
                if brain::is_asked(request) {
                    let held = inner.brain.holder(request);
                    let state = inner.state_on_disk(&held.run_id).expect("a run that asks");
                    let Inner { brain, rng, .. } = inner;
                    return Ok(brain.ask(request, &held, &state, rng, trouble));
                }
                let Inner { sink, rng, .. } = inner;
                Ok(sink.call(request, rng, trouble))
            })
            .await;
        people::call_back_later(self, request, &called);
        called.unwrap_or_else(|fault| {
            Answer::Transport(dormouse::tool::Transport {
                kind: dormouse::tool::TransportKind::Closed,
                message: fault.message,
            })
        })
    }

    fn secret(&self, _: &TenantId, name: &str) -> Option<String> {
        (name == "KEY").then(|| "canary-7f3".to_owned())
    }

    fn signer(&self) -> Option<&Signer> {
        Some(&self.1)
    }

    async fn sleep(&self, ms: i64) {
        self.pause(ms).await;
    }

    fn keeps_every_outcome(&self) -> bool {
        false
    }

    async fn pass(&self, point: Failpoint) -> Result<(), Fault> {
        let _ = point;
        Ok(())
    }

    fn log(&self, line: &str) {
        self.0.borrow_mut().note(|| line.to_owned());
    }
}
