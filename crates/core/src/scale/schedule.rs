//! Schedules: a least number of pods at certain times of the week, in a time zone: `Mon-Fri 08:00-18:00 Europe/Berlin = 2`.
//!
//! The time zones are built in, and wall time is passed in. Where the clock is turned back, a window lasts from the first to
//! the last moment at which the clock shows a time in it. A time that the clock skips is the moment of the jump.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::{AmbiguousOffset, AmbiguousTimestamp, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use crate::time::{Moment, WallClock, WallTime};

/// The most parts of a schedule.
pub const MAX_PARTS: usize = 32;
/// How far ahead a change is looked for. Each window returns within this time, also if its day is skipped once.
const AHEAD_DAYS: i64 = 15;

const EXAMPLE: &str = "Mon-Fri 08:00-18:00 Europe/Berlin = 2";
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MINUTES_OF_A_DAY: u16 = 24 * 60;

/// The least number of pods, by day and time. The default has no windows.
///
/// ```
/// use rouse_core::scale::Schedule;
///
/// let schedule: Schedule = "Mon-Fri 08:00-18:00 Europe/Berlin = 2; Sat,Sun 22:00-02:00 UTC = 1".parse().unwrap();
/// assert_eq!(schedule.most(), 2);
/// let error = "Mon-Fri 8-18 Europe/Berlin = 2".parse::<Schedule>().unwrap_err().to_string();
/// assert!(error.contains("\"8-18\" is not a time span: expected HH:MM-HH:MM"), "{error}");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    parts: Arc<[Part]>,
}

/// Why a text is not a [`Schedule`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schedule part {part:?}: {what}; a whole part is {EXAMPLE:?}, and several are separated by ;")]
pub struct BadSchedule {
    /// The part that is wrong.
    pub part: String,
    /// What is wrong with it, and what is allowed.
    pub what: String,
}

/// The least number of pods at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// The number of pods; 0 outside all windows.
    pub pods: u32,
    /// When the number changes next; `None`: never.
    pub until: Option<WallTime>,
}

/// One window of the week.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    days: Days,
    /// In minutes since midnight.
    from: u16,
    /// In minutes since midnight, up to 24:00. Not after `from`: on the next day.
    to: u16,
    zone: TimeZone,
    pods: u32,
}

/// A set of days of the week; bit 0 is Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Days(u8);

/// A window in time.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Timestamp,
    to: Timestamp,
    pods: u32,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { parts: Arc::new([]) }
    }
}

impl Schedule {
    /// Whether it has no windows.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many windows it has.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The largest number of pods at any time.
    pub fn most(&self) -> u32 {
        self.parts.iter().map(|part| part.pods).max().unwrap_or(0)
    }

    /// The windows of both: the larger number counts.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let new = other.parts.iter().filter(|part| !self.parts.contains(part));
        Self { parts: self.parts.iter().chain(new).cloned().collect() }
    }

    /// The least number of pods at `now`. Of overlapping windows, the largest counts.
    pub fn floor(&self, now: WallTime) -> Floor {
        let Ok(now) = Timestamp::from_millisecond(now.as_unix_millis()) else {
            return Floor { pods: 0, until: None };
        };
        let spans: Vec<Span> = self.parts.iter().flat_map(|part| part.around(now)).collect();
        let pods_at = |time: Timestamp| {
            let open = spans.iter().filter(|span| span.from <= time && time < span.to);
            open.map(|span| span.pods).max().unwrap_or(0)
        };
        let pods = pods_at(now);
        let last = now.as_second().saturating_add(AHEAD_DAYS * 24 * 3600);
        let mut edges: Vec<Timestamp> = spans.iter().flat_map(|span| [span.from, span.to]).collect();
        edges.retain(|edge| *edge > now && edge.as_second() < last);
        edges.sort_unstable();
        let until = edges.into_iter().find(|edge| pods_at(*edge) != pods);
        Floor { pods, until: until.map(|edge| WallTime::from_unix_millis(edge.as_millisecond())) }
    }
}

impl Part {
    /// Its windows from those that may be open at `now` to those that begin within [`AHEAD_DAYS`].
    fn around(&self, now: Timestamp) -> impl Iterator<Item = Span> {
        let today = self.zone.to_datetime(now).date();
        // Two days back: a window may begin on the day before and last over a day that is skipped.
        let days = (-2..=AHEAD_DAYS + 2).filter_map(move |days| {
            let hours = jiff::Span::new().try_days(days).ok()?;
            today.checked_add(hours).ok()
        });
        let days = days.filter(|day| self.days.has(day.weekday()));
        days.filter_map(|day| self.on(day)).filter(|span| span.from < span.to)
    }

    /// The window that begins on `day`.
    fn on(&self, day: Date) -> Option<Span> {
        let last_day = if self.to > self.from { day } else { day.tomorrow().ok()? };
        let from = self.first(at(day, self.from)?)?;
        let to = self.last(at(last_day, self.to)?)?;
        Some(Span { from, to, pods: self.pods })
    }

    /// The first moment at which the clock shows `time` or later.
    fn first(&self, time: DateTime) -> Option<Timestamp> {
        self.jump(time).or_else(|| self.zone.to_ambiguous_timestamp(time).earlier().ok())
    }

    /// The moment since which the clock always shows `time` or later.
    fn last(&self, time: DateTime) -> Option<Timestamp> {
        self.jump(time).or_else(|| {
            let [earlier, later] = [AmbiguousTimestamp::earlier, AmbiguousTimestamp::later]
                .map(|choose| choose(self.zone.to_ambiguous_timestamp(time)));
            let (earlier, later) = (earlier.ok()?, later.ok()?);
            // Turned back to exactly this time, the clock has shown nothing before it again.
            let before = later.checked_sub(SignedDuration::from_secs(1)).ok()?;
            Some(if self.zone.to_datetime(before) >= time { earlier } else { later })
        })
    }

    /// The moment at which the clock skips `time`, if it does.
    fn jump(&self, time: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(time);
        let AmbiguousOffset::Gap { .. } = ambiguous.offset() else { return None };
        let before = ambiguous.earlier().ok()?;
        let mut changes = self.zone.following(before).map(|change| change.timestamp());
        // Not every change of a zone is a jump: some only change its name.
        changes.find(|change| self.zone.to_datetime(*change) >= time)
    }
}

/// `minutes` after midnight of `day`; up to 24:00.
fn at(day: Date, minutes: u16) -> Option<DateTime> {
    if minutes == MINUTES_OF_A_DAY {
        return Some(day.tomorrow().ok()?.at(0, 0, 0, 0));
    }
    let part = |value: u16| i8::try_from(value).ok();
    Some(day.at(part(minutes / 60)?, part(minutes % 60)?, 0, 0))
}

impl Days {
    fn has(self, day: Weekday) -> bool {
        self.0 & (1 << day.to_monday_zero_offset()) != 0
    }

    /// `Mon`, `Mon-Fri`, `Sat-Mon`, a list of these, or `daily`.
    fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("daily") {
            return Some(Self(0b111_1111));
        }
        let day = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
        text.split(',').try_fold(Self(0), |days, range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (day(first)?, day(last)?);
            let length = (last + 7 - first) % 7;
            Some((0..=length).fold(days, |days, offset| Self(days.0 | 1 << ((first + offset) % 7))))
        })
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0b111_1111 {
            return f.write_str("daily");
        }
        let days = (0..7).filter(|day| self.0 & (1 << day) != 0).map(|day| DAYS[day]);
        f.write_str(&days.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Schedule {
    type Err = BadSchedule;

    fn from_str(text: &str) -> Result<Self, BadSchedule> {
        let bad = |part: &str, what: String| BadSchedule { part: part.to_owned(), what };
        let texts: Vec<&str> = text.split(';').map(str::trim).filter(|part| !part.is_empty()).collect();
        if texts.is_empty() {
            return Err(bad(text, "it is empty: leave the schedule out, or name a window".to_owned()));
        }
        if let Some(part) = texts.get(MAX_PARTS) {
            return Err(bad(part, format!("a schedule has at most {MAX_PARTS} parts")));
        }
        let parts = texts.into_iter().map(|text| part(text).map_err(|what| bad(text, what)));
        Ok(Self { parts: parts.collect::<Result<_, _>>()? })
    }
}

/// One part, like [`EXAMPLE`].
fn part(text: &str) -> Result<Part, String> {
    let (when, pods) =
        text.split_once('=').ok_or_else(|| "it has no number of pods: expected = and a number".to_owned())?;
    let words: Vec<&str> = when.split_whitespace().collect();
    let &[days, times, zone] = words.as_slice() else {
        return Err(format!(
            "expected days, times and a time zone before the =, found {} words",
            words.len()
        ));
    };
    let pods = pods.trim();
    let (from, to) = span(times)?;
    Ok(Part {
        days: Days::parse(days).ok_or_else(|| {
            format!("{days:?} are not days: expected {}, Mon-Fri, Mon,Wed,Fri or daily", DAYS.join(", "))
        })?,
        from,
        to,
        zone: time_zone(zone)?,
        pods: pods
            .parse()
            .ok()
            .filter(|pods| *pods > 0)
            .ok_or_else(|| format!("{pods:?} is not a number of pods: expected 1 or more"))?,
    })
}

fn time_zone(name: &str) -> Result<TimeZone, String> {
    let zone = TimeZoneDatabase::bundled().get(name).ok().filter(|zone| !zone.is_unknown());
    zone.ok_or_else(|| {
        format!(
            "{name:?} is not a time zone: expected a name of the IANA database, like Europe/Berlin or UTC"
        )
    })
}

/// `HH:MM-HH:MM`, in minutes since midnight.
fn span(text: &str) -> Result<(u16, u16), String> {
    let allowed = "expected HH:MM-HH:MM, from 00:00 to 24:00, like 08:00-18:00, or 22:00-06:00 over midnight";
    let bad = || format!("{text:?} is not a time span: {allowed}");
    let (from, to) = text.split_once('-').ok_or_else(bad)?;
    let (from, to) = (minutes(from).ok_or_else(bad)?, minutes(to).ok_or_else(bad)?);
    match (from, to) {
        _ if from == to => Err(format!("{text:?} is empty: a whole day is 00:00-24:00")),
        (MINUTES_OF_A_DAY, _) => Err(format!("{text:?} begins at the end of a day: write 00:00")),
        (_, 0) => Ok((from, MINUTES_OF_A_DAY)),
        _ => Ok((from, to)),
    }
}

/// `HH:MM`, up to `24:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let two = |digits: &str| match digits.as_bytes() {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            Some(u16::from(tens - b'0') * 10 + u16::from(ones - b'0'))
        }
        _ => None,
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= MINUTES_OF_A_DAY).then_some(all)
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, part) in self.parts.iter().enumerate() {
            write!(f, "{}{part}", if n == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { days, from, to, zone, pods } = self;
        let zone = zone.iana_name().unwrap_or("UTC");
        let [from, to] = [from, to].map(|time| (time / 60, time % 60));
        write!(f, "{days} {:02}:{:02}-{:02}:{:02} {zone} = {pods}", from.0, from.1, to.0, to.1)
    }
}

/// The floor of a schedule on the monotonic clock.
#[derive(Debug, Clone, Default)]
pub(super) struct ScheduledFloor {
    clock: WallClock,
    pods: u32,
    until: Option<Moment>,
}

impl ScheduledFloor {
    /// Wall time is `wall` at `now`. Returns whether this is news: the clock was set, or its time was not known.
    pub(super) fn set_clock(&mut self, schedule: &Schedule, now: Moment, wall: WallTime) -> bool {
        let is_news = self.clock.set(now, wall);
        if is_news {
            self.look(schedule, now);
        }
        is_news
    }

    /// The schedule is another one.
    pub(super) fn set_schedule(&mut self, schedule: &Schedule, now: Moment) {
        self.look(schedule, now);
    }

    /// Follows the clock.
    pub(super) fn advance(&mut self, schedule: &Schedule, now: Moment) {
        if self.until.is_some_and(|until| until <= now) {
            self.look(schedule, now);
        }
    }

    /// The least number of pods; 0 while wall time is unknown.
    pub(super) fn pods(&self) -> u32 {
        self.pods
    }

    /// When the number changes.
    pub(super) fn until(&self) -> Option<Moment> {
        self.until
    }

    fn look(&mut self, schedule: &Schedule, now: Moment) {
        let floor = match self.clock.at(now) {
            Some(wall) if !schedule.is_empty() => schedule.floor(wall),
            _ => Floor { pods: 0, until: None },
        };
        self.pods = floor.pods;
        self.until = floor.until.and_then(|until| self.clock.moment_of(until));
    }
}
