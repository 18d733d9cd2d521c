use serde_json::json;

use super::*;

fn render(template: &Value, bytes_max: usize) -> Result<Value, Vec<Violation>> {
    let input = json::read(
        br#"{"n":18446744073709551616,"s":"a \"b\"","l":[1,{"x":null}],"t":true,"none":null}"#,
    )
    .unwrap();
    let scope = Scope {
        input: &input,
        run: &Value::Null,
        steps: &|_| None,
    };
    Template::parse(template)?.render(&scope, bytes_max)
}

#[test]
fn one_expression_keeps_its_type_and_a_mix_is_text() {
    for (text, expected) in [
        ("plain", r#""plain""#),
        ("", r#""""#),
        ("}} alone", r#""}} alone""#),
        ("{{ input.n }}", "18446744073709551616"),
        ("{{input.l}}", r#"[1,{"x":null}]"#),
        ("{{ input.none }}", "null"),
        (" {{ input.n }}", r#"" 18446744073709551616""#),
        ("{{input.n}}{{input.t}}", r#""18446744073709551616true""#),
        ("<{{ input.s }}>", r#""<a \"b\">""#),
        ("<{{ input.none }}>", r#""<>""#),
        ("<{{ input.l }}>", r#""<[1,{\"x\":null}]>""#),
        (r#"{{ "{{" }}"#, r#""{{""#),
        (r#"{{ "}}" }} and {{ '\'}}' }}"#, r#""}} and '}}""#),
    ] {
        let rendered = render(&json!(text), 100).unwrap();
        assert_eq!(json::write(&rendered), expected, "{text}");
    }
}

#[test]
fn the_whole_value_is_walked_but_names_are_not() {
    let template = json!({ "{{ input.s }}": ["{{ input.t }}", 1], "b": { "c": "{{ input.t }}!" } });
    let rendered = render(&template, 1000).unwrap();
    assert_eq!(
        rendered,
        json!({ "{{ input.s }}": [true, 1], "b": { "c": "true!" } })
    );
}

#[test]
fn all_mistakes_come_at_once_with_their_pointers() {
    let template = json!({ "a/b": ["{{ 1 +", "{{ 1 + 1 }}", "fine"], "c": "{{ \"open }}" });
    let found = Template::parse(&template).unwrap_err();
    let pointers: Vec<&str> = found
        .iter()
        .map(|violation| violation.pointer.as_str())
        .collect();
    assert_eq!(pointers, ["/a~1b/0", "/a~1b/1", "/c"]);
    assert!(found[0].message.contains("has no }}"), "{found:?}");
    assert!(found[1].message.contains("do not compute"), "{found:?}");

    let found = render(
        &json!(["{{ input.x }}", "{{ input.t }}", "{{ input.y }}"]),
        100,
    )
    .unwrap_err();
    let pointers: Vec<&str> = found
        .iter()
        .map(|violation| violation.pointer.as_str())
        .collect();
    assert_eq!(pointers, ["/0", "/2"]);
}

#[test]
fn the_measure_is_that_of_the_compact_json() {
    for template in [
        json!("{{ input.l }}"),
        json!("x {{ input.l }} {{ input.s }} \u{1} \n é"),
        json!({ "a\"": ["{{ input.s }}", {}, [], "{{ input.n }}"], "b": { "c": "{{ input.t }}" } }),
    ] {
        let rendered = render(&template, 1000).unwrap();
        let size = json::write(&rendered).len();
        assert!(render(&template, size).is_ok(), "{template}");
        assert!(render(&template, size - 1).is_err(), "{template}");
    }
}

#[test]
fn a_value_named_often_does_not_explode() {
    let large = json!({ "text": "x".repeat(400_000) });
    let scope = Scope {
        input: &large,
        run: &Value::Null,
        steps: &|_| None,
    };
    let template = Template::parse(&json!(vec!["{{ input }}"; 20_000])).unwrap();
    let found = template.render(&scope, 524_288).unwrap_err();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].pointer, "/1");
}

#[test]
fn a_value_too_deep_to_be_read_again_is_refused() {
    let nest = |inner: Value, levels: usize| (0..levels).fold(inner, |inner, _| json!([inner]));
    let input = nest(json!(1), 100);
    let scope = Scope {
        input: &input,
        run: &Value::Null,
        steps: &|_| None,
    };
    let render = |levels| {
        let template = Template::parse(&nest(json!("{{ input }}"), levels)).unwrap();
        template.render(&scope, 10_000)
    };
    assert!(render(28).is_ok());
    assert!(render(29).is_err());
}

#[test]
fn references_carry_their_pointers() {
    let template = Template::parse(&json!({
        "a": "{{ steps.x.result }} {{ steps.y.result }}", "b": ["-", "{{ steps.x.result.z }}"]
    }))
    .unwrap();
    let pair = |at: &str, id: &str| (at.to_owned(), id.to_owned());
    assert_eq!(
        template.references(),
        [pair("/a", "x"), pair("/a", "y"), pair("/b/1", "x")]
    );
    assert!(
        Template::parse(&json!({ "a": [1] }))
            .unwrap()
            .literal()
            .is_some()
    );
    assert!(template.literal().is_none());
}
