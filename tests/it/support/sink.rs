//! The tools of the simulated world, and the memory of everything they were asked to do.

use std::collections::BTreeMap;

use dormouse::tool::{Answer, OutboundRequest, Reply, Transport, TransportKind};

use super::rng::Rng;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub run_id: String,
    pub step_index: String,
    pub key: String,
    pub tool: String,
    pub body: Option<String>,
    /// Whether this request had the effect, as the first of its key.
    pub first: bool,
}

#[derive(Default)]
pub struct Sink {
    pub seen: Vec<Seen>,
    acted: BTreeMap<String, u32>,
}

/// What happens to one call. The tool's name says which of these its calls may meet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Done,
    /// Did not act.
    Refused,
    TooMany,
    /// Did not act, says that it failed.
    Failed,
    /// Acted, and the answer was lost.
    Lost,
    /// Acted, and says that it failed.
    Lied,
    Rejected,
    Garbage,
}

impl Sink {
    /// `trouble`: whether tools misbehave at all.
    pub fn call(&mut self, request: &OutboundRequest, rng: &mut Rng, trouble: bool) -> Answer {
        let header = |name: &str| {
            let found = request
                .headers
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let tool = request
            .loggable_url
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let key = header("idempotency-key");
        if tool.starts_with("verify-") {
            return match self.acted.get(&key) {
                Some(_) => reply(200, r#"{"verified":true}"#, None),
                None => reply(404, "{}", None),
            };
        }
        let tool_answers_later = tool == "later" && !header("dormouse-callback").is_empty();
        let fate = fate(&tool, rng, trouble);
        let acts = matches!(fate, Fate::Done | Fate::Lost | Fate::Lied | Fate::Garbage);
        let times = self.acted.get(&key).copied().unwrap_or(0);
        self.seen.push(Seen {
            run_id: header("dormouse-run-id"),
            step_index: header("dormouse-step-index"),
            key: key.clone(),
            tool,
            body: request.body.clone(),
            first: acts && times == 0,
        });
        if acts {
            self.acted.insert(key, times + 1);
        }
        match fate {
            Fate::Done if tool_answers_later => reply(202, "", None),
            Fate::Done => reply(200, r#"{"ok":true,"id":9007199254740993}"#, None),
            Fate::Refused => cut(TransportKind::Refused),
            Fate::TooMany => reply(429, "{}", Some("2")),
            Fate::Failed | Fate::Lied => reply(503, "busy", None),
            Fate::Lost => cut(TransportKind::Closed),
            Fate::Rejected => reply(422, r#"{"detail":"no"}"#, None),
            Fate::Garbage => reply(200, "<html>", None),
        }
    }

    /// How often the effect of a key was really had.
    pub fn acted(&self, key: &str) -> u32 {
        self.acted.get(key).copied().unwrap_or(0)
    }
}

fn fate(tool: &str, rng: &mut Rng, trouble: bool) -> Fate {
    match tool {
        "reject" => Fate::Rejected,
        "garbage" => Fate::Garbage,
        _ if !trouble => Fate::Done,
        "steady" => Fate::Done,
        _ => match rng.below(20) {
            0 => Fate::Refused,
            1 => Fate::TooMany,
            2 => Fate::Failed,
            3 => Fate::Lost,
            4 => Fate::Lied,
            _ => Fate::Done,
        },
    }
}

fn reply(status: u16, body: &str, retry_after: Option<&str>) -> Answer {
    Answer::Reply(Reply {
        hints: Vec::new(),
        status,
        retry_after: retry_after.map(str::to_owned),
        content_type: Some("application/json".into()),
        callback_honoured: status == 202,
        body: body.as_bytes().to_vec(),
    })
}

fn cut(kind: TransportKind) -> Answer {
    Answer::Transport(Transport {
        kind,
        message: format!("{kind:?}"),
    })
}
