//! Asks a planner for the next intents: the models of its list in their order, or a service.

use data_encoding::BASE64;

use crate::agent::{self, Agent, HttpPlanner, Model, ModelPlanner, Planner};
use crate::decide::{Asked, PlanAssignment, Planned, Report, Unplanned};
use crate::json::{self, Json};
use crate::model::{
    self, Conversation, FaultKind, Finish, ModelAnswer, ModelFault, Outgoing, Usage,
};
use crate::plan::parse_versioned_name;
use crate::ports::{DefinitionKind, ModelHealth, TenantAnswer, TenantCall, World};
use crate::run::event::{StepError, Try};
use crate::signed;
use crate::tool::{Answer, OutboundRequest, Outcome, RequestError, Signing, classify};

use super::hold::{Hold, alive, extend};

/// A provider that wants to be asked again sooner than this is waited for once, before the next model
/// is tried.
const SHORT_WAIT_MS: i64 = 10_000;
/// Of text, on average, for providers that do not count.
const BYTES_PER_TOKEN: usize = 4;

/// What the planner says, as the run is told it.
pub async fn think<W: World>(world: &W, assignment: &PlanAssignment) -> Report {
    let agent = match Agent::parse(&assignment.agent) {
        Ok(agent) => agent,
        Err(violations) => {
            let message = format!("the pinned agent: {}", json::sentence(&violations));
            return unplanned(Vec::new(), error("bad_request", message, None), false, None);
        }
    };
    match (&agent.planner, &assignment.asked) {
        (Planner::Model(planner), Asked::Model(conversation)) => {
            ask_models(world, assignment, planner, conversation).await
        }
        (Planner::Http(planner), Asked::Http(body)) => {
            ask_service(world, assignment, planner, body).await
        }
        _ => {
            let message = "the round is of another kind of planner than the agent has".to_owned();
            unplanned(Vec::new(), error("bad_request", message, None), false, None)
        }
    }
}

async fn ask_models<W: World>(
    world: &W,
    assignment: &PlanAssignment,
    planner: &ModelPlanner,
    conversation: &Conversation,
) -> Report {
    let mut tries = Vec::new();
    let mut faults: Vec<ModelFault> = Vec::new();
    let health = health(world, assignment, planner).await;
    let own = definition(world, assignment).await;
    for (model, health) in planner.models.iter().zip(health) {
        let began = world.now();
        if let Some(until) = health.rests_until {
            let fault = resting(model, until.ms_since(began));
            tries.push(left(model, &fault, 0));
            faults.push(fault);
            continue;
        }
        let (asked, input_bytes) =
            ask_model(world, assignment, own.as_ref(), model, conversation).await;
        let latency_ms = world.now().ms_since(began).max(0);
        match asked.and_then(|(said, answer)| usable(model, said).map(|said| (said, answer))) {
            Ok((said, answer)) => {
                if health.troubled {
                    let model = health_key(model);
                    tell(world, assignment, TenantCall::ModelAnswered { model }).await;
                }
                let counted = said.usage;
                let usage = counted.unwrap_or_else(|| guess(input_bytes, &answer));
                tries.push(Try {
                    provider: model.provider.as_str().to_owned(),
                    model: model.name.clone(),
                    outcome: "answered".to_owned(),
                    status_code: None,
                    code: None,
                    message: None,
                    latency_ms,
                    input_tokens: usage.input_tokens,
                    output_tokens: usage.output_tokens,
                    estimated: counted.is_none(),
                });
                return Report::Planned(Box::new(Planned {
                    tries,
                    answer,
                    said: Some(said),
                }));
            }
            Err(fault) => {
                tries.push(left(model, &fault, latency_ms));
                if matches!(fault.kind, FaultKind::Overloaded | FaultKind::RateLimited) {
                    let call = TenantCall::ModelFailed {
                        model: health_key(model),
                        retry_after_ms: fault.retry_after_ms,
                        now: world.now(),
                    };
                    tell(world, assignment, call).await;
                }
                let wait = fault.retry_after_ms.is_some_and(|ms| ms <= SHORT_WAIT_MS);
                let limited = fault.kind == FaultKind::RateLimited;
                faults.push(*fault);
                if limited && wait && assignment.attempt <= 1 {
                    break;
                }
            }
        }
    }
    let retryable = faults.iter().any(|fault| fault.kind.passes());
    let waits = faults.iter().filter(|fault| fault.kind.passes());
    let all_wait = waits.clone().all(|fault| fault.retry_after_ms.is_some());
    let soonest = waits.filter_map(|fault| fault.retry_after_ms).min();
    let messages: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
    let last = faults.last();
    let reason = last.map_or("unavailable", |fault| fault.kind.as_str());
    let status_code = last.and_then(|fault| fault.status_code);
    let error = error(reason, messages.join(" "), status_code);
    unplanned(tries, error, retryable, soonest.filter(|_| all_wait))
}

/// The agent's own definition, where keys of its models stand in it as they are: no log holds them.
async fn definition<W: World>(world: &W, assignment: &PlanAssignment) -> Option<Json> {
    if !agent::names_keys(&assignment.agent) {
        return None;
    }
    let label = assignment.agent_label.as_deref()?;
    let named = parse_versioned_name(label)?;
    let call = TenantCall::GetDefinition {
        kind: DefinitionKind::Agent,
        name: named.name.to_owned(),
        version: named.version.map(u64::from),
    };
    match world.tenant(&assignment.tenant_id, &call).await {
        Ok(TenantAnswer::Definition(found)) => Some(found.definition),
        _ => None,
    }
}

/// How the models have done for other runs. Where the tenant cannot say, they are asked.
async fn health<W: World>(
    world: &W,
    assignment: &PlanAssignment,
    planner: &ModelPlanner,
) -> Vec<ModelHealth> {
    let models: Vec<String> = planner.models.iter().map(health_key).collect();
    let count = models.len();
    let now = world.now();
    let call = TenantCall::ModelHealth { models, now };
    match world.tenant(&assignment.tenant_id, &call).await {
        Ok(TenantAnswer::ModelHealth(all)) if all.len() == count => all,
        _ => vec![ModelHealth::default(); count],
    }
}

/// The same model of the same provider, whoever of the tenant asks it.
fn health_key(model: &Model) -> String {
    let provider = model.provider.as_str();
    format!("{provider} {} {}", model.base_url, model.name)
}

async fn tell<W: World>(world: &W, assignment: &PlanAssignment, call: TenantCall) {
    if let Err(fault) = world.tenant(&assignment.tenant_id, &call).await {
        world.log(&format!("how a model does was not noted: {fault}"));
    }
}

fn resting(model: &Model, ms: i64) -> ModelFault {
    ModelFault {
        kind: FaultKind::Resting,
        status_code: None,
        code: None,
        message: format!(
            "{} was not asked: it failed for other runs lately, and rests for {} s more.",
            model.name,
            ms / 1_000
        ),
        retry_after_ms: Some(ms),
    }
}

/// An answer, with the bytes that were asked with.
async fn ask_model<W: World>(
    world: &W,
    assignment: &PlanAssignment,
    own: Option<&Json>,
    model: &Model,
    conversation: &Conversation,
) -> (Result<(ModelAnswer, Json), Box<ModelFault>>, usize) {
    let secrets = |name: &str| {
        let key = own.and_then(|definition| agent::key(definition, name));
        key.or_else(|| world.secret(&assignment.tenant_id, name))
    };
    let outgoing = match model::request(model, conversation, &secrets) {
        Ok(outgoing) => outgoing,
        Err(error) => return (Err(unsendable(model, &error)), 0),
    };
    let hold = Hold::from(assignment);
    // A model before this one may have used the lease up.
    let late = world.now().plus_ms(1_000) >= assignment.lease_until;
    let lease_until = match late {
        true => extend(world, &hold).await.unwrap_or(assignment.lease_until),
        false => assignment.lease_until,
    };
    match outgoing {
        Outgoing::Http(mut request) => {
            let bytes = request.body.as_ref().map_or(0, String::len);
            let traceparent = hold.traceparent(&assignment.trace_id);
            request
                .headers
                .push(("traceparent".to_owned(), traceparent));
            let answer = alive(world, &hold, lease_until, world.call_tool(&request)).await;
            let mask = |text: &str| request.mask(text);
            (model::read(model, &answer, &mask, world.now()), bytes)
        }
        Outgoing::Binding {
            model: name,
            input,
            timeout_ms,
        } => {
            let call = world.ask_platform_model(&name, &input, timeout_ms);
            let answer = alive(world, &hold, lease_until, call).await;
            let mask = |text: &str| text.to_owned();
            let read = model::read(model, &answer, &mask, world.now());
            (read, input.len())
        }
    }
}

/// What is no answer to go on with, however well it was formed.
fn usable(model: &Model, said: ModelAnswer) -> Result<ModelAnswer, Box<ModelFault>> {
    let fault = |kind, message: String| {
        Err(Box::new(ModelFault {
            kind,
            status_code: None,
            code: None,
            message,
            retry_after_ms: None,
        }))
    };
    let name = &model.name;
    match said.finish {
        Finish::Refused => {
            let said = said.text.unwrap_or_default();
            let said = crate::fields::shorten(&said);
            fault(
                FaultKind::Refused,
                format!("{name} would not answer: {said:?}."),
            )
        }
        Finish::ContextFull => fault(
            FaultKind::ContextTooLong,
            format!("the conversation does not fit into the window of {name}."),
        ),
        _ => Ok(said),
    }
}

fn unsendable(model: &Model, error: &RequestError) -> Box<ModelFault> {
    Box::new(ModelFault {
        kind: FaultKind::Unauthorized,
        status_code: None,
        code: None,
        message: format!("{} was not asked: {error}.", model.name),
        retry_after_ms: None,
    })
}

fn left(model: &Model, fault: &ModelFault, latency_ms: i64) -> Try {
    Try {
        provider: model.provider.as_str().to_owned(),
        model: model.name.clone(),
        outcome: fault.kind.as_str().to_owned(),
        status_code: fault.status_code,
        code: fault.code.clone(),
        message: Some(fault.message.clone()),
        latency_ms,
        input_tokens: 0,
        output_tokens: 0,
        estimated: false,
    }
}

fn guess(input_bytes: usize, answer: &Json) -> Usage {
    let tokens = |bytes: usize| bytes.div_ceil(BYTES_PER_TOKEN) as u64;
    Usage {
        input_tokens: tokens(input_bytes),
        output_tokens: tokens(json::bytes_len(answer)),
    }
}

async fn ask_service<W: World>(
    world: &W,
    assignment: &PlanAssignment,
    planner: &HttpPlanner,
    body: &Json,
) -> Report {
    let secrets = |name: &str| world.secret(&assignment.tenant_id, name);
    let body = json::write(body);
    let id = format!("msg_{}", assignment.idempotency_key);
    let seconds = world.now().ms() / 1000;
    let sign = |secret: &str| {
        let signature = signed::webhook_signature(secret, &id, seconds, &body);
        let signature = signature.map(|mac| format!("v1,{}", BASE64.encode(&mac)));
        [
            ("webhook-id", Some(id.clone())),
            ("webhook-timestamp", Some(seconds.to_string())),
            ("webhook-signature", signature),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect::<Vec<_>>()
    };
    let secret = planner.signing_secret.as_deref();
    let signing = secret.map(|secret| Signing {
        secret,
        sign: &sign,
    });
    let headers = [
        ("Idempotency-Key", assignment.idempotency_key.clone()),
        ("Dormouse-Run-Id", assignment.run_id.to_string()),
        ("Dormouse-Step-Index", assignment.step_index.to_string()),
        ("Dormouse-Attempt", assignment.attempt.to_string()),
    ];
    let request = OutboundRequest::post(
        &planner.target,
        &headers,
        signing,
        body.clone(),
        planner.timeout_ms,
        &secrets,
    );
    let mut request = match request {
        Ok(request) => request,
        Err(e) => {
            let message = format!("the planner was not asked: {e}");
            return unplanned(Vec::new(), error("bad_request", message, None), false, None);
        }
    };
    let hold = Hold::from(assignment);
    let traceparent = hold.traceparent(&assignment.trace_id);
    request
        .headers
        .push(("traceparent".to_owned(), traceparent));
    let began = world.now();
    let call = world.call_tool(&request);
    let answer = alive(world, &hold, assignment.lease_until, call).await;
    let latency_ms = world.now().ms_since(began).max(0);
    let tried = |outcome: &str, status_code, message| Try {
        provider: "http".to_owned(),
        model: planner.target.url.clone(),
        outcome: outcome.to_owned(),
        status_code,
        code: None,
        message,
        latency_ms,
        input_tokens: 0,
        output_tokens: 0,
        estimated: false,
    };
    let status = match &answer {
        Answer::Reply(reply) => Some(reply.status),
        Answer::Transport(_) => None,
    };
    match classify(&answer, world.now()) {
        Outcome::Succeeded { result } => Report::Planned(Box::new(Planned {
            tries: vec![tried("answered", status, None)],
            answer: Json::new(result),
            said: None,
        })),
        Outcome::Accepted => {
            let message = "the planner answered 202: it is to answer with intents".to_owned();
            let tries = vec![tried("unreadable", status, Some(message.clone()))];
            unplanned(tries, error("unreadable", message, status), false, None)
        }
        Outcome::Retryable {
            status_code,
            error: why,
            retry_after_ms,
            ..
        } => {
            let message = request.mask(&format!("the planner gave no answer: {why}"));
            let tries = vec![tried("overloaded", status_code, Some(message.clone()))];
            let error = error("unavailable", message, status_code);
            unplanned(tries, error, true, retry_after_ms)
        }
        Outcome::Rejected {
            status_code,
            error: why,
            ..
        } => {
            let message = request.mask(&format!("the planner refused the request: {why}"));
            let tries = vec![tried("bad_request", status_code, Some(message.clone()))];
            unplanned(
                tries,
                error("bad_request", message, status_code),
                false,
                None,
            )
        }
    }
}

fn unplanned(
    tries: Vec<Try>,
    error: StepError,
    retryable: bool,
    retry_after_ms: Option<i64>,
) -> Report {
    Report::Unplanned(Box::new(Unplanned {
        tries,
        error,
        retryable,
        retry_after_ms,
        answer: None,
    }))
}

fn error(reason: &str, message: String, status_code: Option<u16>) -> StepError {
    StepError {
        reason: reason.to_owned(),
        message,
        status_code,
        errors: Vec::new(),
    }
}
