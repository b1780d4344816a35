//! Schedules: cases around changes of the clock, then ten thousand random ones against a naive model that looks at the clock
//! each minute.

use std::sync::LazyLock;
use std::time::Duration;

use jiff::civil::{DateTime, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use rouse_core::scale::{Floor, Schedule};
use rouse_core::time::WallTime;

const MINUTE: i64 = 60_000;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

fn schedule(text: &str) -> Schedule {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn zone(name: &str) -> TimeZone {
    TimeZoneDatabase::bundled().get(name).unwrap()
}

fn wall(time: Timestamp) -> WallTime {
    WallTime::from_unix_millis(time.as_millisecond())
}

/// The changes of the floor from one UTC time to another, as `HH:MM=pods` in UTC, with the day of the month before.
fn changes(schedule: &Schedule, from: &str, to: &str) -> Vec<String> {
    let (mut now, end): (Timestamp, Timestamp) = (from.parse().unwrap(), to.parse().unwrap());
    let mut all = vec![format!("{}", schedule.floor(wall(now)).pods)];
    while let Some(until) = schedule.floor(wall(now)).until {
        now = Timestamp::from_millisecond(until.as_unix_millis()).unwrap();
        if now > end {
            break;
        }
        let floor = schedule.floor(wall(now)).pods;
        all.push(format!("{}={floor}", TimeZone::UTC.to_datetime(now).strftime("%d %H:%M")));
    }
    all
}

#[test]
fn a_schedule_is_a_floor_at_its_times() {
    let office = schedule("Mon-Fri 08:00-18:00 Europe/Berlin = 2");
    // Friday to Tuesday in winter, when Berlin is an hour ahead of UTC.
    let week = changes(&office, "2026-01-16T00:00:00Z", "2026-01-20T12:00:00Z");
    assert_eq!(week, ["0", "16 07:00=2", "16 17:00=0", "19 07:00=2", "19 17:00=0", "20 07:00=2"]);
    let always = schedule("daily 00:00-24:00 UTC = 3");
    let now = WallTime::from_unix_millis(1_800_000_000_000);
    assert_eq!(always.floor(now), Floor { pods: 3, until: None });
    assert_eq!(Schedule::default().floor(now), Floor { pods: 0, until: None });
}

#[test]
fn days_may_be_lists_and_ranges_also_over_the_weekend() {
    for (days, expected) in [
        ("Mon", "Mon"),
        ("mon,WED", "Mon,Wed"),
        ("Mon-Fri", "Mon,Tue,Wed,Thu,Fri"),
        ("Sat-Mon", "Mon,Sat,Sun"),
        ("Sun,Fri-Sat", "Fri,Sat,Sun"),
        ("Wed-Tue", "daily"),
        ("daily", "daily"),
        ("Tue-Tue", "Tue"),
    ] {
        let shown = schedule(&format!("{days} 00:00-24:00 utc = 1")).to_string();
        assert_eq!(shown, format!("{expected} 00:00-24:00 UTC = 1"));
    }
}

#[test]
fn a_window_over_midnight_belongs_to_the_day_on_which_it_begins() {
    let night = schedule("Fri 22:00-06:00 UTC = 1");
    let week = changes(&night, "2026-01-16T00:00:00Z", "2026-01-23T00:00:00Z");
    assert_eq!(week, ["0", "16 22:00=1", "17 06:00=0"]);
}

#[test]
fn of_overlapping_windows_the_largest_floor_counts() {
    let both = schedule("daily 08:00-18:00 UTC = 2; daily 10:00-12:00 UTC = 5; daily 11:00-20:00 UTC = 1;");
    let day = changes(&both, "2026-01-16T00:00:00Z", "2026-01-16T23:00:00Z");
    assert_eq!(day, ["0", "16 08:00=2", "16 10:00=5", "16 12:00=2", "16 18:00=1", "16 20:00=0"]);
    let parts = ["daily 08:00-18:00 UTC = 2", "daily 10:00-12:00 UTC = 5"].map(schedule);
    assert_eq!(parts[0].with(&parts[1]).with(&parts[0]).to_string(), format!("{}; {}", parts[0], parts[1]));
    assert_eq!(parts[0].with(&parts[1]).most(), 5);
}

/// In Berlin, the clock jumps from 02:00 to 03:00 on 29 March 2026, and back from 03:00 to 02:00 on 25 October 2026.
#[test]
fn the_two_nights_of_the_year_have_their_windows() {
    for (window, spring, autumn) in [
        // 02:30 is skipped: the window begins with the jump. In autumn it begins at the first 02:30.
        ("02:30-03:30", vec!["29 01:00", "29 01:30"], vec!["25 00:30", "25 02:30"]),
        ("01:30-02:30", vec!["29 00:30", "29 01:00"], vec!["24 23:30", "25 01:30"]),
        ("02:10-02:20", vec![], vec!["25 00:10", "25 01:20"]),
        ("01:00-04:00", vec!["29 00:00", "29 02:00"], vec!["24 23:00", "25 03:00"]),
        ("03:00-04:00", vec!["29 01:00", "29 02:00"], vec!["25 02:00", "25 03:00"]),
    ] {
        let window = schedule(&format!("Sun {window} Europe/Berlin = 1"));
        let times = |changes: Vec<String>| -> Vec<String> {
            changes.iter().skip(1).map(|change| change.split('=').next().unwrap().to_owned()).collect()
        };
        let found = times(changes(&window, "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z"));
        assert_eq!(found, spring, "{window} in spring");
        let found = times(changes(&window, "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z"));
        assert_eq!(found, autumn, "{window} in autumn");
    }
}

#[test]
fn an_error_names_the_part_and_what_is_allowed() {
    for (text, part, what) in [
        ("", "", "it is empty"),
        (" ; ", " ; ", "it is empty"),
        ("Mon 08:00-18:00 UTC", "Mon 08:00-18:00 UTC", "expected = and a number"),
        ("daily 08:00-18:00 UTC = 1; Mon 8-18 UTC = 2", "Mon 8-18 UTC = 2", "expected HH:MM-HH:MM"),
        ("Mon 08:00-18:00 = 2", "Mon 08:00-18:00 = 2", "found 2 words"),
        ("Mo 08:00-18:00 UTC = 2", "Mo 08:00-18:00 UTC = 2", "\"Mo\" are not days: expected Mon, Tue"),
        ("Mon, Tue 08:00-18:00 UTC = 2", "Mon, Tue 08:00-18:00 UTC = 2", "found 4 words"),
        ("Mon 08:00-24:01 UTC = 2", "Mon 08:00-24:01 UTC = 2", "from 00:00 to 24:00"),
        ("Mon 08:60-10:00 UTC = 2", "Mon 08:60-10:00 UTC = 2", "from 00:00 to 24:00"),
        ("Mon +8:00-10:00 UTC = 2", "Mon +8:00-10:00 UTC = 2", "from 00:00 to 24:00"),
        ("Mon 08:00-08:00 UTC = 2", "Mon 08:00-08:00 UTC = 2", "a whole day is 00:00-24:00"),
        ("Mon 24:00-08:00 UTC = 2", "Mon 24:00-08:00 UTC = 2", "write 00:00"),
        ("Mon 08:00-18:00 Mars/Base = 2", "Mon 08:00-18:00 Mars/Base = 2", "like Europe/Berlin or UTC"),
        ("Mon 08:00-18:00 Etc/Unknown = 2", "Mon 08:00-18:00 Etc/Unknown = 2", "not a time zone"),
        ("Mon 08:00-18:00 UTC = 0", "Mon 08:00-18:00 UTC = 0", "expected 1 or more"),
        ("Mon 08:00-18:00 UTC = -1", "Mon 08:00-18:00 UTC = -1", "expected 1 or more"),
    ] {
        let error = text.parse::<Schedule>().unwrap_err();
        assert_eq!(error.part, part);
        assert!(error.what.contains(what), "{text:?}: {}", error.what);
        assert!(
            error.to_string().contains("\"Mon-Fri 08:00-18:00 Europe/Berlin = 2\""),
            "an example: {error}"
        );
    }
    let many = "daily 08:00-18:00 UTC = 1;".repeat(33);
    assert!(many.parse::<Schedule>().unwrap_err().what.contains("at most 32 parts"));
}

#[test]
fn no_time_is_too_far_away() {
    let office = schedule("Mon-Fri 08:00-18:00 Europe/Berlin = 2");
    for millis in [i64::MIN, i64::MIN / 2, -1, 0, i64::MAX / 2, i64::MAX] {
        assert!(office.floor(WallTime::from_unix_millis(millis)).pods <= 2);
    }
    for time in [Timestamp::MIN, Timestamp::MAX] {
        assert!(office.floor(wall(time)).pods <= 2, "{time}");
    }
}

/// Eight days around a change of a clock: the local time of each minute, as minutes since a Monday.
struct Clock {
    zone: &'static str,
    begin: Timestamp,
    shown: Vec<i64>,
}

static CLOCKS: LazyLock<Vec<Clock>> = LazyLock::new(|| {
    let monday = date(2001, 1, 1).at(0, 0, 0, 0);
    let clock = |(zone_name, middle): (&'static str, DateTime)| {
        let zone = zone(zone_name);
        let begin = TimeZone::UTC.to_timestamp(middle).unwrap() - (4 * 24).hours();
        let minutes = (0..8 * 24 * 60).map(|minute: i64| {
            let local = zone.to_datetime(begin + minute.minutes());
            i64::from((local - monday).get_days()) * 24 * 60
                + i64::from(local.hour()) * 60
                + i64::from(local.minute())
        });
        Clock { zone: zone_name, begin, shown: minutes.collect() }
    };
    let changes = [
        ("Europe/Berlin", date(2026, 3, 29).at(1, 0, 0, 0)),
        ("Europe/Berlin", date(2026, 10, 25).at(1, 0, 0, 0)),
        ("America/New_York", date(2026, 3, 8).at(7, 0, 0, 0)),
        ("America/New_York", date(2026, 11, 1).at(6, 0, 0, 0)),
        // Half an hour.
        ("Australia/Lord_Howe", date(2026, 4, 4).at(15, 0, 0, 0)),
        ("Australia/Lord_Howe", date(2026, 10, 3).at(15, 30, 0, 0)),
        // Two hours.
        ("Antarctica/Troll", date(2026, 3, 29).at(1, 0, 0, 0)),
        ("Antarctica/Troll", date(2026, 10, 25).at(1, 0, 0, 0)),
        // At midnight.
        ("America/Sao_Paulo", date(2018, 11, 4).at(3, 0, 0, 0)),
        ("America/Sao_Paulo", date(2018, 2, 18).at(2, 0, 0, 0)),
        // A Friday that did not exist.
        ("Pacific/Apia", date(2011, 12, 30).at(10, 0, 0, 0)),
        ("Asia/Kolkata", date(2026, 6, 1).at(0, 0, 0, 0)),
        ("UTC", date(2026, 6, 1).at(0, 0, 0, 0)),
    ];
    changes.into_iter().map(clock).collect()
});

/// One part: days, from, to, pods.
type Part = (Vec<usize>, i64, i64, u32);

fn part() -> impl Strategy<Value = Part> {
    let days = proptest::collection::btree_set(0..7_usize, 1..7);
    let time = || prop_oneof![2 => 0..300_i64, 1 => 0..1440_i64, 1 => (0..24_i64).prop_map(|hour| hour * 60)];
    (days, time(), time(), 1..6_u32).prop_map(|(days, from, to, pods)| {
        let to = if to == from { 24 * 60 } else { to };
        (days.into_iter().collect(), from, to, pods)
    })
}

fn text(parts: &[Part], zone: &str) -> String {
    let part = |(days, from, to, pods): &Part| {
        let days: Vec<&str> = days.iter().map(|day| DAYS[*day]).collect();
        let time = |minutes: &i64| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        format!("{} {}-{} {zone} = {pods}", days.join(","), time(from), time(to))
    };
    parts.iter().map(part).collect::<Vec<_>>().join("; ")
}

/// The floor of each minute: a window lasts from the first to the last minute at which the clock shows a time in it.
fn naive(parts: &[Part], clock: &Clock) -> Vec<u32> {
    let mut floors = vec![0; clock.shown.len()];
    let (first, last) = (clock.shown.iter().min().unwrap() / 1440, clock.shown.iter().max().unwrap() / 1440);
    for (days, from, to, pods) in parts {
        for day in (first - 1)..=last {
            if !days.contains(&usize::try_from(day.rem_euclid(7)).unwrap()) {
                continue;
            }
            let end = if *to == 0 || to <= from && *to < 1440 { to + 1440 } else { *to };
            let window = day * 1440 + from..day * 1440 + end;
            let begin = clock.shown.iter().position(|shown| window.contains(shown));
            let end = clock.shown.iter().rposition(|shown| window.contains(shown));
            for floor in begin.zip(end).into_iter().flat_map(|(begin, end)| begin..=end) {
                floors[floor] = floors[floor].max(*pods);
            }
        }
    }
    floors
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_floor_is_that_of_looking_at_the_clock_each_minute(
        clock in 0..13_usize, parts in proptest::collection::vec(part(), 1..4),
        probes in proptest::collection::vec(3 * 1440..5 * 1440_usize, 3),
    ) {
        let clock = &CLOCKS[clock];
        let floors = naive(&parts, clock);
        let schedule = schedule(&text(&parts, clock.zone));
        prop_assert_eq!(&schedule.to_string().parse::<Schedule>().unwrap(), &schedule);
        for probe in probes {
            let at = |minute: usize| clock.begin.as_millisecond() + i64::try_from(minute).unwrap() * MINUTE;
            // Any moment of the minute.
            let now = WallTime::from_unix_millis(at(probe)) + Duration::from_millis(probe as u64 % 60_000);
            let floor = schedule.floor(now);
            prop_assert_eq!(floor.pods, floors[probe], "{} at minute {}", schedule, probe);
            let next = (probe..7 * 1440).find(|minute| floors[*minute] != floors[probe]);
            match next {
                Some(next) => prop_assert_eq!(floor.until, Some(WallTime::from_unix_millis(at(next)))),
                None => prop_assert!(floor.until.is_none_or(|until| until.as_unix_millis() >= at(7 * 1440))),
            }
        }
    }
}
