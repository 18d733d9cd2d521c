//! The envelope: the wire form of every event, and the rules that make one acceptable.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::json::{self, Json, Value, Violation};
use crate::words::{EventId, RunId, TenantId, Timestamp, TraceId, sha256_hex};

/// The `schema_version` that this release writes and reads.
pub const SCHEMA_VERSION: &str = "1";

/// An envelope that was accepted: complete, and its key is right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    pub schema_version: String,
    pub event_id: EventId,
    pub event_type: String,
    pub tenant_id: TenantId,
    pub trace_id: TraceId,
    pub run_id: RunId,
    pub step_index: Option<u32>,
    pub idempotency_key: String,
    pub timestamp: Timestamp,
    pub payload: Json,
}

/// What the sender of an envelope is known to be, and when it came.
pub struct Door<'a> {
    pub tenant_id: &'a TenantId,
    pub now: Timestamp,
    pub random: [u8; 26],
}

/// The key of an event: lower-case hex SHA-256 of the canonical `[run_id, step_index, payload]`.
pub fn idempotency_key(run_id: &RunId, step_index: Option<u32>, payload: &Value) -> String {
    let subject = json!([run_id.as_str(), step_index]);
    // The payload is spliced in as text, so that a large one is not cloned to be hashed.
    let mut text = json::canonical(&subject);
    text.truncate(text.len().saturating_sub(1));
    text.push(',');
    text.push_str(&json::canonical(payload));
    text.push(']');
    sha256_hex(text.as_bytes())
}

/// Takes an envelope from a client: `value` has passed the envelope's schema. What the client left
/// out is filled in; what it got wrong is refused, each with its pointer.
pub fn accept(value: &Value, door: &Door<'_>) -> Result<Envelope, Vec<Violation>> {
    let mut faults = Vec::new();
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let tenant = text("tenant_id").unwrap_or(door.tenant_id.as_str());
    if tenant != door.tenant_id.as_str() {
        faults.push(Violation::new(
            "/tenant_id",
            "is not the tenant of the key that sent it",
        ));
    }
    if text("schema_version").is_some_and(|version| version != SCHEMA_VERSION) {
        faults.push(Violation::new(
            "/schema_version",
            format!("expected \"{SCHEMA_VERSION}\""),
        ));
    }
    let run_id = required(text("run_id").map(RunId::parse), "/run_id", &mut faults);
    let [e0, e1, e2, e3, e4, e5, e6, e7, e8, e9, trace @ ..] = door.random;
    let event_id = match text("event_id") {
        Some(id) => required(Some(EventId::parse(id)), "/event_id", &mut faults),
        None => Some(EventId::new(
            door.now,
            [e0, e1, e2, e3, e4, e5, e6, e7, e8, e9],
        )),
    };
    let trace_id = match text("trace_id") {
        Some(id) => required(Some(TraceId::parse(id)), "/trace_id", &mut faults),
        None => Some(TraceId::new(trace)),
    };
    let timestamp = match text("timestamp") {
        Some(at) => required(Some(Timestamp::parse(at)), "/timestamp", &mut faults),
        None => Some(door.now),
    };
    let step_index = match value.get("step_index") {
        None | Some(Value::Null) => None,
        Some(index) => match index.as_u64().and_then(|index| u32::try_from(index).ok()) {
            Some(index) => Some(index),
            None => {
                faults.push(Violation::new(
                    "/step_index",
                    "expected an integer from 0, or null",
                ));
                None
            }
        },
    };
    let payload = value.get("payload").cloned().unwrap_or(Value::Null);
    let (Some(run_id), Some(event_id), Some(trace_id), Some(timestamp)) =
        (run_id, event_id, trace_id, timestamp)
    else {
        return Err(faults);
    };
    let idempotency_key = idempotency_key(&run_id, step_index, &payload);
    if text("idempotency_key").is_some_and(|key| key != idempotency_key) {
        faults.push(Violation::new(
            "/idempotency_key",
            format!("does not match the envelope: expected {idempotency_key}"),
        ));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Envelope {
        schema_version: SCHEMA_VERSION.to_owned(),
        event_id,
        event_type: text("event_type").unwrap_or_default().to_owned(),
        tenant_id: door.tenant_id.clone(),
        trace_id,
        run_id,
        step_index,
        idempotency_key,
        timestamp,
        payload: Json::new(payload),
    })
}

fn required<T, E: std::fmt::Display>(
    parsed: Option<Result<T, E>>,
    pointer: &str,
    faults: &mut Vec<Violation>,
) -> Option<T> {
    match parsed {
        Some(Ok(value)) => Some(value),
        Some(Err(error)) => {
            faults.push(Violation::new(pointer, error.to_string()));
            None
        }
        None => {
            faults.push(Violation::new(pointer, "is missing"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> String {
        let value = json::read(text.as_bytes()).unwrap();
        let run_id = RunId::parse(value[0].as_str().unwrap()).unwrap();
        idempotency_key(&run_id, value[1].as_u64().map(|i| i as u32), &value[2])
    }

    #[test]
    fn keys_are_those_of_the_contract() {
        let vectors = [
            (
                r#"["run_0192f3c4a5b67c8d9e0f112233445566",0,{"arguments":{"amount":5},"tool":"payments.charge"}]"#,
                "667e3f58d69eb653569cfa48e80292e7782b200ac58dbe8e51206ed6d39f6410",
            ),
            (
                r#"["run_0192f3c4a5b67c8d9e0f112233445566",2,{"arguments":{"a":1,"b":[1,2.5,1e+21],"id":18446744073709551616,"t":"€é\n"},"tool":"x"}]"#,
                "2126515fb1747ea3085e88d83f2f476f8fdd5bed1f2efc67fca054a97b3e6473",
            ),
            (
                r#"["run_0192f3c4a5b67c8d9e0f112233445566",3,{}]"#,
                "c5e4a8f9a1e7cde6ddefb5c6cd3f95bc261240e121da7bbdcd57145af9275fd7",
            ),
        ];
        for (text, expected) in vectors {
            assert_eq!(key(text), expected, "{text}");
        }
    }

    #[test]
    fn member_order_and_spacing_do_not_change_a_key() {
        let a =
            key(r#"["run_0192f3c4a5b67c8d9e0f112233445566",0,{"a":1,"b":{"c":[1,2],"d":null}}]"#);
        let b =
            key(r#"["run_0192f3c4a5b67c8d9e0f112233445566",0,{ "b":{"d":null,"c":[1,2]},"a":1}]"#);
        let c =
            key(r#"["run_0192f3c4a5b67c8d9e0f112233445566",0,{"a":1,"b":{"c":[2,1],"d":null}}]"#);
        assert_eq!(a, b);
        assert_ne!(a, c);
    }

    #[test]
    fn what_a_client_got_wrong_is_named() {
        let tenant_id = TenantId::parse("acme").unwrap();
        let door = Door {
            tenant_id: &tenant_id,
            now: Timestamp::from_ms(0),
            random: [7; 26],
        };
        let value = json!({
            "run_id": "run_0192f3c4a5b67c8d9e0f112233445566", "step_index": 0,
            "event_type": "tool.requested", "tenant_id": "other", "idempotency_key": "00",
            "payload": { "tool": "x", "arguments": {} }
        });
        let pointers: Vec<_> = accept(&value, &door)
            .unwrap_err()
            .into_iter()
            .map(|v| v.pointer)
            .collect();
        assert_eq!(pointers, ["/tenant_id", "/idempotency_key"]);
    }
}
