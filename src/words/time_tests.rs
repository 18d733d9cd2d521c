use super::*;

fn utc(text: &str) -> String {
    Timestamp::parse(text).expect(text).to_string()
}

#[test]
fn any_offset_and_fraction_becomes_utc_milliseconds() {
    assert_eq!(utc("2026-12-01T00:00:00Z"), "2026-12-01T00:00:00.000Z");
    assert_eq!(utc("2026-12-01t00:00:00.5z"), "2026-12-01T00:00:00.500Z");
    assert_eq!(utc("2026-12-01T01:30:00+01:30"), "2026-12-01T00:00:00.000Z");
    assert_eq!(utc("2026-11-30T19:00:00-05:00"), "2026-12-01T00:00:00.000Z");
    assert_eq!(utc("2026-12-01T00:00:00-00:00"), "2026-12-01T00:00:00.000Z");
    assert_eq!(
        utc("2024-02-29T12:00:00.123456789012Z"),
        "2024-02-29T12:00:00.123Z"
    );
    assert_eq!(utc("1969-12-31T23:59:59.999Z"), "1969-12-31T23:59:59.999Z");
}

#[test]
fn known_instants_have_their_known_milliseconds() {
    assert_eq!(Timestamp::parse("1970-01-01T00:00:00Z").unwrap().ms(), 0);
    assert_eq!(
        Timestamp::parse("2001-09-09T01:46:40Z").unwrap().ms(),
        1_000_000_000_000
    );
    assert_eq!(
        Timestamp::parse("1969-12-31T23:59:59.999Z").unwrap().ms(),
        -1
    );
}

#[test]
fn a_leap_second_is_taken_only_at_the_end_of_a_utc_day() {
    assert_eq!(utc("1990-12-31T23:59:60.25Z"), "1991-01-01T00:00:00.250Z");
    assert_eq!(utc("1990-12-31T15:59:60-08:00"), "1991-01-01T00:00:00.000Z");
    assert_eq!(
        Timestamp::parse("1990-12-31T22:59:60Z"),
        Err(TimeError::NotRfc3339)
    );
}

#[test]
fn what_is_not_rfc_3339_is_refused() {
    for text in [
        "",
        "2026-12-01",
        "2026-12-01T00:00:00",
        "2026-12-01 00:00:00Z",
        "2026-12-01T00:00Z",
        "2026-12-01T00:00:00.Z",
        "2026-12-01T00:00:00,5Z",
        "2026-12-01T24:00:00Z",
        "2026-12-01T00:60:00Z",
        "2026-12-01T00:00:61Z",
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-12-01T00:00:00+0100",
        "2026-12-01T00:00:00+24:00",
        "2026-12-01T00:00:00Z ",
        "+2026-12-01T00:00:00Z",
        "20261201T000000Z",
        "2026-12-01T00:00:00Z[UTC]",
        "２026-12-01T00:00:00Z",
        "1764547200000",
    ] {
        assert_eq!(Timestamp::parse(text), Err(TimeError::NotRfc3339), "{text}");
    }
}

#[test]
fn years_run_from_1_to_9999() {
    assert_eq!(utc("9999-12-31T23:59:59.999Z"), Timestamp::MAX.to_string());
    assert_eq!(utc("0001-01-01T00:00:00Z"), Timestamp::MIN.to_string());
    for text in [
        "0000-12-31T23:59:59Z",
        "9999-12-31T23:59:59-01:00",
        "0001-01-01T00:00:00+00:01",
    ] {
        assert_eq!(
            Timestamp::parse(text),
            Err(TimeError::YearOutOfRange),
            "{text}"
        );
    }
    assert_eq!(Timestamp::from_ms(i64::MAX), Timestamp::MAX);
    assert_eq!(Timestamp::from_ms(i64::MIN), Timestamp::MIN);
    assert_eq!(
        Timestamp::EPOCH.plus_ms(i64::MAX).plus_ms(i64::MAX),
        Timestamp::MAX
    );
    assert_eq!(Timestamp::EPOCH.plus_ms(i64::MIN), Timestamp::MIN);
    assert_eq!(Timestamp::MAX.plus(DurationMs::MAX), Timestamp::MAX);
}

#[test]
fn every_timestamp_reads_back_from_its_text() {
    let step = (Timestamp::MAX.ms() - Timestamp::MIN.ms()) / 997;
    for n in 0..=997 {
        let time = Timestamp::MIN.plus_ms(n * step);
        assert_eq!(Timestamp::parse(&time.to_string()), Ok(time));
    }
}

#[test]
fn distance_has_a_sign() {
    let early = Timestamp::from_ms(1_000);
    assert_eq!(early.plus_ms(250).ms_since(early), 250);
    assert_eq!(early.ms_since(early.plus_ms(250)), -250);
}

#[test]
fn both_travel_as_text() {
    let pair: (Timestamp, DurationMs) =
        serde_json::from_str(r#"["2026-12-01T01:00:00+01:00","PT120S"]"#).unwrap();
    assert_eq!(
        serde_json::to_string(&pair).unwrap(),
        r#"["2026-12-01T00:00:00.000Z","PT2M"]"#
    );
    let error = serde_json::from_str::<DurationMs>(r#""soon""#).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("expected an ISO 8601 duration")
    );
}
