//! The schemas under `schemas/`, byte for byte as they are in the repository: the one table of them.
//!
//! A test lists the folder and fails when a file is not in the table.

/// One schema file.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// As in its `$id`, `/schemas/NAME.json`: `envelope`, or an event type such as `tool.requested`.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
    /// Whether it is the payload of an event type, which lies in `schemas/events/`.
    pub is_event: bool,
}

/// The text of the schema called `name`: what `GET /schemas/{name}.json` answers.
pub fn text(name: &str) -> Option<&'static str> {
    ALL.iter()
        .find(|entry| entry.name == name)
        .map(|entry| entry.text)
}

/// The types of event whose payload has a schema, in the order of their names.
pub fn event_types() -> impl Iterator<Item = &'static str> {
    ALL.iter()
        .filter(|entry| entry.is_event)
        .map(|entry| entry.name)
}

macro_rules! schemas {
    (own: $($own:literal)* events: $($event:literal)*) => {
        &[
            $(Embedded {
                name: $own,
                text: include_str!(concat!("../../schemas/", $own, ".json")),
                is_event: false,
            },)*
            $(Embedded {
                name: $event,
                text: include_str!(concat!("../../schemas/events/", $event, ".json")),
                is_event: true,
            },)*
        ]
    };
}

/// Every schema file.
pub const ALL: &[Embedded] = schemas! {
    own:
        "accepted-callback"
        "accepted-envelopes"
        "accepted-signal"
        "agent"
        "approval"
        "approval-link"
        "callback-request"
        "cancel-request"
        "common"
        "control-request"
        "dead-letter"
        "decision-request"
        "diagnosis"
        "discard-request"
        "envelope"
        "key"
        "key-request"
        "limits-request"
        "link-request"
        "log-entry"
        "message"
        "plan"
        "planner-answer"
        "planner-request"
        "problem"
        "redeliver-request"
        "resolve-request"
        "run"
        "run-request"
        "run-summary"
        "secret-request"
        "signal-request"
        "stored-agent"
        "stored-tool"
        "tenant-request"
        "tool"
    events:
        "approval.decided"
        "approval.expired"
        "approval.requested"
        "callback.received"
        "child.ended"
        "child.requested"
        "child.started"
        "dead_letter.opened"
        "dead_letter.settled"
        "event.emitted"
        "limit.raised"
        "limit.reached"
        "plan.claimed"
        "plan.completed"
        "plan.failed"
        "plan.lease_expired"
        "plan.lease_extended"
        "plan.requested"
        "plan.retry_scheduled"
        "run.blocked"
        "run.cancel_requested"
        "run.cancelled"
        "run.completed"
        "run.created"
        "run.failed"
        "run.paused"
        "run.resumed"
        "run.retried"
        "run.started"
        "run.waiting"
        "signal.consumed"
        "signal.received"
        "step.cancelled"
        "step.failed"
        "step.skipped"
        "tool.claimed"
        "tool.completed"
        "tool.failed"
        "tool.lease_expired"
        "tool.lease_extended"
        "tool.outcome_unknown"
        "tool.requested"
        "tool.retry_scheduled"
        "wait.ended"
        "wait.started"
};
