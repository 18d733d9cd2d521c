//! Errands between a run and its children.
//!
//! Each may be done twice, late, or by several workers at once: the child's id is fixed before it
//! exists, and both runs take each piece of news once.

use crate::agent::without_keys;
use crate::decide::{ChildNews, ChildOrder, ChildReport, Refusal};
use crate::json::Violation;
use crate::outbox::{Errand, ErrandMessage};
use crate::ports::{Fault, Maker, RunOp, RunResult, TenantAnswer, TenantCall, World};
use crate::run::event::{DeadLetterReason, RunCreated};
use crate::words::{RunId, TenantId, TraceId};

use super::relay::ask;

/// Does what a run wished to have done. A fault is for trying again.
pub async fn run_errand<W: World>(world: &W, message: &ErrandMessage) -> Result<(), Fault> {
    let (tenant_id, run_id) = (&message.tenant_id, &message.run_id);
    match &message.errand {
        Errand::StartChild {
            step_index,
            child_run_id,
        } => start_child(world, tenant_id, run_id, *step_index, child_run_id).await,
        Errand::CancelChild { child_run_id } => {
            let op = RunOp::CallOff {
                parent_run_id: run_id.clone(),
            };
            ask(world, tenant_id, child_run_id, op).await?.ok();
            is_done(world, message).await
        }
        Errand::ReportEnd {
            parent_run_id,
            step_index,
            ..
        } => {
            let told = ask(world, tenant_id, run_id, RunOp::Told).await?;
            let Ok(RunResult::Told(Some(told))) = told else {
                // It goes on after all: its end will be told when it comes.
                return Ok(());
            };
            let news = ChildNews::Ended(told);
            tell_parent(world, tenant_id, parent_run_id, *step_index, run_id, news).await?;
            is_done(world, message).await
        }
    }
}

async fn is_done<W: World>(world: &W, message: &ErrandMessage) -> Result<(), Fault> {
    let op = RunOp::ErrandDone(message.errand.clone());
    ask(world, &message.tenant_id, &message.run_id, op)
        .await
        .map(drop)
}

/// Starts the child that a run asked for, if it still wants it.
async fn start_child<W: World>(
    world: &W,
    tenant_id: &TenantId,
    parent_run_id: &RunId,
    step_index: u32,
    child_run_id: &RunId,
) -> Result<(), Fault> {
    let wanted = RunOp::ChildOrder {
        step_index,
        child_run_id: child_run_id.clone(),
    };
    let Ok(RunResult::ChildOrder(Some(order))) =
        ask(world, tenant_id, parent_run_id, wanted).await?
    else {
        return Ok(());
    };
    let news = match create(world, tenant_id, child_run_id, order).await? {
        Ok(agent) => ChildNews::Started { agent },
        Err(news) => news,
    };
    tell_parent(
        world,
        tenant_id,
        parent_run_id,
        step_index,
        child_run_id,
        news,
    )
    .await
}

/// The label of the agent that the child runs, or why there can be no child.
async fn create<W: World>(
    world: &W,
    tenant_id: &TenantId,
    child_run_id: &RunId,
    order: ChildOrder,
) -> Result<Result<String, ChildNews>, Fault> {
    let ChildOrder {
        agent: reference,
        input,
        parent,
        origin,
    } = order;
    let register = TenantCall::Register {
        run_id: child_run_id.clone(),
        maker: Maker::Agent {
            reference: reference.clone(),
            input: input.clone(),
        },
        tags: Default::default(),
        request: None,
        root_run_id: Some(parent.root_run_id.clone()),
        now: world.now(),
    };
    let (agent, tools) = match world.tenant(tenant_id, &register).await? {
        TenantAnswer::Registered {
            agent: Some(agent),
            tools,
            ..
        } => (agent, tools),
        TenantAnswer::Registered { agent: None, .. } | TenantAnswer::UnknownAgent => {
            return Ok(Err(unknown_agent(&reference)));
        }
        TenantAnswer::Invalid(errors) => return Ok(Err(invalid_input(&reference, errors))),
        TenantAnswer::TreeFull { limit } => return Ok(Err(tree_full(&parent.root_run_id, limit))),
        _ => {
            return Err(Fault::new(
                "register a child run",
                tenant_id.as_str(),
                "got an answer of another kind",
            ));
        }
    };
    let created = Box::new(RunCreated {
        agent: Some(agent.label.clone()),
        definition: without_keys(&agent.definition),
        input,
        tags: Default::default(),
        tools,
        started_by: None,
        parent: Some(parent),
        origin,
    });
    let start = RunOp::Start {
        run_id: child_run_id.clone(),
        trace_id: TraceId::derive(child_run_id.as_str()),
        created,
    };
    match ask(world, tenant_id, child_run_id, start).await? {
        Ok(_) => Ok(Ok(agent.label)),
        Err(refusal) => Ok(Err(not_started(&refusal))),
    }
}

async fn tell_parent<W: World>(
    world: &W,
    tenant_id: &TenantId,
    parent_run_id: &RunId,
    step_index: u32,
    child_run_id: &RunId,
    news: ChildNews,
) -> Result<(), Fault> {
    let report = ChildReport {
        step_index,
        child_run_id: child_run_id.clone(),
        news,
    };
    // A parent that is gone or frozen needs to know nothing.
    ask(world, tenant_id, parent_run_id, RunOp::Child(report))
        .await
        .map(drop)
}

fn unknown_agent(reference: &str) -> ChildNews {
    let name = reference.split('@').next().unwrap_or(reference);
    let message = format!(
        "the tenant has no agent {reference}: store it with PUT /v1/agents/{name}, then redeliver"
    );
    refused(DeadLetterReason::Undeliverable, message, "/run/agent")
}

fn invalid_input(reference: &str, errors: Vec<Violation>) -> ChildNews {
    let errors: Vec<Violation> = errors
        .into_iter()
        .map(|v| Violation::new(format!("/run{}", v.pointer), v.message))
        .collect();
    ChildNews::Refused {
        reason: DeadLetterReason::InvalidArguments,
        message: format!(
            "the agent {reference} does not take this input: {}",
            crate::json::sentence(&errors)
        ),
        errors,
    }
}

fn tree_full(root_run_id: &RunId, limit: i64) -> ChildNews {
    let message = format!(
        "{root_run_id} has {limit} runs below it, on all levels together, the most allowed"
    );
    refused(DeadLetterReason::FanOutLimit, message, "/run")
}

fn not_started(refusal: &Refusal) -> ChildNews {
    let message = format!("the child run could not be started: {refusal:?}");
    refused(DeadLetterReason::Undeliverable, message, "/run")
}

fn refused(reason: DeadLetterReason, message: String, pointer: &str) -> ChildNews {
    let errors = vec![Violation::new(pointer, message.clone())];
    ChildNews::Refused {
        reason,
        message,
        errors,
    }
}
