//! A run's log as it grows: Server-Sent Events (WHATWG HTML, section 9.2).
//!
//! The run's object does not hold the stream. It is asked for what is new, often while the run moves
//! and seldom while it rests, so that a run that only waits can leave memory though somebody watches.
//! The client's pace is the stream's: nothing is read before it is asked for, and a page at most.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::ports::{Fault, World};
use crate::words::limits::LIST_LIMIT_MAX;
use crate::words::{RunId, TenantId, Timestamp};

use super::log::{self, LogPage, Wanted};
use super::problem::{Problem, UNAVAILABLE};
use super::{Call, Response};

/// How long after a stream ended the client comes back, which it does by itself.
const RETRY_MS: u32 = 1_000;
/// How old a stream grows: nothing is held for ever, and a key that was revoked sees no more.
const AGE_MS_MAX: i64 = 300_000;
/// How often a stream asks the object: a request may make 1,000 calls.
/// https://developers.cloudflare.com/workers/platform/limits/#subrequests
const LOOKS_MAX: u32 = 900;
/// Looks in a row that may fail: an object that moves, or is reset, is there again soon after.
const FAILURES_MAX: u32 = 3;
/// The pause after something came; each look that finds nothing doubles it.
const PAUSE_MS_MIN: i64 = 50;
/// The longest pause while the run moves.
const PAUSE_MS_MAX: i64 = 1_000;
/// The longest pause while it rests. An object leaves memory after 10 s in which nobody asks, and
/// proxies must see a sign of life each 15 s.
const IDLE_PAUSE_MS_MAX: i64 = 14_000;
/// Told when a look found nothing: it keeps the connection, and shows whether the client is there.
const COMMENT: &str = ":\n\n";

/// What is to come of a stream.
#[derive(Clone, Debug)]
pub struct EventStream {
    tenant_id: TenantId,
    run_id: RunId,
    /// The entry that was given last.
    after: u64,
    pause_ms: i64,
    ends_at: Timestamp,
    looks_left: u32,
    failures_left: u32,
    /// The log is closed, and its last entry was given.
    is_over: bool,
}

/// The stream cannot go on, for a reason that was logged. The client comes back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Answers with what there is, and with a stream of what is to come.
pub(super) async fn begin<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    run_id: RunId,
    wanted: Wanted,
) -> Result<Response, Problem> {
    let not_here = |parameter| Err(Problem::query(parameter, "is not for an event stream"));
    if wanted.before.is_some() {
        return not_here("order");
    }
    if call.query.get("limit").is_some() {
        return not_here("limit");
    }
    let mut stream = EventStream {
        tenant_id: tenant_id.clone(),
        run_id,
        after: wanted.after,
        pause_ms: PAUSE_MS_MIN,
        ends_at: call.world.now().plus_ms(AGE_MS_MAX),
        looks_left: LOOKS_MAX,
        failures_left: FAILURES_MAX,
        is_over: false,
    };
    let page = stream.look(call.world).await?;
    if page.ended && page.entries.is_empty() {
        // Any other answer would have an EventSource come back for ever.
        return Ok(Response::empty(204).header("cache-control", "no-store"));
    }
    let frames = stream.take(&page)?;
    let begun = format!("retry: {RETRY_MS}\n\n{frames}");
    let mut response =
        Response::new(200, "text/event-stream; charset=utf-8", begun).header("vary", "accept");
    response.stream = (!stream.is_over).then_some(stream);
    Ok(response)
}

impl EventStream {
    /// What follows, as soon as there is something to say. None: the stream ends here.
    pub async fn next<W: World>(&mut self, world: &W) -> Result<Option<String>, Broken> {
        let left_ms = self.ends_at.ms_since(world.now());
        if self.is_over || self.looks_left == 0 || left_ms <= 0 {
            return Ok(None);
        }
        if self.pause_ms > 0 {
            world.sleep(self.pause_ms.min(left_ms)).await;
        }
        let looked = self.look(world).await;
        let frames = match looked.and_then(|page| self.take(&page).map_err(Problem::from)) {
            Ok(frames) => {
                self.failures_left = FAILURES_MAX;
                frames
            }
            Err(problem) if problem.kind == UNAVAILABLE && self.failures_left > 0 => {
                self.failures_left -= 1;
                self.wait_longer(PAUSE_MS_MAX);
                String::new()
            }
            Err(problem) => {
                let why = problem.cause().unwrap_or(problem.kind.title);
                world.log(&format!("an event stream of {} broke: {why}", self.run_id));
                return Err(Broken);
            }
        };
        Ok(Some(if frames.is_empty() {
            COMMENT.to_owned()
        } else {
            frames
        }))
    }

    async fn look<W: World>(&mut self, world: &W) -> Result<LogPage, Problem> {
        self.looks_left = self.looks_left.saturating_sub(1);
        let wanted = Wanted {
            after: self.after,
            before: None,
        };
        let (tenant_id, run_id) = (&self.tenant_id, &self.run_id);
        log::read(world, tenant_id, run_id, wanted, LIST_LIMIT_MAX).await
    }

    /// The frames of a page, once it is settled how to go on after it.
    fn take(&mut self, page: &LogPage) -> Result<String, Fault> {
        let mut frames = String::new();
        for entry in &page.entries {
            self.after = self.frame(entry, &mut frames)?;
        }
        self.is_over = page.ended && page.next.is_none();
        if page.next.is_some() {
            self.pause_ms = 0;
        } else if !page.entries.is_empty() {
            self.pause_ms = PAUSE_MS_MIN;
        } else if matches!(page.status.as_str(), "waiting" | "blocked" | "paused") {
            self.wait_longer(IDLE_PAUSE_MS_MAX);
        } else {
            // A run that was called off is still to hear of its calls under way.
            self.wait_longer(PAUSE_MS_MAX);
        }
        Ok(frames)
    }

    fn wait_longer(&mut self, longest_ms: i64) {
        self.pause_ms = (self.pause_ms * 2).clamp(PAUSE_MS_MIN, longest_ms);
    }

    /// Writes the frame of an entry, and gives its number.
    fn frame(&self, entry: &RawValue, frames: &mut String) -> Result<u64, Fault> {
        #[derive(Deserialize)]
        struct Named {
            seq: u64,
            event_type: String,
        }
        let entry = entry.get();
        let Named { seq, event_type } = serde_json::from_str(entry)
            .map_err(|e| Fault::new("read an entry of", self.run_id.as_str(), e.to_string()))?;
        // An entry is compact JSON, so it holds no line break.
        for part in [
            "id: ",
            &seq.to_string(),
            "\nevent: ",
            &event_type,
            "\ndata: ",
            entry,
            "\n\n",
        ] {
            frames.push_str(part);
        }
        Ok(seq)
    }
}
