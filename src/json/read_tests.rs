use super::*;
use crate::json::{canonical, depth, write};

fn violations(text: &str) -> Vec<(String, String)> {
    let found = read(text.as_bytes()).expect_err(text);
    found.into_iter().map(|v| (v.pointer, v.message)).collect()
}

fn only(text: &str) -> (String, String) {
    let mut found = violations(text);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn what_is_read_is_written_again_digit_for_digit_and_in_order() {
    for text in [
        "1.0",
        "1E5",
        "1e5",
        "1e+5",
        "1E-05",
        "-0",
        "-0.0",
        "0.10",
        "18446744073709551616",
        "9007199254740993",
        "7300000000000000017",
        "-1",
        "0",
        "1e-400",
        "123456789012345678901234567890.5",
        r#"{"z":1.50,"a":[{},[],null,true,false],"m":{"é":"€😀\n\"\\"},"":0}"#,
    ] {
        assert_eq!(write(&read(text.as_bytes()).expect(text)), text);
    }
    let spaced = " \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : \"\\u0041\\/\\ud83d\\ude00\" } \n";
    let value = read(spaced.as_bytes()).unwrap();
    assert_eq!(write(&value), r#"{"a":[1,2],"b":"A/😀"}"#);
}

#[test]
fn bytes_that_are_no_utf_8_are_refused() {
    for bytes in [
        &b"\"\xff\xfe\""[..],
        b"\"\xf0\x9f\x98\"",
        b"\"\xed\xa0\xbd\"",
        b"\"caf\xe9\"",
    ] {
        let found = read(bytes).unwrap_err();
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .message
                .starts_with("The text is not UTF-8 from byte"),
            "{found:?}"
        );
    }
    let found = read(b"\xef\xbb\xbf{}").unwrap_err();
    assert!(found[0].message.contains("byte order mark"));
}

#[test]
fn what_is_no_json_is_refused_with_its_place() {
    assert_eq!(
        only("{\n  \"é\": [1, 2\n}"),
        (
            "/é".to_owned(),
            "This is not JSON: expected `,` or `]`, found `}` (line 3, column 1).".to_owned()
        )
    );
    assert_eq!(
        only("{\"é\": [1, tru]}"),
        (
            "/é/1".to_owned(),
            "This is not JSON: expected a value, found `t` (line 1, column 11).".to_owned()
        )
    );
    for text in [
        "",
        " ",
        "{",
        "[",
        "\"",
        "\"\\",
        "\"\\u12",
        "\"\\u00g0\"",
        "\"\\x\"",
        "\"\t\"",
        "\"a\0b\"",
        "tru",
        "nul",
        "True",
        "NaN",
        "Infinity",
        "-",
        "+1",
        "01",
        "-01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "1_000",
        "[1,]",
        "{\"a\":1,}",
        "{,}",
        "[,1]",
        "{a:1}",
        "{'a':1}",
        "{\"a\" 1}",
        "{\"a\":}",
        "{\"a\":1 \"b\":2}",
        "[1 2]",
        "1 2",
        "{} x",
        "// c\n1",
        "[1]]",
        "\u{a0}1",
        "1\u{2028}",
        "'a'",
        "undefined",
        "1.e5",
        "-.5",
    ] {
        let (_, message) = only(text);
        assert!(
            message.starts_with("This is not JSON: expected "),
            "{text:?}: {message}"
        );
    }
}

#[test]
fn a_member_name_used_twice_is_refused_where_it_stands() {
    let (pointer, message) = only(r#"{"a":[{"x/y":1,"b":2,"\u0078\u002fy":1}]}"#);
    assert_eq!(pointer, "/a/0/x~1y");
    assert!(message.contains("more than once"), "{message}");
    assert!(read(br#"{"a":{"a":{"a":1}},"b":{"a":2},"A":3}"#).is_ok());
}

#[test]
fn nul_and_lone_surrogates_are_refused_in_strings_and_names() {
    for (text, pointer, part) in [
        (
            r#"{"t":"a\u0000b"}"#,
            "/t",
            "This string holds the character U+0000",
        ),
        (
            r#"["\ud83d"]"#,
            "/0",
            "This string holds half of a surrogate pair",
        ),
        (r#"["\ude00"]"#, "/0", "half of a surrogate pair"),
        (r#"["\ud83dx"]"#, "/0", "half of a surrogate pair"),
        (r#"["\ud83d\n"]"#, "/0", "half of a surrogate pair"),
        (
            r#"["\ud83d\ud83d\ude00"]"#,
            "/0",
            "half of a surrogate pair",
        ),
        (
            r#"{"in":{"a\u0000":1}}"#,
            "/in",
            "A member name of this object holds the character",
        ),
        (
            r#"{"in":{"\udfff":1}}"#,
            "/in",
            "A member name of this object holds half",
        ),
    ] {
        let (found, message) = only(text);
        assert_eq!(found, pointer, "{text}");
        assert!(message.contains(part), "{text}: {message}");
    }
    // A pointer below a flawed name is still a text that can be stored.
    let found = violations(r#"{"a\u0000":{"b":1e400},"a\ufffd":1}"#);
    assert_eq!(found[1].0, "/a\u{fffd}/b");
}

#[test]
fn a_number_beyond_a_double_is_refused() {
    let digits = "9".repeat(400);
    for text in ["1e400", "-1e400", "1e99999999999999999999", digits.as_str()] {
        let (pointer, message) = only(&format!(r#"{{"w":[0,{text}]}}"#));
        assert_eq!(pointer, "/w/1");
        assert!(message.contains("beyond the range"), "{message}");
    }
    assert!(read(b"1.7976931348623157e308").is_ok());
}

#[test]
fn the_private_names_of_serde_json_are_refused_anywhere() {
    for text in [
        r#"{"x":{"$serde_json::private::Number":"1"}}"#,
        r#"{"x":{"a":0,"$serde_json::private::Number":"1"}}"#,
        r#"{"x":{"\u0024serde_json::private::RawValue":"[1"}}"#,
    ] {
        let (pointer, message) = only(text);
        assert!(
            pointer.starts_with("/x/$serde_json::private::"),
            "{pointer}"
        );
        assert!(message.contains("reserved"), "{message}");
    }
}

#[test]
fn nesting_has_a_bound_and_never_meets_the_stack() {
    let nest = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(
        depth(&read(nest(JSON_DEPTH_MAX).as_bytes()).unwrap()),
        JSON_DEPTH_MAX
    );
    let objects = format!("{}1{}", r#"{"a":"#.repeat(128), "}".repeat(128));
    assert!(read(objects.as_bytes()).is_ok());
    let (pointer, message) = only(&nest(JSON_DEPTH_MAX + 1));
    assert_eq!(pointer, "/0".repeat(JSON_DEPTH_MAX));
    assert!(message.contains("more than 128 deep"), "{message}");
    for text in [
        "[".repeat(200_000),
        r#"{"a":"#.repeat(200_000),
        r#"[{"":"#.repeat(200_000),
    ] {
        assert!(only(&text).1.contains("deep"));
    }
    // Depth is nesting, not number: the count goes down again.
    assert!(read(format!("[{}[]]", "[[]],".repeat(1_000)).as_bytes()).is_ok());
    let framed = format!(
        "{}{}{}",
        "[".repeat(60),
        nest(JSON_DEPTH_MAX),
        "]".repeat(60)
    );
    assert!(read(framed.as_bytes()).is_err() && read_stored(framed.as_bytes()).is_ok());
}

#[test]
fn every_flaw_is_named_up_to_a_bound() {
    let found = violations(r#"{"a":1e400,"b":"\u0000","a":{"c":"\ud800"}} x"#);
    let pointers: Vec<_> = found.iter().map(|v| v.0.as_str()).collect();
    assert_eq!(pointers, ["/a", "/b", "/a", "/a/c", ""]);
    let many = format!("[{}0]", "1e400,".repeat(1_000));
    assert_eq!(violations(&many).len(), VIOLATIONS_MAX);
}

#[test]
fn a_pointer_that_is_too_long_names_the_place_above() {
    let name = "é".repeat(POINTER_BYTES_MAX);
    let (pointer, message) = only(&format!(r#"{{"a":{{"{name}":{{"b":1e400}}}}}}"#));
    assert_eq!(pointer, "/a");
    assert!(message.ends_with("(Somewhere within this place.)"));
    let name = "x".repeat(POINTER_BYTES_MAX - 1);
    assert_eq!(
        only(&format!(r#"{{"{name}":1e400}}"#)).0,
        format!("/{name}")
    );
}

#[test]
fn a_full_body_is_read_in_one_pass() {
    // Shapes that a quadratic reader does not finish: wide, deep within wide, one long string.
    let size = 1 << 20;
    let wide: String = (0..size / 12).map(|n| format!("\"k{n}\":0,")).collect();
    let deep = format!("{}1{},", r#"{"a":["#.repeat(60), "]}".repeat(60));
    for text in [
        format!("{{{}\"end\":0}}", wide),
        format!("[{}0]", deep.repeat(size / deep.len())),
        format!("[{}0]", "[1],".repeat(size / 4)),
        format!("\"{}\"", "\\u00e9".repeat(size / 6)),
        format!("{}1", " ".repeat(size)),
        format!("0.{}", "1".repeat(size)),
    ] {
        assert!(read(text.as_bytes()).is_ok());
    }
}

/// Documents made of pieces that are mostly valid, so that both verdicts are common.
fn document(mut seed: u64) -> String {
    const PIECES: [&str; 40] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"b\"",
        "\"\"",
        "1",
        "-0",
        "1.50",
        "1E5",
        "2e-3",
        "0.0",
        "01",
        "true",
        "false",
        "null",
        " ",
        "\n",
        "\"\\u00e9\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\n\\/\"",
        "{\"a\":",
        "{\"b\":[",
        "[1,",
        "}",
        "]",
        ",\"c\":",
        "[[",
        "]]",
        "\"\\x\"",
        "-",
        "1e",
        "\"",
        "nul",
        "[]",
        "{}",
    ];
    let mut next = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    // A skeleton with holes keeps a good share of the documents well-formed.
    let skeletons = [
        "_",
        "[_,_]",
        "{\"a\":_}",
        "{\"a\":_,\"b\":[_,_]}",
        "[_]_",
        "{_:_}",
        "[[_],{\"x\":_}]",
    ];
    let mut text = skeletons[next() % skeletons.len()].to_owned();
    while let Some(hole) = text.find('_') {
        let piece = match next() % 8 {
            0 if text.len() < 200 => skeletons[next() % skeletons.len()],
            1..=5 => PIECES[6 + next() % 19],
            _ => PIECES[next() % PIECES.len()],
        };
        text.replace_range(hole..=hole, piece);
    }
    text
}

#[test]
fn it_agrees_with_serde_json_on_what_is_json() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..60_000 {
        let text = document(seed);
        match (read(text.as_bytes()), serde_json::from_str::<Value>(&text)) {
            (Ok(ours), Ok(theirs)) => {
                accepted += 1;
                assert_eq!(canonical(&ours), canonical(&theirs), "{text}");
                assert_eq!(read(write(&ours).as_bytes()).as_ref(), Ok(&ours), "{text}");
            }
            (Err(_), Err(_)) => refused += 1,
            (Ok(_), Err(error)) => panic!("only we accept {text}: {error}"),
            (Err(found), Ok(_)) => {
                let syntax = found
                    .iter()
                    .any(|v| v.message.starts_with("This is not JSON"));
                assert!(!syntax, "only we refuse {text}: {found:?}");
            }
        }
    }
    assert!(accepted > 5_000 && refused > 5_000, "{accepted} {refused}");
}
