//! An approval: what a person is asked, and what became of it.

use crate::json::Json;
use crate::words::{ApprovalId, Timestamp};

use super::event::Decision;

#[derive(Clone, Debug, PartialEq)]
pub struct Approval {
    pub approval_id: ApprovalId,
    pub step_index: u32,
    pub prompt: String,
    /// For the data that the decision carries.
    pub schema: Option<Json>,
    pub until: Option<Timestamp>,
    pub requested_at: Timestamp,
    /// The call that it gives leave to, if it is for one.
    pub call: Option<GuardedCall>,
    pub verdict: Option<(Timestamp, Verdict)>,
    /// The entry that changed it last.
    pub changed_seq: u64,
}

/// A tool call as it is shown to whoever approves it. The digest is what the approval is good for.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardedCall {
    pub tool: String,
    pub arguments: Json,
    /// SHA-256 of the canonical JSON of `arguments`, 64 hex digits.
    pub arguments_digest: String,
}

/// The first of these that is recorded stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Decided {
        decision: Decision,
        data: Json,
        comment: Option<String>,
        decided_by: String,
    },
    /// Nobody decided in time.
    Expired,
    /// The run ended, or was called off.
    Cancelled,
}

impl Approval {
    pub fn status(&self) -> &'static str {
        match &self.verdict {
            None => "pending",
            Some((_, Verdict::Decided { decision, .. })) => decision.as_str(),
            Some((_, Verdict::Expired)) => "expired",
            Some((_, Verdict::Cancelled)) => "cancelled",
        }
    }
}
