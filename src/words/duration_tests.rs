use super::*;

fn ms(text: &str) -> i64 {
    DurationMs::parse(text).expect(text).ms()
}

#[test]
fn iso_8601_durations_are_read() {
    assert_eq!(ms("PT30S"), 30 * SECOND);
    assert_eq!(ms("PT0.25S"), 250);
    assert_eq!(ms("PT0,25S"), 250);
    assert_eq!(ms("P3D"), 3 * DAY);
    assert_eq!(ms("P1DT2H"), DAY + 2 * HOUR);
    assert_eq!(ms("P2W"), 14 * DAY);
    assert_eq!(ms("P1Y"), 365 * DAY);
    assert_eq!(ms("P1M"), 30 * DAY);
    assert_eq!(ms("PT1M"), MINUTE);
    assert_eq!(
        ms("P1Y2M1W3DT4H5M6.007S"),
        365 * DAY + 60 * DAY + 10 * DAY + 4 * HOUR + 5 * MINUTE + 6_007
    );
    assert_eq!(ms("PT0.5H"), 30 * MINUTE);
    assert_eq!(ms("PT0.0009S"), 0);
    assert_eq!(ms("PT0S"), 0);
    assert_eq!(ms("P0D"), 0);
    assert_eq!(ms("PT90M"), 90 * MINUTE);
    assert_eq!(ms("P3650D"), DurationMs::MAX.ms());
    assert_eq!(ms("P10Y"), DurationMs::MAX.ms());
}

#[test]
fn a_bad_duration_is_refused_for_its_reason() {
    for text in [
        "",
        "P",
        "PT",
        "P1DT",
        "30",
        "30s",
        "PT30",
        "P30S",
        "PT1D",
        "P1H",
        "PT1S1M",
        "P1D1Y",
        "P1D1D",
        "PT1.5H3M",
        "PT1.0H3M",
        "PT.5S",
        "PT1.S",
        "+PT1S",
        "pt1s",
        "P1DT2H ",
        " P1D",
        "P1T1H1",
        "PT1H TS",
        "-",
        "--PT1S",
        "-30",
        "PTT1S",
        "P1DT1HT1M",
        "PT１S",
        "PT1e3S",
    ] {
        assert_eq!(
            DurationMs::parse(text),
            Err(TimeError::NotIso8601),
            "{text}"
        );
    }
    for text in [
        "-PT1S", "-P1D", "PT-1S", "P-1D", "P1DT-1H", "-P99999D", "-PT0S",
    ] {
        assert_eq!(DurationMs::parse(text), Err(TimeError::Negative), "{text}");
    }
    for text in [
        "P3651D",
        "P10YT0.001S",
        "PT87600H1S",
        "P99999999999999999999999999999999999999Y",
        "P18446744073709551615YT18446744073709551615S",
    ] {
        assert_eq!(DurationMs::parse(text), Err(TimeError::TooLong), "{text}");
    }
    assert_eq!(
        TimeError::NotIso8601.to_string(),
        "expected an ISO 8601 duration, such as PT30S, PT0.25S, P3D or P1DT2H"
    );
}

#[test]
fn durations_are_written_in_one_form() {
    for (ms, text) in [
        (0, "PT0S"),
        (1, "PT0.001S"),
        (250, "PT0.25S"),
        (30_000, "PT30S"),
        (61_500, "PT1M1.5S"),
        (3_600_000, "PT1H"),
        (86_400_000, "P1D"),
        (93_600_000, "P1DT2H"),
        (86_400_001, "P1DT0.001S"),
        (i64::MAX, "P3650D"),
        (i64::MIN, "PT0S"),
    ] {
        assert_eq!(DurationMs::from_ms(ms).to_string(), text);
    }
}

#[test]
fn every_duration_reads_back_from_its_text() {
    for n in 0..1_000 {
        let duration = DurationMs::from_ms(n * 315_359_937 + n);
        assert_eq!(DurationMs::parse(&duration.to_string()), Ok(duration));
    }
}
