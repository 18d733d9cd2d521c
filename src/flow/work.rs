//! A worker: takes a message of the `work` queue, claims its step, acts, and reports.
//!
//! The run's object has the last word on everything. A message is a hint that a step may be waiting;
//! the claim is the permission; the report is accepted only under the claim's token. So a message
//! may come twice, late or never, and a worker may die anywhere.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures::stream::{FuturesUnordered, StreamExt};

use crate::decide::{
    Assignment, Claim, ClaimReply, PlanAssignment, Refusal, Report, Settle, TurnedAway,
};
use crate::envelope::{Door, accept};
use crate::json::{self, Json, Value, Violation};
use crate::outbox::{ErrandMessage, WorkMessage};
use crate::ports::{
    Failpoint, Fault, Projection, RunOp, RunResult, TenantAnswer, TenantCall, World,
};
use crate::run::event::{DeadLetterReason, Purpose, StepError};
use crate::schema;
use crate::signed::CallbackClaims;
use crate::tool::{
    Answer, Call, OutboundRequest, Outcome, RejectReason, RequestError, Secrets, Sent, Tool,
    Verified, classify, verified,
};
use crate::words::{RunId, TenantId};

use super::hold::{Hold, alive, extend, settle};
use super::relay::ask;
use super::think::think;
use super::{Verdict, cache, family, stray};

/// What is left of a lease when a worker asks for more before it calls.
const LATE_MS: i64 = 1_000;
/// How long one worker goes on from step to step. A consumer has 15 minutes and a tool may take ten.
/// https://developers.cloudflare.com/queues/platform/limits/
const CHAIN_MS_MAX: i64 = 180_000;
/// How long before a queue's message is tried again when a run's object cannot be reached.
const REDELIVERY_S: u32 = 2;
const REDELIVERY_S_MAX: u32 = 600;

/// One delivery of a message.
#[derive(Clone, Debug)]
pub struct Delivery<'a> {
    pub body: &'a str,
    /// Deliveries of this message so far, this one included.
    pub attempts: u32,
}

/// Takes one message to its end: through all steps that this worker is given one after another.
pub async fn work<W: World>(world: &W, delivery: Delivery<'_>) -> Verdict {
    match take(world, &delivery).await {
        Ok(()) => Verdict::Ack,
        Err(fault) => {
            world.log(&format!("a delivery will be tried again: {fault}"));
            let doubled =
                REDELIVERY_S.saturating_mul(1 << delivery.attempts.saturating_sub(1).min(8));
            Verdict::Retry {
                delay_s: doubled.min(REDELIVERY_S_MAX),
            }
        }
    }
}

async fn take<W: World>(world: &W, delivery: &Delivery<'_>) -> Result<(), Fault> {
    world.pass(Failpoint::ConsumerReceived).await?;
    let step = match read_message(world, delivery.body) {
        Ok(Wanted::Step(step)) => step,
        Ok(Wanted::Errand(message)) => return family::run_errand(world, &message).await,
        Err(errors) => {
            return stray::keep_message(world, delivery.body, errors)
                .await
                .map(drop);
        }
    };
    if delivery.attempts > 1 && deliver_put_aside(world, &step).await? {
        return Ok(());
    }
    // Outcomes on their way to the cache. They go beside the work: a step that was granted with the
    // last report must not wait for them while its lease runs.
    let mut asides = FuturesUnordered::new();
    let began = world.now();
    let mut next = match claim(world, &step).await? {
        Claimed::Granted(assignment) => Some(*assignment),
        Claimed::Asked(assignment) => return decide_next(world, &assignment).await,
        Claimed::Nothing => None,
        Claimed::NoTenant => {
            let errors = vec![Violation::new("/tenant_id", "there is no such tenant")];
            return stray::keep_message(world, delivery.body, errors)
                .await
                .map(drop);
        }
    };
    while let Some(assignment) = next {
        world.pass(Failpoint::ConsumerClaimed).await?;
        let Some(report) = beside(&mut asides, find_or_act(world, &assignment)).await else {
            world.log(&format!(
                "a step of {} was taken too late",
                assignment.run_id
            ));
            break;
        };
        world.pass(Failpoint::ConsumerAfterTool).await?;
        if world.keeps_every_outcome() {
            let (assignment, report) = (assignment.clone(), report.clone());
            asides.push(async move {
                let hold = Hold::from(&assignment);
                if let Err(fault) = cache::put(world, &hold, &report).await {
                    world.log(&format!("an outcome was not cached: {fault}"));
                }
            });
        }
        let wants_next = world.now().ms_since(began) < CHAIN_MS_MAX;
        let hold = Hold::from(&assignment);
        next = beside(&mut asides, settle(world, &hold, report, wants_next)).await?;
        world.pass(Failpoint::ConsumerSettled).await?;
    }
    while asides.next().await.is_some() {}
    Ok(())
}

/// Has a round decided, and reports it. What follows from it is another queue's.
async fn decide_next<W: World>(world: &W, assignment: &PlanAssignment) -> Result<(), Fault> {
    world.pass(Failpoint::ConsumerClaimed).await?;
    let hold = Hold::from(assignment);
    let aside = if assignment.losses > 0 {
        cache::of_lost_worker(world, &hold).await
    } else {
        None
    };
    let report = match aside {
        Some(report) => report,
        None => think(world, assignment).await,
    };
    world.pass(Failpoint::ConsumerAfterTool).await?;
    settle(world, &hold, report, false).await?;
    world.pass(Failpoint::ConsumerSettled).await
}

/// Waits for `main`, and lets `asides` get on meanwhile.
async fn beside<T, F: Future<Output = ()>>(
    asides: &mut FuturesUnordered<F>,
    main: impl Future<Output = T>,
) -> T {
    let mut main = pin!(main);
    poll_fn(|context| {
        while let Poll::Ready(Some(())) = asides.poll_next_unpin(context) {}
        main.as_mut().poll(context)
    })
    .await
}

/// The outcome that a lost worker put aside, or else a new one. `None`: this worker came too late,
/// and the step is no longer its own.
async fn find_or_act<W: World>(world: &W, assignment: &Assignment) -> Option<Report> {
    let hold = Hold::from(assignment);
    if (assignment.losses > 0 || assignment.purpose == Purpose::Verify)
        && let Some(report) = cache::of_lost_worker(world, &hold).await
    {
        return Some(report);
    }
    // A worker that stalled since its claim may hold nothing any more. What it does not hold it must
    // not call.
    let mut assignment = assignment.clone();
    if world.now().plus_ms(LATE_MS) >= assignment.lease_until {
        assignment.lease_until = extend(world, &Hold::from(&assignment)).await?;
    }
    Some(act(world, &assignment).await)
}

/// Takes a message that its queue gave up on. A step's is not lost by that, because its run sends it
/// again: the run is asked whether it will. What cannot be read is kept for a person.
pub async fn bury<W: World>(world: &W, body: &str) -> Result<(), Fault> {
    if serde_json::from_str::<Projection>(body).is_ok() {
        world.log("an index was not told of a run; the sweeper will tell it");
        return Ok(());
    }
    match read_message(world, body) {
        Ok(wanted) => {
            let (tenant_id, run_id) = wanted.by();
            ask(world, tenant_id, run_id, RunOp::Check).await.map(drop)
        }
        Err(errors) => stray::keep_message(world, body, errors).await.map(drop),
    }
}

/// The step that a message is about.
struct StepRef {
    tenant_id: TenantId,
    run_id: RunId,
    claim: Claim,
}

/// What a message is for.
enum Wanted {
    Step(StepRef),
    Errand(ErrandMessage),
}

impl Wanted {
    /// Whose wish it is.
    fn by(&self) -> (&TenantId, &RunId) {
        match self {
            Self::Step(step) => (&step.tenant_id, &step.run_id),
            Self::Errand(message) => (&message.tenant_id, &message.run_id),
        }
    }
}

/// Checks a message against its schema, and its key against its payload.
fn read_message<W: World>(world: &W, body: &str) -> Result<Wanted, Vec<Violation>> {
    let value = json::read_stored(body.as_bytes())?;
    schema::validate("message", &value)?;
    let read = |e: serde_json::Error| vec![Violation::new("", e.to_string())];
    match serde_json::from_str::<WorkMessage>(body).map_err(read)? {
        WorkMessage::Errand(message) => Ok(Wanted::Errand(message)),
        WorkMessage::Reference(reference) => Ok(Wanted::Step(StepRef {
            tenant_id: reference.tenant_id,
            run_id: reference.run_id,
            claim: Claim {
                step_index: reference.step_index,
                idempotency_key: reference.idempotency_key,
            },
        })),
        WorkMessage::Envelope(envelope) => {
            let whole = value.get("envelope").unwrap_or(&Value::Null);
            let door = Door {
                tenant_id: &envelope.tenant_id,
                now: world.now(),
                random: [0; 26],
            };
            accept(whole, &door)?;
            let step_index = envelope.step_index.ok_or_else(|| {
                vec![Violation::new(
                    "/envelope/step_index",
                    "a step's message names its step",
                )]
            })?;
            Ok(Wanted::Step(StepRef {
                tenant_id: envelope.tenant_id,
                run_id: envelope.run_id,
                claim: Claim {
                    step_index,
                    idempotency_key: envelope.idempotency_key,
                },
            }))
        }
    }
}

/// What a claim led to.
enum Claimed {
    Granted(Box<Assignment>),
    Asked(Box<PlanAssignment>),
    Nothing,
    NoTenant,
}

async fn claim<W: World>(world: &W, step: &StepRef) -> Result<Claimed, Fault> {
    let answer = ask(
        world,
        &step.tenant_id,
        &step.run_id,
        RunOp::Claim(step.claim.clone()),
    )
    .await?;
    let why = match answer {
        Ok(RunResult::Claim(ClaimReply::Granted(assignment))) => {
            return Ok(Claimed::Granted(assignment));
        }
        Ok(RunResult::Claim(ClaimReply::Asked(assignment))) => {
            return Ok(Claimed::Asked(assignment));
        }
        Ok(RunResult::Claim(ClaimReply::TurnedAway(TurnedAway::Stale))) => "Stale".to_owned(),
        // A copy too many is nothing to report: the run counts it.
        Ok(RunResult::Claim(ClaimReply::TurnedAway(_))) => return Ok(Claimed::Nothing),
        Ok(_) => {
            return Err(Fault::new(
                "claim",
                step.run_id.as_str(),
                "got an answer of another kind",
            ));
        }
        Err(Refusal::NotFound) => {
            let call = TenantCall::Tools { names: Vec::new() };
            if let TenantAnswer::NotFound = world.tenant(&step.tenant_id, &call).await? {
                return Ok(Claimed::NoTenant);
            }
            "NotFound".to_owned()
        }
        // A run that is frozen is no reason to deliver the message again.
        Err(refusal) => format!("{refusal:?}"),
    };
    world.log(&format!(
        "a message of {} was turned away: {why}",
        step.run_id
    ));
    Ok(Claimed::Nothing)
}

/// Does what the assignment says, while telling the run's object that it is alive.
async fn act<W: World>(world: &W, assignment: &Assignment) -> Report {
    let tool = match Tool::parse(&assignment.tool) {
        Ok(tool) => tool,
        Err(violations) => {
            let message = format!(
                "the pinned tool cannot be read: {}",
                json::sentence(&violations)
            );
            return refused(DeadLetterReason::InvalidArguments, message, violations);
        }
    };
    match assignment.purpose {
        Purpose::Call => call(world, assignment, &tool).await,
        Purpose::Verify => verify(world, assignment, &tool).await,
    }
}

async fn call<W: World>(world: &W, assignment: &Assignment, tool: &Tool) -> Report {
    if let Some(parameters) = &tool.parameters {
        let checked =
            schema::validate_with(parameters, &assignment.arguments, "/payload/arguments");
        if let Err(violations) = checked {
            let message = format!("the arguments do not fit: {}", json::sentence(&violations));
            return refused(DeadLetterReason::InvalidArguments, message, violations);
        }
    }
    let callback_url = callback_url(world, assignment);
    let request = match prepare(
        world,
        assignment,
        callback_url.as_deref(),
        |call, secrets| tool.request(call, secrets),
    ) {
        Ok(request) => request,
        Err(report) => return report,
    };
    let answer = call_alive(world, assignment, &request).await;
    match classify(&answer, world.now()) {
        Outcome::Succeeded { result } => completed(tool, &answer, result),
        Outcome::Accepted => Report::Accepted,
        Outcome::Retryable {
            status_code,
            error,
            retry_after_ms,
            sent,
        } => Report::Failed {
            error: step_error("unavailable", request.mask(&error), status_code, Vec::new()),
            reason: DeadLetterReason::RetriesExhausted,
            retryable: true,
            retry_after_ms,
            may_have_acted: sent == Sent::Maybe,
        },
        Outcome::Rejected {
            status_code,
            error,
            reason,
            errors,
        } => Report::Failed {
            error: step_error(reason.as_str(), request.mask(&error), status_code, errors),
            reason: dead_letter_reason(reason),
            retryable: false,
            retry_after_ms: None,
            may_have_acted: false,
        },
    }
}

/// Where the tool may report, if it answers 202. Without a place or a key to sign with, none is
/// offered.
fn callback_url<W: World>(world: &W, assignment: &Assignment) -> Option<String> {
    let origin = world.public_origin().or(assignment.origin.as_deref())?;
    let claims = CallbackClaims {
        tenant_id: assignment.tenant_id.clone(),
        run_id: assignment.run_id.clone(),
        step_index: assignment.step_index,
        attempt: assignment.attempt,
        idempotency_key: assignment.idempotency_key.clone(),
    };
    let token = world.signer()?.sign(&claims)?;
    Some(format!("{origin}/v1/callbacks/{token}"))
}

fn completed(tool: &Tool, answer: &Answer, result: Value) -> Report {
    let status_code = match answer {
        Answer::Reply(reply) => Some(reply.status),
        Answer::Transport(_) => None,
    };
    let checked = match &tool.result {
        Some(wanted) => schema::validate_with(wanted, &result, "/result"),
        None => Ok(()),
    };
    match checked {
        Ok(()) => Report::Completed {
            result: Json::new(result),
            status_code,
        },
        Err(violations) => Report::Failed {
            error: step_error(
                "invalid_result",
                format!("the result does not fit: {}", json::sentence(&violations)),
                status_code,
                violations,
            ),
            reason: DeadLetterReason::InvalidResult,
            retryable: false,
            retry_after_ms: None,
            may_have_acted: true,
        },
    }
}

/// Asks the tool what became of an earlier call, under the same key.
async fn verify<W: World>(world: &W, assignment: &Assignment, tool: &Tool) -> Report {
    let request = match prepare(world, assignment, None, |call, secrets| {
        tool.verify_request(call, secrets)
    }) {
        Ok(Some(request)) => request,
        Ok(None) => {
            let message = "the tool has no verify request to ask what became of the call";
            let error = step_error("outcome_unknown", message.to_owned(), None, Vec::new());
            return Report::StillUnknown { error };
        }
        Err(report) => return report,
    };
    let answer = call_alive(world, assignment, &request).await;
    match verified(&answer) {
        Verified::Done { result } => completed(tool, &answer, result),
        Verified::NotDone => Report::NotDone,
        Verified::StillUnknown { error } => match classify(&answer, world.now()) {
            Outcome::Retryable {
                status_code,
                error,
                retry_after_ms,
                ..
            } => Report::Failed {
                error: step_error(
                    "verify_failed",
                    request.mask(&error),
                    status_code,
                    Vec::new(),
                ),
                reason: DeadLetterReason::OutcomeUnknown,
                retryable: true,
                retry_after_ms,
                may_have_acted: true,
            },
            _ => Report::StillUnknown {
                error: step_error("outcome_unknown", request.mask(&error), None, Vec::new()),
            },
        },
    }
}

fn prepare<W: World, T>(
    world: &W,
    assignment: &Assignment,
    callback_url: Option<&str>,
    make: impl FnOnce(&Call<'_>, &Secrets<'_>) -> Result<T, RequestError>,
) -> Result<T, Report> {
    let traceparent = Hold::from(assignment).traceparent(&assignment.trace_id);
    let call = Call {
        run_id: assignment.run_id.as_str(),
        step_index: assignment.step_index,
        attempt: assignment.attempt,
        idempotency_key: &assignment.idempotency_key,
        traceparent: &traceparent,
        callback_url,
        arguments: &assignment.arguments,
    };
    let secrets = |name: &str| world.secret(&assignment.tenant_id, name);
    make(&call, &secrets).map_err(|error| {
        let message = error.to_string();
        match error {
            RequestError::Arguments { violations } => {
                refused(DeadLetterReason::InvalidArguments, message, violations)
            }
            _ => refused(DeadLetterReason::Undeliverable, message, Vec::new()),
        }
    })
}

async fn call_alive<W: World>(
    world: &W,
    assignment: &Assignment,
    request: &OutboundRequest,
) -> Answer {
    let call = world.call_tool(request);
    alive(world, &Hold::from(assignment), assignment.lease_until, call).await
}

/// On a second delivery: reports an outcome that could not be told the first time.
async fn deliver_put_aside<W: World>(world: &W, step: &StepRef) -> Result<bool, Fault> {
    let found = cache::find(world, &step.tenant_id, &step.claim.idempotency_key).await;
    let Some(aside) = found else {
        return Ok(false);
    };
    let settle = Settle {
        step_index: aside.step_index,
        token: aside.token,
        report: aside.report,
        duplicates_suppressed: 0,
        wants_next: false,
    };
    let answer = ask(world, &step.tenant_id, &step.run_id, RunOp::Settle(settle)).await?;
    Ok(matches!(answer, Ok(RunResult::Settle(reply)) if reply.recorded))
}

fn refused(reason: DeadLetterReason, message: String, errors: Vec<Violation>) -> Report {
    Report::Failed {
        error: step_error(reason.as_str(), message, None, errors),
        reason,
        retryable: false,
        retry_after_ms: None,
        may_have_acted: false,
    }
}

fn step_error(
    reason: &str,
    message: String,
    status_code: Option<u16>,
    errors: Vec<Violation>,
) -> StepError {
    StepError {
        reason: reason.to_owned(),
        message,
        status_code,
        errors,
    }
}

fn dead_letter_reason(reason: RejectReason) -> DeadLetterReason {
    match reason {
        RejectReason::RejectedByTool => DeadLetterReason::RejectedByTool,
        RejectReason::Blocked => DeadLetterReason::Undeliverable,
        RejectReason::InvalidResult => DeadLetterReason::InvalidResult,
        RejectReason::InvalidArguments => DeadLetterReason::InvalidArguments,
    }
}
