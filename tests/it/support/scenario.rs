//! What clients do in the simulated world.

use std::collections::BTreeMap;

use dormouse::flow::front::{self, Start};
use dormouse::flow::sweep;
use dormouse::json::{Json, Value};
use dormouse::ports::World;
use dormouse::run::event::PinnedTool;
use serde_json::json;

use super::invariants;
use super::people;
use super::rng::Rng;
use super::world::{Planned, Sim, Weather};

const HOUR_MS: i64 = 3_600_000;
pub const START_MS: i64 = 1_800_000_000_000;

/// A world in which `plans` are about to be started.
pub fn begin(seed: u64, plans: Vec<Value>, weather: Weather, planned: Option<Planned>) -> Sim {
    let sim = Sim::new(seed, weather, planned);
    sim.0.borrow_mut().tools = tools();
    sim.0.borrow_mut().agents = agents();
    for plan in plans {
        let world = sim.clone();
        sim.spawn(async move {
            let mut body = json!({ "input": { "order": 9007199254740993u64, "text": "é" } });
            match plan.get("agent") {
                Some(agent) => body["agent"] = agent.clone(),
                None => body["plan"] = plan,
            }
            let tenant_id = people::tenant();
            let start = Start {
                tenant_id,
                body,
                request: None,
                traceparent: None,
                origin: Some("https://dormouse.example".to_owned()),
            };
            let started = front::start_run(&world, start).await;
            let line = match started {
                Ok(started) => {
                    people::attend(&world, &started.run_id);
                    format!("started {}", started.run_id)
                }
                Err(refused) => format!("not started: {refused:?}"),
            };
            world.log(&line);
        });
    }
    sim
}

/// Prints a story that is played alone, at its end or where it breaks off.
struct Told<'a>(&'a Sim);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::env::var("SIM_SEED").is_ok()
            && let Ok(inner) = self.0.0.try_borrow()
        {
            inner.print();
        }
    }
}

/// Starts `plans` in `weather`, lets it pass, and checks everything.
pub fn play(seed: u64, plans: Vec<Value>, weather: Weather, planned: Option<Planned>) -> Sim {
    let sim = begin(seed, plans, weather, planned);
    let told = Told(&sim);
    sim.run_until(START_MS + HOUR_MS);
    sim.0.borrow_mut().weather = Weather { ..Weather::CALM };
    // The longest wait that a plan or a policy asks for is far below this.
    sim.run_until(START_MS + 48 * HOUR_MS);
    // A planned fault may hit the first who tries.
    for day in [3, 5] {
        let world = sim.clone();
        sim.spawn(async move { people::settle_everything(&world).await });
        sim.run_until(START_MS + day * 24 * HOUR_MS);
    }
    let world = sim.clone();
    sim.spawn(async move {
        let tenant_id = people::tenant();
        // The sweeper comes each minute; one planned fault may hit its first coming.
        for _ in 0..2 {
            if sweep::sweep(&world, &tenant_id, std::slice::from_ref(&tenant_id))
                .await
                .is_err()
            {
                world.sleep(60_000).await;
            }
        }
    });
    sim.run_until(START_MS + 121 * HOUR_MS);
    let inner = sim.0.borrow();
    invariants::no_effect_twice(&inner);
    invariants::no_run_is_lost(&inner);
    invariants::nothing_was_called_without_leave(&inner);
    invariants::parents_know_their_children(&inner);
    invariants::signals_are_taken_once(&inner);
    invariants::dead_letters_are_true(&inner);
    invariants::index_tells_the_truth(&inner);
    invariants::answers_are_recorded_once(&inner);
    invariants::tools_are_called_as_the_model_meant(&inner);
    for object in inner.objects.values() {
        invariants::log_is_gapless_and_chained(object);
    }
    drop(inner);
    drop(told);
    sim
}

/// Three steps one after another.
pub fn straight(tool: &str) -> Value {
    json!({ "steps": [
        { "id": "a", "tool": tool, "arguments": { "n": "{{ input.order }}" } },
        { "id": "b", "tool": tool, "arguments": { "from": "{{ steps.a.result }}" } },
        { "id": "c", "tool": tool, "arguments": { "text": "{{ input.text }}!" } },
    ]})
}

/// A run of an agent of the simulated tenant, in the place of a plan.
pub fn of_agent(name: &str) -> Value {
    json!({ "agent": name })
}

/// A plan, or a run that a model decides on.
pub fn random_story(rng: &mut Rng) -> Value {
    if rng.percent(80) {
        return random_plan(rng);
    }
    random_thinker(rng)
}

/// A run that a model decides on.
pub fn random_thinker(rng: &mut Rng) -> Value {
    of_agent(THINKERS[rng.below(THINKERS.len() as u64) as usize])
}

/// Agents with models that answer at random, or are no good.
const THINKERS: [&str; 10] = [
    "thinker-chat",
    "thinker-responses",
    "thinker-messages",
    "thinker-output",
    "thinker-short",
    "thinker-frugal",
    "thinker-many",
    "thinker-bare",
    "loop",
    "down",
];

/// An agent with models that are in `mind`, in the form of each provider.
fn thinker(mind: &str, providers: &[&str], more: Value) -> Value {
    let models = providers.iter().map(|provider| {
        json!({ "provider": provider, "name": "m", "base_url": format!("https://models.example/{mind}"),
                "api_key": "{{ secrets.KEY }}", "timeout": "PT20S" })
    });
    let models: Vec<Value> = models.collect();
    let names = [
        "steady",
        "flaky",
        "once",
        "once-verified",
        "typed",
        "guarded",
        "later",
        "reject",
        "garbage",
    ];
    let mut definition = json!({
        "tools": names,
        "planner": {
            "kind": "model", "models": models,
            "engine_tools": ["sleep", "wait_for", "ask_person", "start_run", "emit"],
            "agents": ["kid", "failing", "waiting", "missing", "thinker-deep"],
            "repair": { "attempts": 1 },
            "retry": { "max_attempts": 6, "base": "PT0.1S", "max_wait": "PT5S" },
        },
    });
    for (member, value) in more.as_object().unwrap() {
        match (definition.get_mut(member), value) {
            (Some(Value::Object(known)), Value::Object(given)) => known.extend(given.clone()),
            _ => definition[member] = value.clone(),
        }
    }
    definition
}

fn thinkers() -> BTreeMap<String, Json> {
    let output = json!({ "type": "object", "required": ["ok"] });
    let (chat, responses, messages) = ("openai", "openai_responses", "anthropic");
    let of = |name: &str, mind: &str, providers: &[&str], more: Value| {
        (name.to_owned(), Json::new(thinker(mind, providers, more)))
    };
    BTreeMap::from([
        of("thinker-chat", "random", &[chat], json!({})),
        of("thinker-responses", "random", &[responses], json!({})),
        of("thinker-messages", "random", &[messages], json!({})),
        of(
            "thinker-output",
            "random",
            &[messages, chat],
            json!({ "planner": { "output_schema": output } }),
        ),
        of(
            "thinker-short",
            "random",
            &[responses, messages],
            json!({ "limits": { "max_steps": 4, "max_rounds": 3, "max_repeats": 2 } }),
        ),
        of(
            "thinker-frugal",
            "random",
            &[chat, responses],
            json!({ "limits": { "max_tokens": 600, "max_parallel": 1 } }),
        ),
        of(
            "thinker-many",
            "random",
            &[chat, responses, messages],
            json!({ "limits": { "max_parallel": 2 }, "planner": { "repair": { "attempts": 0 }, "output_schema": output } }),
        ),
        of(
            "thinker-bare",
            "random",
            &[messages],
            json!({ "tools": [], "planner": { "engine_tools": [], "output_schema": output } }),
        ),
        of(
            "thinker-deep",
            "random",
            &[messages],
            json!({ "limits": { "max_depth": 2, "max_rounds": 4 } }),
        ),
        of(
            "loop",
            "loop",
            &[chat],
            json!({ "limits": { "max_repeats": 2 } }),
        ),
        of(
            "down",
            "down",
            &[responses],
            json!({ "planner": { "retry": { "max_attempts": 2, "base": "PT1S" } } }),
        ),
        of("two", "two", &[chat], json!({})),
        of("mend", "mend", &[messages], json!({})),
        of("broken", "broken", &[responses], json!({})),
        of(
            "limit",
            "limit",
            &[responses],
            json!({ "limits": { "max_rounds": 1 } }),
        ),
        of("approve", "approve", &[messages], json!({})),
        of("busy", "busy", &[chat, messages], json!({})),
        of("start", "start", &[responses], json!({})),
    ])
}

/// A plan of a few steps of every kind, wired at random.
pub fn random_plan(rng: &mut Rng) -> Value {
    let count = 1 + rng.below(6);
    let steps: Vec<Value> = (0..count).map(|index| random_step(rng, index)).collect();
    json!({ "steps": steps })
}

fn random_step(rng: &mut Rng, index: u64) -> Value {
    let mut step = match rng.below(20) {
        0 => json!({ "sleep": format!("PT{}S", rng.below(90)) }),
        1 => json!({ "emit": { "type": "order.placed", "data": { "n": "{{ input.order }}" } } }),
        2 => json!({ "tool": "once", "arguments": { "n": index } }),
        3 => json!({ "tool": "once-verified", "arguments": { "n": index } }),
        4 => json!({ "tool": "reject", "arguments": {}, "on_failure": "continue" }),
        5 => {
            json!({ "tool": "typed", "arguments": { "n": if rng.percent(80) { json!(1) } else { json!("x") } } })
        }
        6 => {
            json!({ "tool": "flaky", "arguments": { "n": index }, "when": "{{ input.text == 'é' }}" })
        }
        7 => {
            json!({ "tool": "steady", "arguments": { "n": index }, "when": "{{ input.text == 'x' }}" })
        }
        8 if rng.percent(15) => json!({ "tool": trouble(rng), "arguments": {} }),
        9 => {
            json!({ "tool": "reject", "arguments": {}, "on_failure": if rng.percent(20) { "fail" } else { "continue" } })
        }
        10 => {
            json!({ "wait_for": signal(rng), "timeout": format!("PT{}S", rng.below(90)), "on_timeout": "continue" })
        }
        11 if rng.percent(50) => json!({ "wait_for": signal(rng) }),
        12 => json!({ "wait_for": ["paid", "refused"], "timeout": "PT1M",
                      "on_timeout": if rng.percent(70) { "continue" } else { "fail" } }),
        13 => {
            json!({ "approval": { "prompt": "{{ input.text }}?" }, "timeout": format!("PT{}S", rng.below(120)),
                          "on_timeout": "continue", "on_reject": if rng.percent(80) { "continue" } else { "fail" } })
        }
        14 => json!({ "approval": { "prompt": "well?" }, "on_reject": "continue" }),
        15 => {
            json!({ "tool": "guarded", "arguments": { "n": index },
                          "on_reject": if rng.percent(80) { "continue" } else { "fail" } })
        }
        16 => json!({ "tool": "later", "arguments": { "n": index }, "on_failure": "continue" }),
        17 => {
            json!({ "run": { "agent": "kid", "input": { "order": "{{ input.order }}", "text": "é" } } })
        }
        18 => {
            json!({ "run": { "agent": kid(rng), "input": { "order": 1, "text": "x" } },
                          "on_failure": if rng.percent(70) { "continue" } else { "fail" } })
        }
        19 if rng.percent(20) => {
            json!({ "run": { "agent": "thinker-short", "input": "go" }, "on_failure": "continue" })
        }
        _ => json!({ "tool": "flaky", "arguments": { "n": index, "order": "{{ input.order }}" } }),
    };
    step["id"] = json!(format!("s{index}"));
    if rng.percent(50) {
        let needs: Vec<String> = (0..index)
            .filter(|_| rng.percent(40))
            .map(|need| format!("s{need}"))
            .collect();
        step["depends_on"] = json!(needs);
    }
    step
}

fn signal(rng: &mut Rng) -> &'static str {
    people::SIGNALS[rng.below(3) as usize]
}

fn kid(rng: &mut Rng) -> &'static str {
    ["kid", "parent", "failing", "waiting", "missing"][rng.below(5) as usize]
}

/// The agents of the simulated tenant, which steps start as child runs.
fn agents() -> BTreeMap<String, Json> {
    let agent = |name: &str, steps: Value| {
        let definition = json!({ "planner": { "kind": "plan", "steps": steps } });
        (name.to_owned(), Json::new(definition))
    };
    let mut agents = thinkers();
    agents.extend([
        agent(
            "kid",
            json!([{ "id": "a", "tool": "flaky", "arguments": { "n": "{{ input.order }}" } }]),
        ),
        agent(
            "parent",
            json!([
                { "id": "a", "run": { "agent": "kid", "input": { "order": 2 } }, "depends_on": [] },
                { "id": "b", "run": { "agent": "waiting" }, "depends_on": [] },
            ]),
        ),
        agent(
            "failing",
            json!([{ "id": "a", "tool": "reject", "on_failure": "fail" }]),
        ),
        agent(
            "waiting",
            json!([{ "id": "a", "wait_for": "go", "timeout": "PT40S", "on_timeout": "continue" }]),
        ),
    ]);
    agents
}

fn trouble(rng: &mut Rng) -> &'static str {
    ["reject", "garbage", "missing"][rng.below(3) as usize]
}

/// The tools of the simulated tenant. Their names say how they behave.
fn tools() -> BTreeMap<String, PinnedTool> {
    let tool = |name: &str, more: Value| {
        let mut definition = json!({
            "description": name,
            "parameters": { "type": "object" },
            "http": { "method": "POST", "url": format!("https://tools.example/{name}"),
                      "headers": { "Authorization": "Bearer {{ secrets.KEY }}" } },
            "retry": { "max_attempts": 8, "base": "PT0.1S", "max_wait": "PT5S" }
        });
        for (member, value) in more.as_object().unwrap() {
            definition[member] = value.clone();
        }
        let pinned = PinnedTool {
            version: 1,
            definition: Json::new(definition),
        };
        (name.to_owned(), pinned)
    };
    let verify = json!({ "http": { "method": "GET", "url": "https://tools.example/verify-once" } });
    let typed = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    BTreeMap::from([
        tool("steady", json!({})),
        tool("flaky", json!({})),
        tool("read", json!({ "effect": "read" })),
        tool("once", json!({ "effect": "at_most_once" })),
        tool(
            "once-verified",
            json!({ "effect": "at_most_once", "verify": verify }),
        ),
        tool("typed", json!({ "parameters": typed })),
        tool("guarded", json!({ "requires_approval": true })),
        tool("later", json!({ "callback_timeout": "PT30S" })),
        tool("reject", json!({})),
        tool("garbage", json!({})),
    ])
}
