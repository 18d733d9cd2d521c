//! What the front door does once a request is understood: starts runs, takes envelopes, settles
//! dead letters.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::agent::{Agent, Planner, without_keys};
use crate::decide::{Control, Refusal};
use crate::envelope::{Door, Envelope, accept};
use crate::json::{Json, Value, Violation};
use crate::plan::Action;
use crate::ports::{
    Failpoint, Fault, Maker, RunCall, RunOp, RunResult, TenantAnswer, TenantCall, World,
};
use crate::run::event::{DeadLetterReason, PinnedTool, RequestRef, RunCreated, Settlement};
use crate::schema;
use crate::words::{DeadLetterId, RunId, TenantId, TraceId};

use super::relay::{ask, relay, tell};
use super::stray;

/// A start request that has passed `run-request`.
pub struct Start {
    pub tenant_id: TenantId,
    pub body: Value,
    /// The client's `Idempotency-Key`.
    pub request: Option<RequestRef>,
    /// The `traceparent` of the HTTP request.
    pub traceparent: Option<String>,
    /// Where the request reached this service.
    pub origin: Option<String>,
}

/// A run that exists now, as it was answered when it was born.
pub struct Started {
    pub run_id: RunId,
    pub shown: Box<RawValue>,
    pub replayed: bool,
}

/// Why a request was not carried out.
#[derive(Debug)]
pub enum Refused {
    Invalid(Vec<Violation>),
    UnknownTenant,
    KeyReused,
    Run(Refusal),
    World(Fault),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::World(fault)
    }
}

/// Starts a run: a place in the tenant's index, then the run's first commit, then its messages.
///
/// The place comes first, so that there is no run the sweeper does not know of; a place without a
/// run is found and removed.
pub async fn start_run<W: World>(world: &W, start: Start) -> Result<Started, Refused> {
    let Start {
        tenant_id,
        body,
        request,
        traceparent,
        origin,
    } = start;
    let input = body
        .get("input")
        .cloned()
        .unwrap_or_else(|| Value::Object(Default::default()));
    let (maker, inline) = maker(&body, &input)?;
    let now = world.now();
    let random = world.random();
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, trace @ ..] = random;
    let mut trace_bytes = [0; 16];
    for (to, from) in trace_bytes.iter_mut().zip(trace) {
        *to = from;
    }
    let run_id = RunId::new(now, [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9]);
    let tags = tags(&body);
    let register = TenantCall::Register {
        run_id,
        maker,
        tags: tags.clone(),
        request,
        root_run_id: None,
        now,
    };
    let (run_id, fresh, agent, tools) = match world.tenant(&tenant_id, &register).await? {
        TenantAnswer::Registered {
            run_id,
            fresh,
            agent,
            tools,
        } => (run_id, fresh, agent, tools),
        TenantAnswer::UnknownAgent => return Err(unknown_agent(&body)),
        TenantAnswer::Invalid(violations) => return Err(Refused::Invalid(violations)),
        TenantAnswer::KeyReused => return Err(Refused::KeyReused),
        TenantAnswer::NotFound => return Err(Refused::UnknownTenant),
        _ => return Err(unexpected("register", &tenant_id).into()),
    };
    if !fresh {
        // The run may be there already, or its starter died before it was born: then it is born now.
        let call = RunCall {
            tenant_id: tenant_id.clone(),
            op: RunOp::FirstAnswer,
        };
        if let Ok(RunResult::Shown(shown)) = world.run(&run_id, &call).await?.result {
            return Ok(Started {
                run_id,
                shown,
                replayed: true,
            });
        }
    }
    let (label, definition) = match (inline, agent) {
        (Some(definition), _) => (None, definition),
        (None, Some(agent)) => (Some(agent.label), agent.definition),
        (None, None) => return Err(unknown_agent(&body)),
    };
    let created = Box::new(RunCreated {
        agent: label,
        definition: without_keys(&definition),
        input: Json::new(input),
        tags,
        tools,
        started_by: traceparent,
        parent: None,
        origin,
    });
    let op = RunOp::Start {
        run_id: run_id.clone(),
        trace_id: TraceId::new(trace_bytes),
        created,
    };
    let answer = world.run(&run_id, &RunCall { tenant_id, op }).await?;
    let shown = match answer.result {
        Ok(RunResult::Shown(shown)) => shown,
        Ok(_) => {
            return Err(
                Fault::new("start", run_id.as_str(), "got an answer of another kind").into(),
            );
        }
        Err(refusal) => return Err(Refused::Run(refusal)),
    };
    world.pass(Failpoint::FrontAfterCommit).await?;
    relay(world, &answer.messages).await;
    tell(world, answer.untold).await;
    world.pass(Failpoint::FrontAfterSend).await?;
    Ok(Started {
        run_id,
        shown,
        replayed: !fresh,
    })
}

/// What a start request makes its run of: an agent that the tenant resolves, or an inline plan, whose
/// definition comes along.
fn maker(body: &Value, input: &Value) -> Result<(Maker, Option<Json>), Refused> {
    if let Some(reference) = body.get("agent").and_then(Value::as_str) {
        let reference = reference.to_owned();
        let input = Json::new(input.clone());
        return Ok((Maker::Agent { reference, input }, None));
    }
    let plan = body.get("plan").unwrap_or(&Value::Null);
    let definition = Agent::inline_definition(plan);
    let agent = Agent::parse(&definition).map_err(|violations| {
        Refused::Invalid(violations.into_iter().map(from_inline_plan).collect())
    })?;
    let unusable = unusable_schemas(&agent, "/plan");
    if !unusable.is_empty() {
        return Err(Refused::Invalid(unusable));
    }
    let tools = agent.tools_needed();
    Ok((Maker::Plan { tools }, Some(Json::new(definition))))
}

/// The flaws of the schemas that a plan's approvals bear, which are not compiled before somebody
/// answers.
pub fn unusable_schemas(agent: &Agent, pointer: &str) -> Vec<Violation> {
    if let Planner::Model(planner) = &agent.planner
        && let Some(wanted) = &planner.output_schema
    {
        let checked = schema::check(wanted, &format!("{pointer}/output_schema"));
        return checked.err().unwrap_or_default();
    }
    let steps = agent.plan().map_or(&[][..], |plan| plan.steps.as_slice());
    let schemas = steps.iter().enumerate().filter_map(|(index, step)| {
        let Action::Approval { schema, .. } = &step.action else {
            return None;
        };
        let at = format!("{pointer}/steps/{index}/approval/schema");
        schema::check(schema.as_ref()?, &at).err()
    });
    schemas.flatten().collect()
}

fn unknown_agent(body: &Value) -> Refused {
    let reference = body
        .get("agent")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let message = format!("the tenant has no agent {reference}");
    Refused::Invalid(vec![Violation::new("/agent", message)])
}

/// An inline plan was wrapped into an agent; its flaws are told where the client wrote them.
fn from_inline_plan(violation: Violation) -> Violation {
    let pointer = match violation.pointer.strip_prefix("/planner") {
        Some(rest) => format!("/plan{rest}"),
        None => "/plan".to_owned(),
    };
    Violation::new(pointer, violation.message)
}

fn tags(body: &Value) -> BTreeMap<String, String> {
    let Some(Value::Object(members)) = body.get("tags") else {
        return BTreeMap::new();
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    members
        .iter()
        .map(|(name, value)| (name.clone(), text(value)))
        .collect()
}

/// What became of one envelope of a request.
pub enum Taken {
    Accepted(Box<Envelope>),
    Rejected {
        dead_letter_id: Option<DeadLetterId>,
        errors: Vec<Violation>,
    },
}

/// Takes one envelope from a client. What fails its schema is kept as a dead letter; what a run
/// refuses is told to the client and kept as well, so that nothing that was sent is lost.
pub async fn take_envelope<W: World>(
    world: &W,
    tenant_id: &TenantId,
    value: Value,
) -> Result<Taken, Fault> {
    match offer_envelope(world, tenant_id, &value).await? {
        Ok(envelope) => Ok(Taken::Accepted(Box::new(envelope))),
        Err(errors) => reject(world, tenant_id, value, errors).await,
    }
}

/// Hands one envelope to its run. What is wrong with it is told and not kept: the caller has it.
pub async fn offer_envelope<W: World>(
    world: &W,
    tenant_id: &TenantId,
    value: &Value,
) -> Result<Result<Envelope, Vec<Violation>>, Fault> {
    let random = world.random();
    let mut bytes = [0; 26];
    for (to, from) in bytes.iter_mut().zip(random) {
        *to = from;
    }
    let door = Door {
        tenant_id,
        now: world.now(),
        random: bytes,
    };
    let checked = schema::validate("envelope", value).and_then(|()| {
        let event_type = value
            .get("event_type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !schema::embedded::event_types().any(|known| known == event_type) {
            let message = format!("there is no event type {event_type:?}");
            return Err(vec![Violation::new("/event_type", message)]);
        }
        let payload = value.get("payload").unwrap_or(&Value::Null);
        schema::validate_at(event_type, payload, "/payload")
    });
    let envelope = match checked.and_then(|()| accept(value, &door)) {
        Ok(envelope) => envelope,
        Err(errors) => return Ok(Err(errors)),
    };
    let op = RunOp::Envelope(envelope.clone());
    Ok(match ask(world, tenant_id, &envelope.run_id, op).await? {
        Ok(_) => Ok(envelope),
        Err(Refusal::NotFound) => Err(vec![Violation::new("/run_id", "there is no such run")]),
        Err(Refusal::Ended { status }) => Err(vec![Violation::new(
            "/run_id",
            format!("the run has ended: {status}"),
        )]),
        Err(Refusal::Invalid { violations }) => Err(violations),
        Err(Refusal::Frozen { seq, .. }) => {
            let message = format!("the run is frozen: entry {seq} of its log cannot be read");
            Err(vec![Violation::new("/run_id", message)])
        }
        Err(refusal) => {
            let message = format!("the run refused it: {refusal:?}");
            Err(vec![Violation::new("/run_id", message)])
        }
    })
}

async fn reject<W: World>(
    world: &W,
    tenant_id: &TenantId,
    value: Value,
    errors: Vec<Violation>,
) -> Result<Taken, Fault> {
    let reason = DeadLetterReason::InvalidEnvelope;
    let kept = stray::keep(world, tenant_id, reason, value, errors.clone()).await?;
    Ok(Taken::Rejected {
        dead_letter_id: Some(kept),
        errors,
    })
}

/// The tools that a repaired payload names and the run has not pinned.
pub async fn tools_of<W: World>(
    world: &W,
    tenant_id: &TenantId,
    names: Vec<String>,
) -> Result<BTreeMap<String, PinnedTool>, Fault> {
    match world
        .tenant(tenant_id, &TenantCall::Tools { names })
        .await?
    {
        TenantAnswer::Tools(tools) => Ok(tools),
        _ => Err(unexpected("find tools", tenant_id)),
    }
}

/// Settles a dead letter that is in a run's log, and has the index know of it before it answers.
pub async fn settle_dead_letter<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    dead_letter_id: DeadLetterId,
    settlement: Settlement,
    request: Option<RequestRef>,
) -> Result<(Box<RawValue>, bool), Refused> {
    let op = RunOp::SettleDeadLetter {
        dead_letter_id,
        settlement,
        request,
    };
    match ask(world, tenant_id, run_id, op).await? {
        Ok(RunResult::Done {
            replayed,
            shown: Some(shown),
            ..
        }) => Ok((shown, replayed)),
        Ok(_) => Err(Fault::new("settle", run_id.as_str(), "got an answer of another kind").into()),
        Err(refusal) => Err(Refused::Run(refusal)),
    }
}

/// Has a failed run go on. The tenant's index is told first that the run may not have ended: an ended
/// one is nobody's care.
pub async fn retry_run<W: World>(
    world: &W,
    tenant_id: &TenantId,
    run_id: &RunId,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Result<RunResult, Refusal>, Fault> {
    let reopen = TenantCall::ReopenRun {
        run_id: run_id.clone(),
    };
    world.tenant(tenant_id, &reopen).await?;
    let op = RunOp::Control {
        control: Control::Retry,
        comment,
        request,
    };
    ask(world, tenant_id, run_id, op).await
}

/// Says nothing of the answer: it may hold what a tenant stored.
fn unexpected(operation: &str, tenant_id: &TenantId) -> Fault {
    Fault::new(
        operation,
        tenant_id.as_str(),
        "got an answer of another kind",
    )
}
