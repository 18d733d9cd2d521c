//! The canonical form: one text for all spellings of the same value, so that it can be hashed.

use serde_json::{Number, Value};

/// RFC 8785 (JCS) with one difference: an integer in plain notation keeps all its digits, where
/// the RFC would round it to a double and give two payloads one key. `-0` is `0`.
///
/// Every value from [`read`](super::read) has a canonical form. A number that is not finite as a
/// double, which only code could have made, is written as it stands.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    put(&mut text, value);
    text
}

/// Whether two values have the same canonical form: `1.0` is `1`, and members have no order.
pub fn same(a: &Value, b: &Value) -> bool {
    a == b || canonical(a) == canonical(b)
}

fn put(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => put_number(text, number),
        Value::String(string) => put_string(text, string),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                put(text, item);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            // By UTF-16 code units, as the RFC has it: a name beyond U+FFFF sorts before U+E000.
            sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            text.push('{');
            for (index, (name, member)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                put_string(text, name);
                text.push(':');
                put(text, member);
            }
            text.push('}');
        }
    }
}

fn put_number(text: &mut String, number: &Number) {
    let digits = number.as_str();
    let plain = !digits.contains(['.', 'e', 'E']);
    match number.as_f64() {
        _ if digits == "-0" => text.push('0'),
        Some(double) if !plain => {
            text.push_str(ryu_js::Buffer::new().format_finite(double));
        }
        _ => text.push_str(digits),
    }
}

fn put_string(text: &mut String, string: &str) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\u{8}' => text.push_str("\\b"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\u{c}' => text.push_str("\\f"),
            '\r' => text.push_str("\\r"),
            control @ '\0'..='\u{1f}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{read, write};
    use crate::words::sha256_hex;

    fn canon(text: &str) -> String {
        canonical(&read(text.as_bytes()).expect(text))
    }

    #[test]
    fn the_sample_of_the_rfc_matches() {
        // RFC 8785 section 3.2.2 and its result in 3.2.3.
        let sample = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        assert_eq!(
            canon(sample),
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
    }

    #[test]
    fn members_sort_by_utf_16_code_units() {
        // RFC 8785 section 3.2.3.
        let sample = r#"{
            "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh",
            "1": "One", "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",
            "\u00f6": "Latin Small Letter O With Diaeresis"
        }"#;
        let value: Value = read(canon(sample).as_bytes()).unwrap();
        let names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            names,
            [
                "\r",
                "1",
                "\u{80}",
                "\u{f6}",
                "\u{20ac}",
                "\u{1f600}",
                "\u{fb33}"
            ]
        );
    }

    #[test]
    fn doubles_are_written_as_the_rfc_lists_them() {
        // RFC 8785 appendix B.
        for (bits, expected) in [
            (0x0000_0000_0000_0000_u64, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            // `{:e}` always has an exponent, so none of these is an integer in plain notation.
            assert_eq!(canon(&format!("{:e}", f64::from_bits(bits))), expected);
        }
    }

    #[test]
    fn an_integer_in_plain_notation_keeps_its_digits() {
        for (text, expected) in [
            ("9007199254740993", "9007199254740993"),
            ("18446744073709551616", "18446744073709551616"),
            ("-7300000000000000017", "-7300000000000000017"),
            ("10000000000000000000000", "10000000000000000000000"),
            ("1e22", "1e+22"),
            ("0", "0"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("-0e5", "0"),
            ("1.0", "1"),
            ("1E5", "100000"),
            ("0.10", "0.1"),
            ("1e-400", "0"),
            ("-1e-400", "0"),
        ] {
            assert_eq!(canon(text), expected, "{text}");
        }
    }

    #[test]
    fn the_vectors_of_the_contract_match() {
        for (text, digest) in [
            (
                r#"["run_0192f3c4a5b67c8d9e0f112233445566",0,{"arguments":{"amount":5},"tool":"payments.charge"}]"#,
                "667e3f58d69eb653569cfa48e80292e7782b200ac58dbe8e51206ed6d39f6410",
            ),
            (
                r#"["run_0192f3c4a5b67c8d9e0f112233445566",2,{"tool":"x","arguments":{"t":"\u20ac\u00e9\n","b":[1,2.50,1E21],"id":18446744073709551616,"a":1}}]"#,
                "2126515fb1747ea3085e88d83f2f476f8fdd5bed1f2efc67fca054a97b3e6473",
            ),
            (
                r#"["run_0192f3c4a5b67c8d9e0f112233445566",3,{}]"#,
                "c5e4a8f9a1e7cde6ddefb5c6cd3f95bc261240e121da7bbdcd57145af9275fd7",
            ),
        ] {
            assert_eq!(sha256_hex(canon(text).as_bytes()), digest);
        }
    }

    #[test]
    fn the_canonical_form_of_a_canonical_form_is_itself() {
        let text = r#"{"b":[1.50,-0,1e5,12345678901234567890,"\u0001\u001f\u007f\u2028"],"a":{"z":null,"":0}}"#;
        let once = canon(text);
        assert_eq!(canon(&once), once);
        assert_eq!(
            once,
            "{\"a\":{\"\":0,\"z\":null},\"b\":[1.5,0,100000,12345678901234567890,\"\\u0001\\u001f\u{7f}\u{2028}\"]}"
        );
    }

    #[test]
    fn order_and_spelling_are_no_difference_but_content_is() {
        let of = |text: &str| read(text.as_bytes()).unwrap();
        let value = of(r#"{"a":1,"b":{"c":[1,2],"d":null}}"#);
        assert!(same(&value, &of(r#"{ "b":{"d":null,"c":[1.0,2]},"a":1}"#)));
        for other in [
            r#"{"a":1,"b":{"c":[2,1],"d":null}}"#,
            r#"{"a":1,"b":{"c":[1,2]}}"#,
            r#"{"a":"1","b":{"c":[1,2],"d":null}}"#,
        ] {
            assert!(!same(&value, &of(other)));
        }
        assert!(same(&of("\"\\u00e9\""), &of("\"é\"")));
        assert!(!same(&of("9007199254740992"), &of("9007199254740993")));
        assert_eq!(write(&of(r#"{"z":1,"a":2}"#)), r#"{"z":1,"a":2}"#);
    }
}
