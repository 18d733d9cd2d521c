//! Brings what earlier releases stored up to the present form, one version at a time.
//!
//! Only what a log is folded from is brought up. What clients are shown stays as it was stored: its
//! hash was made of that.

use crate::json::{self, Value};

/// The entry of a row of form `version` in the present form; `None` where it is that already.
pub(super) fn to_present(version: u32, text: &str) -> Result<Option<String>, String> {
    if version > 1 {
        return Ok(None);
    }
    let mut entry = json::read_stored(text.as_bytes()).map_err(|e| json::sentence(&e))?;
    let changed = from_1(&mut entry);
    Ok(changed.then(|| json::write(&entry)))
}

/// Form 1 knew no wait but a sleep, which ended in one way.
fn from_1(entry: &mut Value) -> bool {
    let ended = entry
        .get_mut("event")
        .and_then(|event| event.get_mut("wait.ended"));
    let Some(Value::Object(members)) = ended else {
        return false;
    };
    members.insert("outcome".into(), "elapsed".into());
    true
}
