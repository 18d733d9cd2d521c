//! A JSON value inside a stored or sent struct.

use std::ops::Deref;
use std::rc::Rc;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{Value, read_stored, sentence, write};

/// A [`Value`] that crosses serde unchanged and is cheap to clone.
///
/// A bare `Value` field would have its numbers respelled on the way in (`1E5` becomes `1e+5`), and
/// an object with one specially named member would become a number. This goes by the text instead,
/// in both directions, so it serves only `serde_json`'s text forms, which is all that Dormouse uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Json(Rc<Value>);

impl Json {
    pub fn new(value: Value) -> Self {
        Self(Rc::new(value))
    }

    pub fn null() -> Self {
        Self::new(Value::Null)
    }
}

impl Deref for Json {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        Self::new(value)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::from_string(write(&self.0))
            .map_err(S::Error::custom)?
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        read_stored(raw.get().as_bytes())
            .map(Self::new)
            .map_err(|faults| D::Error::custom(sentence(&faults)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        value: Json,
    }

    #[test]
    fn a_value_crosses_serde_character_for_character() {
        let text = r#"{"value":{"z":1E5,"a":1.0,"n":18446744073709551616,"k":-0,"t":"é"}}"#;
        let holder: Holder = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&holder).unwrap(), text);
    }

    #[test]
    fn what_cannot_be_carried_is_refused() {
        assert!(serde_json::from_str::<Holder>(r#"{"value":"a\u0000b"}"#).is_err());
    }
}
