//! The append-only log: its entries, their hashes, and the rows they are stored in.
//!
//! A row holds all entries of one turn, because a stored row costs as much as the whole turn. Its
//! key is the sequence number of its first entry.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::envelope::{self, SCHEMA_VERSION};
use crate::json::{self, Value};
use crate::words::limits::ROW_BYTES_MAX;
use crate::words::{EventId, RunId, TenantId, Timestamp, TraceId, sha256_hex};

use super::event::{self, Event, EventError};
use super::upcast;

/// The `prev_hash` of a log's first entry.
pub const ZERO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The version of the stored form. An older one is brought up to it as it is read; a newer one is
/// not guessed at.
const ROW_VERSION: u32 = 2;

/// Whose log it is: stored once, in the first row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub run_id: RunId,
    pub tenant_id: TenantId,
    pub trace_id: TraceId,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    pub event: Event,
    /// SHA-256 over the entry's canonical envelope, which holds the hash before it.
    pub hash: String,
    /// Encoded size, for the bound on a run's log; known once it is in a row.
    #[serde(skip)]
    pub bytes: usize,
}

/// What one row of the log's table holds.
#[derive(Debug, Serialize, Deserialize)]
struct RowBody<E> {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<Identity>,
    /// The turn was too large for one row and goes on in the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    entries: E,
}

/// A row as it goes to and comes from storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence number of the row's first entry.
    pub seq: u64,
    pub body: String,
}

/// A log that cannot be: the run is frozen where it stands, and nothing of it is executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run's log cannot be read at entry {seq}: {message}")]
pub struct Corrupt {
    pub seq: u64,
    pub message: String,
}

impl Recorded {
    /// Makes the entry that follows `state`'s log.
    pub fn new(
        identity: &Identity,
        previous: (u64, &str),
        at: Timestamp,
        step: Option<u32>,
        event: Event,
    ) -> Result<Self, EventError> {
        let mut recorded = Self {
            at,
            step,
            event,
            hash: String::new(),
            bytes: 0,
        };
        let (seq, prev_hash) = previous;
        let envelope = recorded.unhashed_entry(identity, seq.saturating_add(1), prev_hash)?;
        recorded.hash = sha256_hex(json::canonical(&envelope).as_bytes());
        Ok(recorded)
    }

    /// The key of the entry's envelope.
    pub fn idempotency_key(&self, run_id: &RunId) -> String {
        let payload = self
            .event
            .parts()
            .map(|(_, payload)| payload)
            .unwrap_or_default();
        envelope::idempotency_key(run_id, self.step, &payload)
    }

    fn unhashed_entry(
        &self,
        identity: &Identity,
        seq: u64,
        prev_hash: &str,
    ) -> Result<Value, EventError> {
        let (event_type, payload) = self.event.parts()?;
        let place = Place {
            identity,
            seq,
            at: self.at,
            step: self.step,
        };
        Ok(place.unhashed_entry(event_type, payload, prev_hash))
    }
}

/// Where in which log an entry stands.
struct Place<'a> {
    identity: &'a Identity,
    seq: u64,
    at: Timestamp,
    step: Option<u32>,
}

impl Place<'_> {
    /// The entry's envelope, all of it but its own hash.
    fn unhashed_entry(&self, event_type: String, payload: Value, prev_hash: &str) -> Value {
        let Place {
            identity,
            seq,
            at,
            step,
        } = *self;
        let mut members = serde_json::Map::new();
        let mut put = |name: &str, value: Value| members.insert(name.to_owned(), value);
        put("schema_version", SCHEMA_VERSION.into());
        put("event_id", event_id(identity, seq, at).as_str().into());
        put("event_type", event_type.into());
        put("tenant_id", identity.tenant_id.as_str().into());
        put("trace_id", identity.trace_id.as_str().into());
        put("run_id", identity.run_id.as_str().into());
        put("step_index", step.map_or(Value::Null, Value::from));
        put(
            "idempotency_key",
            envelope::idempotency_key(&identity.run_id, step, &payload).into(),
        );
        put("timestamp", at.to_string().into());
        put("payload", payload);
        put("seq", seq.into());
        put("prev_hash", prev_hash.into());
        Value::Object(members)
    }
}

/// The id of an entry follows from its place, so writing it twice names it once.
pub fn event_id(identity: &Identity, seq: u64, at: Timestamp) -> EventId {
    EventId::derive(at, &format!("{}/{seq}", identity.run_id))
}

/// The rows that hold `entries`, the first of which is number `first_seq`: one, unless they are
/// larger than a cell may be.
pub fn rows(
    identity: &Identity,
    first_seq: u64,
    entries: &mut [Recorded],
) -> Result<Vec<Row>, EventError> {
    let mut rows: Vec<(u64, Vec<String>, usize)> = Vec::new();
    for (offset, recorded) in entries.iter_mut().enumerate() {
        let text = serde_json::to_string(recorded).map_err(|e| EventError(e.to_string()))?;
        recorded.bytes = text.len();
        let fits = rows
            .last()
            .is_some_and(|(_, _, bytes)| bytes + text.len() < ROW_BYTES_MAX / 2);
        match rows.last_mut() {
            Some((_, texts, bytes)) if fits => {
                *bytes += text.len();
                texts.push(text);
            }
            _ => rows.push((
                first_seq.saturating_add(offset as u64),
                vec![text.clone()],
                text.len(),
            )),
        }
    }
    let last = rows.len().saturating_sub(1);
    rows.into_iter()
        .enumerate()
        .map(|(number, (seq, texts, _))| {
            let raw =
                |text: String| RawValue::from_string(text).map_err(|e| EventError(e.to_string()));
            let body = RowBody {
                v: ROW_VERSION,
                run: (seq == 1).then(|| identity.clone()),
                more: number < last,
                entries: texts.into_iter().map(raw).collect::<Result<Vec<_>, _>>()?,
            };
            let body = serde_json::to_string(&body).map_err(|e| EventError(e.to_string()))?;
            Ok(Row { seq, body })
        })
        .collect()
}

/// A row read back.
pub struct ReadRow {
    pub seq: u64,
    pub identity: Option<Identity>,
    pub more: bool,
    pub entries: Vec<Recorded>,
}

pub fn read_row(row: &Row) -> Result<ReadRow, Corrupt> {
    let corrupt = |message: String| Corrupt {
        seq: row.seq,
        message,
    };
    let body = read_body(row)?;
    let mut entries = Vec::with_capacity(body.entries.len());
    for raw in body.entries {
        let text = raw.get();
        let read = |text: &str| serde_json::from_str::<Recorded>(text);
        let mut recorded = match upcast::to_present(body.v, text).map_err(corrupt)? {
            Some(present) => read(&present),
            None => read(text),
        }
        .map_err(|e| corrupt(e.to_string()))?;
        recorded.bytes = text.len();
        entries.push(recorded);
    }
    Ok(ReadRow {
        seq: row.seq,
        identity: body.run,
        more: body.more,
        entries,
    })
}

/// Whose log a first row begins, as far as it can be read.
pub fn identity(row: &Row) -> Option<Identity> {
    #[derive(Deserialize)]
    struct Whose {
        run: Option<Identity>,
    }
    serde_json::from_str::<Whose>(&row.body).ok()?.run
}

fn read_body(row: &Row) -> Result<RowBody<Vec<Box<RawValue>>>, Corrupt> {
    let corrupt = |message: String| Corrupt {
        seq: row.seq,
        message,
    };
    let body: RowBody<Vec<Box<RawValue>>> =
        serde_json::from_str(&row.body).map_err(|e| corrupt(e.to_string()))?;
    if !(1..=ROW_VERSION).contains(&body.v) {
        return Err(corrupt(format!(
            "stored form {} is not known to this release, which reads 1 to {ROW_VERSION}",
            body.v
        )));
    }
    Ok(body)
}

/// An entry as it was stored: what its hash was made of, whatever the release at hand would write.
#[derive(Deserialize)]
struct StoredEntry {
    at: Timestamp,
    #[serde(default)]
    step: Option<u32>,
    event: Box<RawValue>,
    hash: String,
}

/// Those entries of a row that are among `seqs`, as clients read them: envelopes with `seq`,
/// `prev_hash` and `hash`. `prev_hash` is that of the row's first entry, and becomes that of the next
/// row's; where it is not known, that entry is left out.
pub fn shown_entries(
    identity: &Identity,
    row: &Row,
    seqs: &RangeInclusive<u64>,
    prev_hash: &mut Option<String>,
) -> Result<Vec<Value>, Corrupt> {
    let corrupt = |message: String| Corrupt {
        seq: row.seq,
        message,
    };
    let mut shown = Vec::new();
    for (offset, raw) in read_body(row)?.entries.iter().enumerate() {
        let seq = row.seq.saturating_add(offset as u64);
        let stored: StoredEntry =
            serde_json::from_str(raw.get()).map_err(|e| corrupt(e.to_string()))?;
        if let Some(prev_hash) = prev_hash.take().filter(|_| seqs.contains(&seq)) {
            let (event_type, payload) =
                event::parts_of(stored.event.get()).map_err(|e| corrupt(e.to_string()))?;
            let place = Place {
                identity,
                seq,
                at: stored.at,
                step: stored.step,
            };
            let mut entry = place.unhashed_entry(event_type, payload, &prev_hash);
            if let Value::Object(members) = &mut entry {
                members.insert("hash".into(), Value::String(stored.hash.clone()));
            }
            shown.push(entry);
        }
        *prev_hash = Some(stored.hash);
    }
    Ok(shown)
}
