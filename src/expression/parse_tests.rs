use super::*;

#[test]
fn mistakes_are_named_where_they_stand() {
    for (text, at, message) in [
        ("", 0, "a value is missing"),
        ("  ", 2, "a value is missing"),
        ("input.", 6, "a name is missing after the dot"),
        ("input[", 6, "brackets hold"),
        ("input[-1]", 6, "counts from 0"),
        ("input[1", 7, "closing bracket"),
        ("input[99999999999]", 17, "points at nothing"),
        ("output.x", 0, "a path starts with input, steps or run"),
        ("steps", 5, ".result is missing"),
        ("steps.a", 7, ".result is missing after steps.a"),
        ("steps[0].result", 8, "named by their id"),
        ("1 + 2", 2, "do not compute"),
        ("input.a = 1", 8, "equality is written =="),
        ("input.a & true", 8, "and is written &&"),
        ("1 < 2 < 3", 6, "do not chain"),
        ("size(input)", 0, "a path starts with"),
        ("input.a(1)", 7, "no functions"),
        ("(1", 2, "closing parenthesis"),
        ("1)", 1, "')' is not understood"),
        ("'a", 0, "no closing quote"),
        (r"'\x'", 1, "a backslash stands only before"),
        ("01", 0, "a number is written as in JSON"),
        ("1e400", 0, "fits a double"),
        ("- 1", 0, "a number is written as in JSON"),
        ("a b", 0, "a path starts with"),
        ("input.a input.b", 8, "'i' is not understood"),
    ] {
        let error = Expression::parse(text).unwrap_err();
        assert!(error.message.contains(message), "{text}: {error}");
        assert_eq!(error.at, at, "{text}: {error}");
    }
}

#[test]
fn length_and_depth_are_bounded() {
    let nested = |depth: usize| format!("{}true{}", "(".repeat(depth), ")".repeat(depth));
    assert!(Expression::parse(&nested(EXPRESSION_DEPTH_MAX)).is_ok());
    assert!(Expression::parse(&nested(EXPRESSION_DEPTH_MAX + 1)).is_err());
    assert!(Expression::parse(&"!".repeat(EXPRESSION_DEPTH_MAX + 1)).is_err());
    let chain = vec!["1==1"; 300].join("&&");
    assert!(Expression::parse(&chain).is_ok());
    assert!(Expression::parse(&" ".repeat(EXPRESSION_BYTES_MAX + 1)).is_err());
}

#[test]
fn references_are_the_steps_it_reads() {
    let text = "steps.b.result ?? steps.a.b.result == steps.b.result";
    assert_eq!(Expression::parse(text).unwrap().references(), ["b", "a.b"]);
}

#[test]
fn no_text_makes_it_panic() {
    for text in [
        "é",
        "input.é",
        "'é",
        "input[\"é",
        "steps.é.result",
        "\u{0}",
        "'\\",
        "!=",
        "??",
        "&&",
    ] {
        let _ = Expression::parse(text);
        for (cut, _) in text.char_indices() {
            let _ = Expression::parse(&text[..cut]);
        }
    }
    assert!(Expression::parse("input.é").is_ok());
}
