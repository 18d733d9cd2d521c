//! What a run may use up.

use crate::fields::{Fields, Flaws};
use crate::plan::Plan;
use crate::words::DurationMs;
use crate::words::limits::{MAX_PARALLEL_DEFAULT, PLAN_STEPS_MAX};

/// Steps of a run whose plan is not fixed: each stays in its log for good.
const MAX_STEPS_MAX: u64 = 10_000;
const MAX_STEPS_DEFAULT: u32 = 100;
const MAX_DEPTH_MAX: u64 = 64;
const MAX_DEPTH_DEFAULT: u32 = 4;
const MAX_REPEATS_DEFAULT: u32 = 5;
/// Larger ones could not be counted in JSON by every reader.
const MAX_TOKENS_MAX: u64 = (1 << 53) - 1;

/// The members of `limits`.
pub const LIMIT_NAMES: [&str; 7] = [
    "max_steps",
    "max_rounds",
    "max_repeats",
    "max_parallel",
    "max_depth",
    "max_tokens",
    "deadline",
];

/// The bounds of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps in all.
    pub max_steps: u32,
    /// Rounds of its planner; none beside `max_steps` unless one is given.
    pub max_rounds: Option<u32>,
    /// Rounds in a row that bring nothing new.
    pub max_repeats: u32,
    /// Steps in flight at once.
    pub max_parallel: u32,
    /// Child runs below child runs; 0 means that it starts none.
    pub max_depth: u32,
    /// Of all its model calls together, its child runs' included.
    pub max_tokens: Option<u64>,
    /// From the run's start to its end.
    pub deadline_ms: Option<i64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_steps: MAX_STEPS_DEFAULT,
            max_rounds: None,
            max_repeats: MAX_REPEATS_DEFAULT,
            max_parallel: u32::try_from(MAX_PARALLEL_DEFAULT).unwrap_or(u32::MAX),
            max_depth: MAX_DEPTH_DEFAULT,
            max_tokens: None,
            deadline_ms: None,
        }
    }
}

impl Limits {
    /// A fixed plan bounds its own steps, so without a limit of its own any plan may run.
    fn for_plan() -> Self {
        Self {
            max_steps: u32::try_from(PLAN_STEPS_MAX).unwrap_or(u32::MAX),
            ..Self::default()
        }
    }

    /// Reads the member `limits` of a definition.
    pub(super) fn read(fields: &Fields<'_>, plan: Option<&Plan>, flaws: &mut Flaws) -> Self {
        let mut limits = match plan {
            Some(_) => Self::for_plan(),
            None => Self::default(),
        };
        let Some(given) = fields.object("limits", flaws) else {
            return limits;
        };
        limits.read_over(&given, flaws);
        let steps = plan.map_or(0, |plan| plan.steps.len());
        if usize::try_from(limits.max_steps).is_ok_and(|max| steps > max) {
            flaws.add(
                given.at("max_steps"),
                format!("the plan has {steps} steps, more than this allows"),
            );
        }
        limits
    }

    /// Takes over what is given, and leaves the rest as it is.
    pub fn read_over(&mut self, given: &Fields<'_>, flaws: &mut Flaws) {
        given.refuse_unknown(&LIMIT_NAMES, flaws);
        let count = |name: &str, min: u64, max: u64, flaws: &mut Flaws| {
            let number = given.integer(name, min..=max, flaws);
            number.and_then(|number| u32::try_from(number).ok())
        };
        let parallel_max = u64::try_from(PLAN_STEPS_MAX).unwrap_or(u64::MAX);
        let set = |place: &mut u32, number: Option<u32>| *place = number.unwrap_or(*place);
        set(
            &mut self.max_steps,
            count("max_steps", 1, MAX_STEPS_MAX, flaws),
        );
        self.max_rounds = count("max_rounds", 1, MAX_STEPS_MAX, flaws).or(self.max_rounds);
        set(
            &mut self.max_repeats,
            count("max_repeats", 1, MAX_STEPS_MAX, flaws),
        );
        set(
            &mut self.max_parallel,
            count("max_parallel", 1, parallel_max, flaws),
        );
        set(
            &mut self.max_depth,
            count("max_depth", 0, MAX_DEPTH_MAX, flaws),
        );
        let tokens = given.integer("max_tokens", 1..=MAX_TOKENS_MAX, flaws);
        self.max_tokens = tokens.or(self.max_tokens);
        let deadline_ms = given.duration_ms("deadline", DurationMs::MAX, flaws);
        self.deadline_ms = deadline_ms.or(self.deadline_ms);
    }
}
