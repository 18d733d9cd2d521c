//! A person is asked, and what comes of it.

use crate::json::{Json, Value};
use crate::plan::{OnReject, OnTimeout};
use crate::run::approval::{Approval, GuardedCall, Verdict};
use crate::run::event::{Decision, Event};
use crate::run::log::Corrupt;
use crate::run::state::State;
use crate::run::step::Phase;
use crate::words::ApprovalId;

use super::Entry;

impl State {
    pub(super) fn apply_approval(&mut self, entry: &Entry, event: &Event) -> Result<(), Corrupt> {
        match event {
            Event::ApprovalRequested {
                approval_id,
                prompt,
                schema,
                until,
                tool,
                arguments_digest,
            } => {
                let step_index = entry.step_index()?;
                let step = self.step_mut(entry)?;
                let call = match (tool, arguments_digest, &step.request) {
                    (Some(tool), Some(digest), Some(request)) => Some(GuardedCall {
                        tool: tool.clone(),
                        arguments: request.arguments.clone(),
                        arguments_digest: digest.clone(),
                    }),
                    _ => None,
                };
                step.phase = Phase::AwaitingApproval {
                    approval_id: approval_id.clone(),
                    until: *until,
                };
                self.approvals.push(Approval {
                    approval_id: approval_id.clone(),
                    step_index,
                    prompt: prompt.clone(),
                    schema: schema.clone(),
                    until: *until,
                    requested_at: entry.at,
                    call,
                    verdict: None,
                    changed_seq: entry.seq,
                });
            }
            Event::ApprovalDecided {
                approval_id,
                decision,
                data,
                comment,
                decided_by,
                request,
                ..
            } => {
                self.remember(entry, request.as_ref());
                let verdict = Verdict::Decided {
                    decision: *decision,
                    data: data.clone(),
                    comment: comment.clone(),
                    decided_by: decided_by.clone(),
                };
                let call = self.close_approval(entry, approval_id, verdict)?;
                let on_reject = self.planned(entry.step_index()?).map(|p| p.on_reject);
                let at = entry.at;
                let step = self.step_mut(entry)?;
                match (call, decision) {
                    (Some(call), Decision::Approved) => {
                        step.approved = Some(call);
                        step.phase = Phase::Ready { since: at };
                    }
                    (None, Decision::Approved) => {
                        let by = Value::from(decided_by.as_str());
                        let result = approval_result("approved", data, by, comment.as_deref());
                        step.finish(Phase::Completed, result);
                    }
                    (None, Decision::Rejected) if on_reject == Some(OnReject::Continue) => {
                        let by = Value::from(decided_by.as_str());
                        let result = approval_result("rejected", data, by, comment.as_deref());
                        step.finish(Phase::Completed, result);
                    }
                    // The step fails by an entry of its own.
                    (_, Decision::Rejected) => {}
                }
            }
            Event::ApprovalExpired { approval_id } => {
                self.close_approval(entry, approval_id, Verdict::Expired)?;
                let planned = self.planned(entry.step_index()?);
                if planned.is_some_and(|planned| planned.on_timeout == OnTimeout::Continue) {
                    let result = approval_result("expired", &Json::null(), Value::Null, None);
                    self.step_mut(entry)?.finish(Phase::Completed, result);
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn close_approval(
        &mut self,
        entry: &Entry,
        id: &ApprovalId,
        verdict: Verdict,
    ) -> Result<Option<GuardedCall>, Corrupt> {
        let approval = self
            .approvals
            .iter_mut()
            .find(|approval| &approval.approval_id == id && approval.verdict.is_none())
            .ok_or_else(|| entry.corrupt("an approval is settled that is not pending"))?;
        approval.verdict = Some((entry.at, verdict));
        approval.changed_seq = entry.seq;
        Ok(approval.call.clone())
    }
}

/// The result of an approval step.
fn approval_result(decision: &str, data: &Json, by: Value, comment: Option<&str>) -> Json {
    let members = [
        ("decision".to_owned(), decision.into()),
        ("data".to_owned(), Value::clone(data)),
        ("decided_by".to_owned(), by),
        ("comment".to_owned(), comment.into()),
    ];
    Json::new(Value::Object(members.into_iter().collect()))
}
