//! What a block's figures say, in sentences: ours against the first scheduler, and what is known of why it is
//! worse where it is.

use microslice_testbed::peers::significant;
use microslice_testbed::relative::Figure;

/// Which of a block's schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The kernel's own: ours is read against it.
    First,
    /// Ours without micro-slicing. What is worse here, too, isn't micro-slicing's doing.
    PoolOff,
    Ours,
}

/// A block's figures, and how they are called.
pub struct Reading<'a> {
    /// A figure of a VM, in any unit that the block's schedulers share.
    pub value: &'a dyn Fn(Role, &str, Figure) -> Option<f64>,
    /// The kernel-heavy VM: its name in `value`, and in sentences.
    pub heavy: (&'a str, &'a str),
    /// The VM that only computes, likewise.
    pub hog: (&'a str, &'a str),
    /// The first scheduler.
    pub first: &'a str,
    /// Figures that differ by less than this factor count as equal.
    pub equal_within: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Better,
    Equal,
    Worse,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Better => "Better",
            Self::Equal => "About equal",
            Self::Worse => "Worse",
        }
    }
}

/// What the pool-off phase says of a figure that is worse under ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It is so without a micro pool, too.
    NormalPool,
    /// It isn't, or by far less.
    MicroPool,
    /// That phase hasn't the figure.
    Unknown,
}

/// Of the kernel-heavy VM, less is better.
const WAITS: [(Figure, &str); 3] = [
    (Figure::ShootdownP50, "shootdown p50"),
    (Figure::ShootdownP99, "shootdown p99"),
    (Figure::WakeP99, "wake-up p99"),
];
/// Shares that differ by less are alike.
const ALIKE_WITHIN: f64 = 0.01;

/// `1.23x`, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    ratio.filter(|ratio| ratio.is_finite()).map_or("-".into(), |ratio| format!("{}x", significant(ratio)))
}

fn of(name: &str) -> String {
    format!("{name}'{}", if name.ends_with('s') { "" } else { "s" })
}

impl Reading<'_> {
    /// What is better, equal and worse; shares; then why what is worse is so.
    pub fn sentences(&self) -> Vec<String> {
        let mut all = vec![self.verdicts(), self.of_shares()];
        all.extend(self.reasons());
        all
    }

    /// All that is judged: of which VM, and what it is called.
    fn judged(&self) -> Vec<(&str, Figure, String)> {
        let work = [self.heavy, self.hog]
            .map(|(vm, name)| (vm, Figure::WorkPerCpuSecond, format!("{} work/CPU s", of(name))));
        let waits = WAITS.map(|(figure, name)| (self.heavy.0, figure, name.to_owned()));
        work.into_iter().chain(waits).collect()
    }

    /// Over what the same VM has under the first scheduler.
    fn ratio(&self, role: Role, vm: &str, figure: Figure) -> Option<f64> {
        let (value, first) = ((self.value)(role, vm, figure)?, (self.value)(Role::First, vm, figure)?);
        let ratio = value / first;
        (first > 0.0 && ratio.is_finite()).then_some(ratio)
    }

    fn verdict(&self, figure: Figure, ratio: f64) -> Verdict {
        let gain = if figure == Figure::WorkPerCpuSecond { ratio } else { 1.0 / ratio };
        match gain {
            gain if gain > self.equal_within => Verdict::Better,
            gain if gain < 1.0 / self.equal_within => Verdict::Worse,
            _ => Verdict::Equal,
        }
    }

    fn verdicts(&self) -> String {
        let mut text = format!("Ours over {}.", self.first);
        let judged = self.judged();
        let with = |verdict: Option<Verdict>| -> Vec<String> {
            let of = judged.iter().filter_map(|(vm, figure, name)| {
                let ratio = self.ratio(Role::Ours, vm, *figure);
                let is_it = ratio.map(|ratio| self.verdict(*figure, ratio)) == verdict;
                is_it.then(|| format!("{name} {}", times(ratio)))
            });
            of.collect()
        };
        for verdict in [Some(Verdict::Better), Some(Verdict::Equal), Some(Verdict::Worse), None] {
            let (name, figures) = (verdict.map_or("Not measured", Verdict::name), with(verdict));
            if !figures.is_empty() {
                text += &format!(" {name}: {}.", figures.join(", "));
            }
        }
        text
    }

    /// What work in all follows from: work per CPU second, and CPUs.
    fn of_shares(&self) -> String {
        let share = |role: Role| {
            let [heavy, hog] = [self.heavy, self.hog].map(|(vm, _)| (self.value)(role, vm, Figure::Cpus));
            heavy.zip(hog).map(|(heavy, hog)| heavy / (heavy + hog)).filter(|share| share.is_finite())
        };
        let (Some(first), Some(ours)) = (share(Role::First), share(Role::Ours)) else {
            return "Shares of the CPUs: not measured.".into();
        };
        let nearer = (first - 0.5).abs() - (ours - 0.5).abs();
        let place = match nearer {
            nearer if nearer > ALIKE_WITHIN => ": nearer to their equal weights",
            nearer if nearer < -ALIKE_WITHIN => ": farther from their equal weights",
            _ => "",
        };
        let in_all = |(vm, name): (&str, &str)| {
            let of = |figure| self.ratio(Role::Ours, vm, figure);
            let all = of(Figure::WorkPerCpuSecond).zip(of(Figure::Cpus)).map(|(work, cpus)| work * cpus);
            format!("{name} {}", times(all))
        };
        format!(
            "{} has {:.0} % of the CPUs, {:.0} % under {}{place}. Work in all: {}, {}.",
            self.heavy.1,
            ours * 100.0,
            first * 100.0,
            self.first,
            in_all(self.heavy),
            in_all(self.hog)
        )
    }

    /// A sentence for each reason that something worse has.
    fn reasons(&self) -> Vec<String> {
        let (mut too, mut only, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_of_waits = false;
        for (vm, figure, name) in self.judged() {
            let Some(why) = self.why(vm, figure) else { continue };
            let with_ratio = format!("{name} {}", times(self.ratio(Role::PoolOff, vm, figure)));
            match why {
                Why::NormalPool => {
                    is_of_waits |= figure != Figure::WorkPerCpuSecond;
                    too.push(with_ratio);
                }
                Why::MicroPool => only.push(with_ratio),
                Why::Unknown => unknown.push(name),
            }
        }
        let turns = if is_of_waits { ": its turns are longer" } else { "" };
        let too = (!too.is_empty()).then(|| {
            format!(
                "Worse with the pool off, too: {}. That is our normal pool's doing{turns}.",
                too.join(", ")
            )
        });
        let only = (!only.is_empty()).then(|| {
            format!("With the pool off: {}. So what is worse comes with the micro pool.", only.join(", "))
        });
        let unknown = (!unknown.is_empty())
            .then(|| format!("Worse, and no figure here shows why: {}.", unknown.join(", ")));
        [too, only, unknown].into_iter().flatten().collect()
    }

    /// Of a figure that is worse under ours; `None` if it isn't.
    fn why(&self, vm: &str, figure: Figure) -> Option<Why> {
        let ours = self.ratio(Role::Ours, vm, figure)?;
        if self.verdict(figure, ours) != Verdict::Worse {
            return None;
        }
        let Some(off) = self.ratio(Role::PoolOff, vm, figure) else { return Some(Why::Unknown) };
        let is_most_of_it = off.ln().abs() * 2.0 >= ours.ln().abs();
        Some(match self.verdict(figure, off) {
            Verdict::Worse if is_most_of_it => Why::NormalPool,
            _ => Why::MicroPool,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of the kernel-heavy VM `a`: work, shootdowns' p50 and p99, wake-ups' p99, by role. The other
    /// VM's are 1.
    type Figures = [Option<[f64; 4]>; 3];

    fn sentences(figures: Figures, cpus: [f64; 2]) -> Vec<String> {
        let value = |role: Role, vm: &str, figure: Figure| {
            let own = figures[match role {
                Role::First => 0,
                Role::PoolOff => 1,
                Role::Ours => 2,
            }]?;
            let is_ours = role == Role::Ours;
            match figure {
                Figure::Cpus if vm == "a" => Some(cpus[usize::from(is_ours)]),
                Figure::Cpus => Some(4.0 - cpus[usize::from(is_ours)]),
                _ if vm == "b" => Some(1.0),
                Figure::WorkPerCpuSecond => Some(own[0]),
                Figure::ShootdownP50 => Some(own[1]),
                Figure::ShootdownP99 => Some(own[2]),
                _ => Some(own[3]),
            }
            .filter(|value| !value.is_nan())
        };
        let reading = Reading {
            value: &value,
            heavy: ("a", "mix"),
            hog: ("b", "hog"),
            first: "the kernel's own",
            equal_within: 1.05,
        };
        reading.sentences()
    }

    const ONE: Option<[f64; 4]> = Some([1.0; 4]);

    #[test]
    fn a_name_that_ends_in_s_gets_no_other() {
        assert_eq!([of("mix"), of("swaptions")], ["mix's", "swaptions'"]);
    }

    #[test]
    fn what_is_better_needs_no_reason() {
        let all = sentences([ONE, ONE, Some([1.2, 0.1, 0.5, 0.9])], [2.4, 2.0]);
        assert_eq!(
            all,
            [
                "Ours over the kernel's own. Better: mix's work/CPU s 1.20x, shootdown p50 0.10x, \
                 shootdown p99 0.50x, wake-up p99 0.90x. About equal: hog's work/CPU s 1.00x.",
                "mix has 50 % of the CPUs, 60 % under the kernel's own: nearer to their equal weights. \
                 Work in all: mix 1.00x, hog 1.25x.",
            ]
        );
    }

    #[test]
    fn what_is_equal_is_told_so() {
        let all = sentences([ONE, ONE, Some([1.01, 0.99, 1.04, 1.0])], [2.0, 2.0]);
        assert_eq!(
            all[0],
            "Ours over the kernel's own. About equal: mix's work/CPU s 1.01x, hog's work/CPU s 1.00x, \
             shootdown p50 0.99x, shootdown p99 1.04x, wake-up p99 1.00x."
        );
        assert!(all.len() == 2 && !all[1].contains("weights"), "{all:?}");
    }

    #[test]
    fn what_is_worse_without_micro_slicing_too_is_the_normal_pools() {
        let all = sentences([ONE, Some([1.0, 3.0, 1.0, 1.9]), Some([1.0, 0.5, 1.0, 2.0])], [2.0, 1.2]);
        assert!(all[0].ends_with(" Worse: wake-up p99 2.00x."), "{all:?}");
        assert!(
            all[1].starts_with("mix has 30 % of the CPUs, 50 % under the kernel's own: farther"),
            "{all:?}"
        );
        assert_eq!(
            all[2..],
            [
                "Worse with the pool off, too: wake-up p99 1.90x. That is our normal pool's doing: its turns are longer."
            ]
        );
        let work = sentences([ONE, Some([0.6, 1.0, 1.0, 1.0]), Some([0.7, 1.0, 1.0, 1.0])], [2.0, 2.0]);
        assert_eq!(
            work[2..],
            ["Worse with the pool off, too: mix's work/CPU s 0.60x. That is our normal pool's doing."]
        );
    }

    #[test]
    fn what_is_worse_only_with_a_micro_pool_is_its_price() {
        let off = Some([1.0, 1.0, 1.2, 1.0]);
        let all = sentences([ONE, off, Some([0.7, 1.0, 3.0, 1.0])], [2.0, 2.0]);
        assert_eq!(
            all[2..],
            ["With the pool off: mix's work/CPU s 1.00x, shootdown p99 1.20x. \
              So what is worse comes with the micro pool."]
        );
    }

    #[test]
    fn no_reason_is_guessed_where_no_figure_shows_one() {
        let all = sentences([ONE, None, Some([0.7, 1.0, 1.0, 2.0])], [2.0, 2.0]);
        assert_eq!(all[2..], ["Worse, and no figure here shows why: mix's work/CPU s, wake-up p99."]);
    }

    #[test]
    fn what_is_missing_is_a_dash_in_a_sentence() {
        let all = sentences([ONE, ONE, Some([f64::NAN, 1.0, f64::NAN, 1.0])], [2.0, 2.0]);
        assert!(all[0].ends_with(" Not measured: mix's work/CPU s -, shootdown p99 -."), "{all:?}");
        assert!(all[1].ends_with("Work in all: mix -, hog 1.00x."), "{all:?}");
        let none = sentences([None, None, None], [0.0, 0.0]);
        assert_eq!(none.len(), 2, "{none:?}");
        assert_eq!(none[1], "Shares of the CPUs: not measured.");
        let idle = sentences([Some([0.0; 4]), ONE, ONE], [2.0, 2.0]);
        assert_eq!(idle.len(), 2, "nothing to divide by: {idle:?}");
    }
}
