//! The scaling of a service as text.

use std::io::{self, Write};
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_daemon::admin::{LearnedIdle, ScalingExplanation};

/// The longest bar, in characters.
const BAR: f32 = 30.0;

pub(super) fn write(
    out: &mut dyn Write,
    service: &ServiceId,
    reports: &[ScalingExplanation],
) -> io::Result<()> {
    if reports.is_empty() {
        return writeln!(out, "no route leads from {service} to a workload");
    }
    for report in reports {
        workload(out, report)?;
        if let Some(idle) = &report.idle {
            learned(out, idle)?;
        }
    }
    Ok(())
}

fn workload(out: &mut dyn Write, report: &ScalingExplanation) -> io::Result<()> {
    let by = if report.state == "managed" { "scaled by Rouse" } else { "not scaled by Rouse" };
    writeln!(out, "{}: {by}", report.workload)?;
    if !report.routes.is_empty() {
        writeln!(out, "  routes     {}", report.routes.join(", "))?;
    }
    if let Some((replicas, ready)) = report.pods {
        writeln!(out, "  pods       {ready} ready of {replicas}")?;
    }
    for (name, value) in [("because", &report.because), ("policy", &report.policy)] {
        if let Some(value) = value {
            writeln!(out, "  {name:10} {value}")?;
        }
    }
    if let Some((pods, why)) = &report.decision {
        let noun = if *pods == 1 { "pod" } else { "pods" };
        writeln!(out, "  decision   {pods} {noun}: {why}")?;
    }
    if let Some(why) = &report.blocked {
        writeln!(out, "  held up    {why}")?;
    }
    Ok(())
}

/// What the idle policy has learned: the choice, why, and the gaps.
fn learned(out: &mut dyn Write, idle: &LearnedIdle) -> io::Result<()> {
    let LearnedIdle { seen, needed, .. } = idle;
    writeln!(
        out,
        "  idle       {seen:.1} gaps between requests remembered; a start takes {}, a cold start is worth {} of an idle pod",
        human(idle.start),
        human(idle.cold_start_cost)
    )?;
    if idle.has_learned {
        writeln!(out, "  choice     {}", choice(idle))?;
        writeln!(
            out,
            "  because    a gap costs {} of an idle pod on average, and {} with the fixed idle-after",
            human(idle.cost),
            human(idle.fixed_cost)
        )?;
    } else {
        writeln!(out, "  choice     the fixed idle-after: {needed:.1} gaps are needed to learn from")?;
    }
    let most = idle.gaps.iter().map(|gap| gap.count).fold(f32::MIN_POSITIVE, f32::max);
    for gap in &idle.gaps {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 30")]
        let length = (gap.count / most * BAR).clamp(1.0, BAR) as usize;
        let range = format!("{} to {}", human(gap.from), human(gap.to));
        writeln!(out, "  gap        {range:18} {:5.1}  {}", gap.count, "#".repeat(length))?;
    }
    Ok(())
}

fn choice(idle: &LearnedIdle) -> String {
    let first = if idle.stay > 0.0 {
        format!("stays warm for {} after a request, then goes to zero", human(idle.stay))
    } else {
        "goes to zero at once after a request".to_owned()
    };
    match idle.back {
        Some((from, to)) => format!("{first}; is warm again from {} to {} after it", human(from), human(to)),
        None => first,
    }
}

/// No more exact than it is known: `2s`, `4m45s`, `1h13m`.
fn human(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds.round()).unwrap_or(Duration::MAX).as_secs();
    let (large, unit, rest, small) = match seconds {
        0..60 => return format!("{seconds}s"),
        60..3600 => (seconds / 60, 'm', seconds % 60, 's'),
        _ => (seconds / 3600, 'h', seconds / 60 % 60, 'm'),
    };
    if rest == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{rest}{small}") }
}

#[cfg(test)]
mod tests {
    use rouse_daemon::admin::LearnedGap;

    use super::*;

    fn report() -> ScalingExplanation {
        ScalingExplanation {
            workload: "Deployment cart in shop".to_owned(),
            routes: vec!["InterceptorRoute/cart".to_owned()],
            state: "managed".to_owned(),
            because: None,
            policy: Some("0 to 10 pods".to_owned()),
            pods: Some((1, 1)),
            decision: Some((1, "the load needs one pod".to_owned())),
            blocked: None,
            idle: None,
        }
    }

    fn text(report: &ScalingExplanation) -> String {
        let mut out = Vec::new();
        let service = ServiceId::new("shop", "cart").unwrap();
        write(&mut out, &service, std::slice::from_ref(report)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_decision_and_its_reason_are_shown() {
        let expected = "Deployment cart in shop: scaled by Rouse\n  routes     InterceptorRoute/cart\n  pods       1 ready of 1\n  \
                        policy     0 to 10 pods\n  decision   1 pod: the load needs one pod\n";
        assert_eq!(text(&report()), expected);
        let owned = ScalingExplanation {
            state: "owned".to_owned(),
            because: Some("HPA cart scales it".to_owned()),
            ..report()
        };
        assert!(text(&owned).contains("not scaled by Rouse") && text(&owned).contains("because    HPA cart"));
    }

    #[test]
    fn what_was_learned_is_shown_with_the_gaps_and_the_choice() {
        let idle = LearnedIdle {
            has_learned: true,
            seen: 12.0,
            needed: 3.8,
            gaps: vec![
                LearnedGap { from: 80.0, to: 95.0, count: 10.0 },
                LearnedGap { from: 3600.0, to: 4300.0, count: 1.0 },
            ],
            start: 2.04,
            cold_start_cost: 600.0,
            stay: 0.0,
            back: Some((78.0, 95.0)),
            cost: 20.0,
            fixed_cost: 60.0,
        };
        let shown = text(&ScalingExplanation { idle: Some(idle.clone()), ..report() });
        for part in [
            "12.0 gaps between requests remembered; a start takes 2s, a cold start is worth 10m of an idle pod",
            "goes to zero at once after a request; is warm again from 1m18s to 1m35s after it",
            "a gap costs 20s of an idle pod on average, and 1m with the fixed idle-after",
            "1m20s to 1m35s      10.0  ##############################",
        ] {
            assert!(shown.contains(part), "{part:?} in {shown}");
        }
        let young = LearnedIdle { has_learned: false, seen: 1.0, ..idle };
        let shown = text(&ScalingExplanation { idle: Some(young), ..report() });
        assert!(shown.contains("the fixed idle-after: 3.8 gaps are needed"), "{shown}");
    }
}
