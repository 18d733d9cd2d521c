//! The types of a plan.

use serde_json::Value;

use super::graph;
use crate::expression::{Expression, Template};
use crate::words::Name;

/// A sound plan. A step's index is its place in `steps`.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// At least one, at most `limits::PLAN_STEPS_MAX`.
    pub steps: Vec<Step>,
    /// The run's output; None means the last step's result.
    pub output: Option<Template>,
}

/// One step. Every id it reads is among its ancestors.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Unique in the plan.
    pub id: String,
    /// What it does.
    pub action: Action,
    /// The indexes of the steps that must be over before this one starts, ascending.
    pub needs: Vec<usize>,
    /// Skips the step when false.
    pub when: Option<Expression>,
    /// How long a wait or an approval stays open; None means for ever.
    pub timeout_ms: Option<i64>,
    /// What the end of that time means.
    pub on_timeout: OnTimeout,
    /// What a failure of the step means.
    pub on_failure: OnFailure,
    /// What a rejected approval means.
    pub on_reject: OnReject,
}

/// What a step does. Templates are filled in when the step starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// One call of a tool, `name` or `name@version`.
    Tool { tool: String, arguments: Template },
    /// Waits so long.
    Sleep { duration_ms: i64 },
    /// Waits until a time: RFC 3339 once it is filled in, and checked here where it is literal.
    SleepUntil { at: Template },
    /// Waits for the first signal of one of these names.
    WaitFor {
        names: Vec<String>,
        /// Written as a list: the result then names the signal, even of a list of one.
        several: bool,
    },
    /// Asks a person.
    Approval {
        prompt: Template,
        /// For the data that the decision carries.
        schema: Option<Value>,
    },
    /// Starts a child run of an agent, `name` or `name@version`, and waits for its end.
    Run { agent: String, input: Template },
    /// Sends an event.
    Emit { r#type: String, data: Template },
}

/// What the end of a step's `timeout` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    #[default]
    Fail,
    Continue,
}

/// What a step's failure means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The run is held until a person settles it.
    #[default]
    DeadLetter,
    Fail,
    Continue,
}

/// What a rejected approval means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReject {
    #[default]
    Fail,
    Continue,
}

impl Plan {
    /// The index of the step with that id.
    #[must_use]
    pub fn index_of(&self, id: &str) -> Option<usize> {
        self.steps.iter().position(|step| step.id == id)
    }

    /// The steps that may start: not started, and all they need is done. In the plan's order.
    pub fn ready(
        &self,
        done: impl Fn(usize) -> bool,
        started: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        self.steps
            .iter()
            .enumerate()
            .filter(|(index, step)| !started(*index) && step.needs.iter().all(|need| done(*need)))
            .map(|(index, _)| index)
            .collect()
    }

    /// The steps that are over whenever `step` starts, ascending. None for an index out of range.
    #[must_use]
    pub fn ancestors(&self, step: usize) -> Vec<usize> {
        graph::ancestors(
            |index| self.steps.get(index).map(|step| step.needs.as_slice()),
            step,
        )
    }
}

impl Action {
    /// The word by which an answer calls this kind of step.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Action::Tool { .. } => "tool",
            Action::Sleep { .. } | Action::SleepUntil { .. } => "sleep",
            Action::WaitFor { .. } => "wait_for",
            Action::Approval { .. } => "approval",
            Action::Run { .. } => "run",
            Action::Emit { .. } => "emit",
        }
    }

    /// The tool, agent, signals or event type it names.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            Action::Tool { tool: name, .. }
            | Action::Run { agent: name, .. }
            | Action::Emit { r#type: name, .. } => Some(name.clone()),
            Action::WaitFor { names, .. } => Some(names.join(",")),
            Action::Sleep { .. } | Action::SleepUntil { .. } | Action::Approval { .. } => None,
        }
    }
}

/// A stored definition as it is named: the newest version, or one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionedName<'a> {
    pub name: &'a str,
    /// From 1; None means the newest.
    pub version: Option<u32>,
}

/// Reads `name` or `name@version`. None where it is neither.
#[must_use]
pub fn parse_versioned_name(text: &str) -> Option<VersionedName<'_>> {
    let (name, version) = match text.split_once('@') {
        None => (text, None),
        Some((name, version)) => {
            let number = version.parse::<u32>().ok().filter(|number| *number > 0)?;
            // One spelling for one version: no plus sign, no leading zeros.
            if number.to_string() != version {
                return None;
            }
            (name, Some(number))
        }
    };
    Name::parse(name).ok()?;
    Some(VersionedName { name, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_carry_one_version() {
        for (text, expected) in [
            ("a", Some(("a", None))),
            ("vendor.quote@2", Some(("vendor.quote", Some(2)))),
            ("a@0", None),
            ("a@02", None),
            ("a@+2", None),
            ("a@", None),
            ("a@4294967296", None),
            ("a@1@2", None),
            ("@1", None),
            ("A", None),
            ("", None),
        ] {
            let found = parse_versioned_name(text).map(|found| (found.name, found.version));
            assert_eq!(found, expected, "{text}");
        }
    }
}
