//! What the flow needs of the world, and the words in which its parts speak to each other.
//!
//! Calls cross to the objects as JSON text. Every enum here is tagged by its one member's name,
//! because serde's other taggings lose the digits of large numbers.

use std::collections::BTreeMap;
use std::future::Future;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::decide::{
    self, Callback, ChildOrder, ChildReport, Claim, ClaimReply, Control, Extend, ExtendReply,
    Refusal, Settle, SettleReply, Told,
};
use crate::envelope::Envelope;
use crate::json::{Json, Violation};
use crate::outbox::Errand;
use crate::run::event::{DeadLetterReason, PinnedTool, RequestRef, RunCreated, Settlement};
use crate::signed::Signer;
use crate::tool::{Answer, OutboundRequest};
use crate::words::{ApprovalId, DeadLetterId, KeyId, RunId, TenantId, Timestamp, TraceId};

/// The world failed. Carries what was tried and on what; never a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{operation} on {subject} failed: {message}")]
pub struct Fault {
    pub operation: String,
    pub subject: String,
    pub message: String,
    /// Whether the same call may succeed a little later.
    pub retryable: bool,
}

impl Fault {
    pub fn new(operation: &str, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            operation: operation.to_owned(),
            subject: subject.into(),
            message: message.into(),
            retryable: true,
        }
    }
}

/// The four queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Plan,
    Work,
    Events,
    Dead,
}

/// A place in the flow where a test may break it; see `POST /dev/failpoints`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failpoint {
    FrontAfterCommit,
    FrontAfterSend,
    ConsumerReceived,
    ConsumerClaimed,
    ConsumerAfterTool,
    ConsumerSettled,
    AlarmEntered,
    OutboxBeforeSend,
    OutboxAfterSend,
}

/// Everything the flow asks of the world.
pub trait World {
    fn now(&self) -> Timestamp;
    fn random(&self) -> [u8; 32];
    /// For what nobody may guess: fails rather than to make do.
    fn secret_random(&self) -> Result<[u8; 32], Fault> {
        Ok(self.random())
    }
    /// Asks a run's object.
    fn run(&self, run_id: &RunId, call: &RunCall)
    -> impl Future<Output = Result<RunAnswer, Fault>>;
    /// Asks a tenant's object.
    fn tenant(
        &self,
        tenant_id: &TenantId,
        call: &TenantCall,
    ) -> impl Future<Output = Result<TenantAnswer, Fault>>;
    fn send(&self, queue: Queue, bodies: &[String]) -> impl Future<Output = Result<(), Fault>>;
    /// An outcome that was put aside. May be old or missing at any time.
    fn outcome(&self, key: &str) -> impl Future<Output = Result<Option<String>, Fault>>;
    fn put_outcome(&self, key: &str, outcome: &str) -> impl Future<Output = Result<(), Fault>>;
    /// Asks a model of the platform itself, by binding: JSON text in, an answer with JSON text out.
    fn ask_platform_model(
        &self,
        model: &str,
        input: &str,
        timeout_ms: i64,
    ) -> impl Future<Output = Answer>;
    /// Makes one HTTP call of a tool, within its timeout.
    fn call_tool(&self, request: &OutboundRequest) -> impl Future<Output = Answer>;
    fn secret(&self, tenant_id: &TenantId, name: &str) -> Option<String>;
    /// Signs what is handed to others and comes back. `None`: the deployment has no key to sign with.
    fn signer(&self) -> Option<&Signer>;
    /// Where clients reach this service, where the deployment says so.
    fn public_origin(&self) -> Option<&str> {
        None
    }
    fn sleep(&self, ms: i64) -> impl Future<Output = ()>;
    /// Whether every settled outcome is kept in KV, or only one the run could not be told.
    fn keeps_every_outcome(&self) -> bool;
    fn pass(&self, point: Failpoint) -> impl Future<Output = Result<(), Fault>>;
    /// One line for the operator. Never a payload, never a secret.
    fn log(&self, line: &str);
}

// ---- A run's object -------------------------------------------------------------------------

#[derive(Debug, Serialize, Deserialize)]
pub struct RunCall {
    /// Whose run it must be: any other tenant's is not found.
    pub tenant_id: TenantId,
    pub op: RunOp,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOp {
    Start {
        run_id: RunId,
        trace_id: TraceId,
        created: Box<RunCreated>,
    },
    /// The run as it was answered when it was created.
    FirstAnswer,
    View,
    /// The log's entries above `after`, oldest first; with `before` those below that, newest first.
    /// At most `limit`, and no more than a page may hold.
    Events {
        after: u64,
        before: Option<u64>,
        limit: usize,
    },
    DeadLetters,
    DeadLetter {
        dead_letter_id: DeadLetterId,
    },
    Claim(Claim),
    Extend(Extend),
    Settle(Settle),
    Control {
        control: Control,
        comment: Option<String>,
        request: Option<RequestRef>,
    },
    /// A person lets the run use up more.
    Raise {
        limits: Json,
        comment: Option<String>,
        request: Option<RequestRef>,
    },
    Signal {
        name: String,
        payload: Json,
        request: Option<RequestRef>,
    },
    Approvals,
    Approval {
        approval_id: ApprovalId,
    },
    Answer {
        approval_id: ApprovalId,
        answer: decide::Answer,
        request: Option<RequestRef>,
    },
    Callback {
        callback: Callback,
        request: Option<RequestRef>,
    },
    Diagnose,
    /// Of a parent: what a child is to be started with, if it is still wanted.
    ChildOrder {
        step_index: u32,
        child_run_id: RunId,
    },
    /// To a parent, of a child.
    Child(ChildReport),
    /// Of a child: how it ended.
    Told,
    /// To a child: its parent called it off. One that does not exist yet will be born cancelled.
    CallOff {
        parent_run_id: RunId,
    },
    /// To whoever wished for it.
    ErrandDone(Errand),
    SettleDeadLetter {
        dead_letter_id: DeadLetterId,
        settlement: Settlement,
        request: Option<RequestRef>,
    },
    Envelope(Envelope),
    /// The sweeper asks whether the run will wake by itself, and what to show of it.
    Check,
    #[cfg(feature = "test-seams")]
    AdvanceClock {
        ms: i64,
    },
    #[cfg(feature = "test-seams")]
    Redeliver {
        step_index: u32,
        copies: u32,
    },
    #[cfg(feature = "test-seams")]
    Internals,
}

impl RunOp {
    /// Whether it only looks.
    pub fn reads(&self) -> bool {
        match self {
            Self::FirstAnswer
            | Self::View
            | Self::Events { .. }
            | Self::DeadLetters
            | Self::DeadLetter { .. }
            | Self::Approvals
            | Self::Approval { .. }
            | Self::Diagnose
            | Self::ChildOrder { .. }
            | Self::Told => true,
            #[cfg(feature = "test-seams")]
            Self::Internals => true,
            _ => false,
        }
    }

    /// Whether a client is shown by it what it may look for in the index next.
    pub fn shows(&self) -> bool {
        matches!(
            self,
            Self::Start { .. }
                | Self::FirstAnswer
                | Self::View
                | Self::Diagnose
                | Self::Events { .. }
                | Self::Control { .. }
                | Self::Raise { .. }
                | Self::Answer { .. }
                | Self::SettleDeadLetter { .. }
        )
    }

    /// By how much it moves the run's clock.
    #[cfg(feature = "test-seams")]
    pub fn moved_ms(&self) -> i64 {
        match self {
            Self::AdvanceClock { ms } => *ms,
            _ => 0,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RunAnswer {
    pub result: Result<RunResult, Refusal>,
    /// Whoever asked sends them, and the alarm whatever was not sent.
    pub messages: Messages,
    /// What the tenant's index may not know of yet: whoever is shown the run tells the index first,
    /// so that what a client has seen it also finds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<Projection>,
}

/// What a run wants sent: cognition apart from execution.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Messages {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<String>,
}

impl Messages {
    pub fn len(&self) -> usize {
        self.plan.len().saturating_add(self.work.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunResult {
    /// A run, a dead letter: JSON for the client as it stands.
    Shown(Box<RawValue>),
    /// `status` is the run's; `ended` tells whether the log can still grow.
    Events {
        entries: Vec<Box<RawValue>>,
        last_seq: u64,
        status: String,
        ended: bool,
    },
    DeadLetters(Vec<Box<RawValue>>),
    Approvals(Vec<Box<RawValue>>),
    ChildOrder(Option<ChildOrder>),
    Told(Option<Told>),
    Claim(ClaimReply),
    Extend(ExtendReply),
    Settle(SettleReply),
    /// `replayed`: it was carried out before, under the same key. `seq`: the entry that records it.
    Done {
        replayed: bool,
        seq: u64,
        shown: Option<Box<RawValue>>,
    },
    Checked {
        projections: Vec<Projection>,
        rearmed: bool,
        /// Child runs whose end is awaited.
        children: Vec<RunId>,
    },
}

/// What a tenant's index is told of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Projection {
    pub tenant_id: TenantId,
    pub run_id: RunId,
    /// The log's length: of two projections the longer one is true.
    pub seq: u64,
    pub status: String,
    pub agent: Option<String>,
    pub tags: BTreeMap<String, String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Until when nothing need be heard of the run: the sweeper does not ask before.
    pub quiet_until: Option<Timestamp>,
    pub dead_letters: Vec<ProjectedDeadLetter>,
    #[serde(default)]
    pub approvals: Vec<ProjectedApproval>,
}

impl Projection {
    /// Whether it tells of something that a person is to decide or to settle.
    pub fn asks_somebody(&self) -> bool {
        !self.dead_letters.is_empty() || !self.approvals.is_empty()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProjectedDeadLetter {
    pub dead_letter_id: DeadLetterId,
    pub status: String,
    pub reason: DeadLetterReason,
    /// The dead letter as clients see it; without its envelope where that is large.
    pub shown: Box<RawValue>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProjectedApproval {
    pub approval_id: ApprovalId,
    pub status: String,
    /// The approval as clients see it; without what is large.
    pub shown: Box<RawValue>,
}

// ---- A tenant's object ----------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefinitionKind {
    Tool,
    Agent,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantCall {
    /// Makes the tenant. Its object answers nothing else before.
    Create {
        now: Timestamp,
    },
    PutDefinition {
        kind: DefinitionKind,
        name: String,
        definition: Json,
        now: Timestamp,
    },
    GetDefinition {
        kind: DefinitionKind,
        name: String,
        version: Option<u64>,
    },
    ListDefinitions {
        kind: DefinitionKind,
        limit: usize,
        cursor: Option<String>,
    },
    DeleteDefinition {
        kind: DefinitionKind,
        name: String,
    },
    /// Before a run is born: its place in the index, the client's key, and what it is made of as that
    /// is now.
    Register {
        run_id: RunId,
        maker: Maker,
        tags: BTreeMap<String, String>,
        request: Option<RequestRef>,
        /// Of a child: the run at the top, whose descendants are counted.
        root_run_id: Option<RunId>,
        now: Timestamp,
    },
    /// Tools as they are now, by the name asked for; those that do not exist are left out.
    Tools {
        names: Vec<String>,
    },
    Project {
        projections: Vec<Projection>,
    },
    ListRuns {
        filter: RunFilter,
        limit: usize,
        cursor: Option<String>,
    },
    /// An envelope that no run could take.
    KeepDeadLetter {
        letter: StrayLetter,
    },
    ListDeadLetters {
        filter: DeadLetterFilter,
        limit: usize,
        cursor: Option<String>,
    },
    FindDeadLetter {
        dead_letter_id: DeadLetterId,
    },
    ListApprovals {
        filter: ApprovalFilter,
        limit: usize,
        cursor: Option<String>,
    },
    FindApproval {
        approval_id: ApprovalId,
    },
    /// Settles a stray letter.
    SettleStray {
        dead_letter_id: DeadLetterId,
        status: String,
        comment: Option<String>,
        request: Option<RequestRef>,
        now: Timestamp,
    },
    CreateKey {
        key_id: KeyId,
        name: String,
        role: String,
        secret_sha256: String,
        now: Timestamp,
    },
    RevokeKey {
        key_id: KeyId,
        now: Timestamp,
    },
    CheckKey {
        key_id: KeyId,
        secret_sha256: String,
    },
    /// Runs of which the index should have heard by then, oldest first.
    StaleRuns {
        before: Timestamp,
        limit: usize,
    },
    /// An ended run is about to be retried: the sweeper is to look at it again, whatever comes of that.
    ReopenRun {
        run_id: RunId,
    },
    /// A run that was registered and never born.
    ForgetRun {
        run_id: RunId,
    },
    /// A request that makes something, about to be carried out under a client's key.
    BeginRequest {
        request: RequestRef,
        now: Timestamp,
    },
    /// Its answer, to be given again.
    FinishRequest {
        request: RequestRef,
        status: u16,
        body: String,
    },
    /// A worker is about to ask the first of these models that does not rest.
    ModelHealth {
        models: Vec<String>,
        now: Timestamp,
    },
    /// A model that had failed has answered.
    ModelAnswered {
        model: String,
    },
    /// A model failed in a way that passes.
    ModelFailed {
        model: String,
        /// What its provider asked for.
        retry_after_ms: Option<i64>,
        now: Timestamp,
    },
    /// Of the directory object alone.
    ListTenants {
        after: Option<TenantId>,
        limit: usize,
    },
    AddTenant {
        tenant_id: TenantId,
        now: Timestamp,
    },
}

/// How a model has done lately, for all runs of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelHealth {
    /// It is not to be asked before.
    pub rests_until: Option<Timestamp>,
    /// It failed last: that it answers is news.
    pub troubled: bool,
}

/// What a run is made of.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Maker {
    /// `name` or `name@version`, and the input that it must take.
    Agent { reference: String, input: Json },
    /// An inline plan: the tools it names, bare or with a version (`pay`, `pay@2`).
    Plan { tools: Vec<String> },
}

/// An agent as a run pins it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PinnedAgent {
    /// `name@version`.
    pub label: String,
    pub definition: Json,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFilter {
    pub status: Option<String>,
    /// `name` or `name@version`.
    pub agent: Option<String>,
    pub tags: BTreeMap<String, String>,
    pub created_after: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterFilter {
    pub run_id: Option<RunId>,
    pub reason: Option<String>,
    pub status: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalFilter {
    pub run_id: Option<RunId>,
    pub status: Option<String>,
}

/// A dead letter that belongs to no run: kept by its tenant with the bytes as they came.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StrayLetter {
    pub dead_letter_id: DeadLetterId,
    pub reason: DeadLetterReason,
    pub message: String,
    pub errors: Vec<Violation>,
    /// The envelope as far as it could be read; a string holds text that was not JSON.
    pub envelope: Json,
    pub now: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantAnswer {
    Done,
    NotFound,
    /// It was there before.
    Exists,
    Definition(Definition),
    Definitions {
        items: Vec<Definition>,
        next_cursor: Option<String>,
    },
    /// `run_id` is the earlier run's where the key was used before with the same body.
    Registered {
        run_id: RunId,
        fresh: bool,
        /// The agent that was asked for; none for an inline plan, or where it has gone since the key
        /// was used first.
        agent: Option<PinnedAgent>,
        tools: BTreeMap<String, PinnedTool>,
    },
    UnknownAgent,
    /// In the order asked for.
    ModelHealth(Vec<ModelHealth>),
    /// The root has as many descendants as it may have.
    TreeFull {
        limit: i64,
    },
    /// The input does not fit the agent's `input_schema`.
    Invalid(Vec<Violation>),
    KeyReused,
    Tools(BTreeMap<String, PinnedTool>),
    /// Items for the client as they stand.
    Items {
        items: Vec<Box<RawValue>>,
        next_cursor: Option<String>,
    },
    BadCursor,
    /// In a run's log, or stray: then as clients see it.
    DeadLetterFound {
        run_id: Option<RunId>,
        shown: Box<RawValue>,
    },
    ApprovalFound {
        run_id: RunId,
        shown: Box<RawValue>,
    },
    AlreadySettled {
        status: String,
        at: Timestamp,
    },
    Key {
        role: String,
    },
    Stale(Vec<RunId>),
    Tenants(Vec<TenantId>),
    /// Carry the request out.
    Begun,
    /// Answer this again.
    Answered {
        status: u16,
        body: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Definition {
    pub name: String,
    pub version: u64,
    pub definition: Json,
    pub created_at: Timestamp,
    /// Whether the call that answers with it made this version.
    pub fresh: bool,
}
