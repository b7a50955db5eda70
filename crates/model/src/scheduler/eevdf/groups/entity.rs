//! A queue's entities under EEVDF, whatever they stand for: a VM's group, or a vCPU's. Names in brackets are
//! of Linux 6.18, kernel/sched/fair.c.

/// Weight of a group whose `cpu.weight` is 100, and of a task of nice 0 (`NICE_0_LOAD`).
pub const WEIGHT: u64 = 1 << 20;
/// `MIN_SHARES`.
pub const WEIGHT_MIN: u64 = 2;

/// What stands in a queue.
#[derive(Debug, Clone, Copy)]
pub struct Entity {
    /// Time that it ran, by its weight; in the queue's own time, of which no absolute value means anything.
    pub vruntime_ns: i64,
    pub deadline_ns: i64,
    /// Nobody is picked in its place before, as long as it is eligible (`vprot`, RUN_TO_PARITY).
    pub protected_until_ns: i64,
    pub weight: u64,
}

impl Entity {
    pub const fn new(weight: u64) -> Self {
        Self { vruntime_ns: 0, deadline_ns: 0, protected_until_ns: 0, weight }
    }

    /// Time by its weight (`calc_delta_fair`). Rounded up, so that a slice that is charged in parts is over
    /// at its end.
    #[inline]
    pub fn weighted_ns(&self, time_ns: u64) -> i64 {
        if self.weight == WEIGHT {
            return time_ns as i64;
        }
        (u128::from(time_ns) * u128::from(WEIGHT)).div_ceil(u128::from(self.weight)) as i64
    }

    /// It ran (`update_curr`). Whether its slice was over, and the next one began (`update_deadline`).
    #[inline]
    pub fn charge(&mut self, ran_ns: u64, slice_ns: u64) -> bool {
        self.vruntime_ns += self.weighted_ns(ran_ns);
        let is_over = self.vruntime_ns >= self.deadline_ns;
        if is_over {
            self.deadline_ns = self.vruntime_ns + self.weighted_ns(slice_ns);
        }
        is_over
    }

    /// The next slice begins.
    pub fn end_slice(&mut self, slice_ns: u64) {
        self.protected_until_ns = self.vruntime_ns;
        self.deadline_ns = self.vruntime_ns + self.weighted_ns(slice_ns);
    }

    /// For how long it has to run until its slice is over.
    pub fn left_ns(&self) -> u64 {
        let left_ns = (self.deadline_ns - self.vruntime_ns).max(0) as u128;
        (left_ns * u128::from(self.weight)).div_ceil(u128::from(WEIGHT)) as u64
    }

    #[inline]
    pub fn is_protected(&self) -> bool {
        self.vruntime_ns < self.protected_until_ns
    }

    /// It is the one that runs from now on (`set_protect_slice`; all slices are equal).
    pub fn is_picked(&mut self) {
        self.protected_until_ns = self.deadline_ns;
    }

    /// It stands that far behind the average of `others` and itself (`place_entity`). Its deadline, and how
    /// long it is protected, stay as far from its runtime as they were.
    pub fn place(&mut self, others: &Sums, zero_ns: i64, lag_ns: i64) {
        let vruntime_ns = match others.average_ns() {
            // Coming, it moves the average itself.
            Some(average_ns) => {
                let all = others.weight + i128::from(self.weight);
                average_ns - (i128::from(lag_ns) * all / others.weight) as i64
            }
            None => zero_ns,
        };
        let moved_ns = vruntime_ns - std::mem::replace(&mut self.vruntime_ns, vruntime_ns);
        self.deadline_ns += moved_ns;
        self.protected_until_ns += moved_ns;
    }

    /// `reweight_entity`, of one that is in no queue: what is left of its slice is as long as before for the
    /// host.
    pub fn reweigh(&mut self, weight: u64) {
        let scaled = |ns: i64| (i128::from(ns) * i128::from(self.weight) / i128::from(weight)) as i64;
        self.deadline_ns = self.vruntime_ns + scaled(self.deadline_ns - self.vruntime_ns);
        self.protected_until_ns = self.vruntime_ns + scaled(self.protected_until_ns - self.vruntime_ns);
        self.weight = weight;
    }
}

/// Of some entities: what their average is made of (`avg_vruntime`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    base_ns: i64,
    weighted_ns: i128,
    pub weight: i128,
}

impl Sums {
    pub fn of<'a>(entities: impl Iterator<Item = &'a Entity>) -> Self {
        let mut sums = Self::default();
        for entity in entities {
            if sums.weight == 0 {
                sums.base_ns = entity.vruntime_ns;
            }
            let weight = i128::from(entity.weight);
            sums.weight += weight;
            sums.weighted_ns += weight * i128::from(entity.vruntime_ns - sums.base_ns);
        }
        sums
    }

    /// `None` of nobody.
    pub fn average_ns(&self) -> Option<i64> {
        (self.weight > 0).then(|| self.base_ns + self.weighted_ns.div_euclid(self.weight) as i64)
    }

    /// `entity_eligible`: it hasn't had more than what was due to it.
    #[inline]
    pub fn are_behind(&self, entity: &Entity) -> bool {
        i128::from(entity.vruntime_ns - self.base_ns) * self.weight <= self.weighted_ns
    }
}

/// `pick_eevdf`: of those in a queue, by their places there. `current` ran until now, `next` is a buddy
/// (`set_next_buddy`).
#[inline]
pub fn pick<'a>(
    entities: impl Iterator<Item = (usize, &'a Entity)> + Clone,
    current: Option<usize>,
    next: Option<usize>,
) -> Option<usize> {
    let mut places = entities.clone();
    let (first, others) = (places.next()?.0, places.next());
    if others.is_none() {
        return Some(first);
    }
    let sums = Sums::of(entities.clone().map(|(_, entity)| entity));
    let is_eligible = |place: Option<usize>| {
        place.and_then(|place| entities.clone().find(|&(at, entity)| at == place && sums.are_behind(entity)))
    };
    if let Some((place, _)) = is_eligible(next) {
        return Some(place);
    }
    if let Some((place, entity)) = is_eligible(current)
        && entity.is_protected()
    {
        return Some(place);
    }
    let eligible = entities.filter(|(_, entity)| sums.are_behind(entity));
    eligible.min_by_key(|(_, entity)| entity.deadline_ns).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entity(vruntime_ns: i64, deadline_ns: i64, weight: u64) -> Entity {
        Entity { vruntime_ns, deadline_ns, protected_until_ns: vruntime_ns, weight }
    }

    fn pick_of(entities: &[Entity], current: Option<usize>, next: Option<usize>) -> Option<usize> {
        pick(entities.iter().enumerate(), current, next)
    }

    #[test]
    fn of_those_not_ahead_the_earliest_deadline_is_picked() {
        let all = [entity(30, 31, WEIGHT), entity(0, 50, WEIGHT), entity(9, 40, WEIGHT)];
        assert_eq!(pick_of(&all, None, None), Some(2), "the first one is ahead of the average, 13");
        assert_eq!(pick_of(&all[..1], None, None), Some(0), "there is nobody else");
        assert_eq!(pick_of(&[], None, None), None);
    }

    #[test]
    fn a_buddy_goes_first_and_the_running_one_second_but_only_where_they_are_eligible() {
        let mut all = [entity(30, 31, WEIGHT), entity(0, 50, WEIGHT), entity(9, 40, WEIGHT)];
        assert_eq!(pick_of(&all, None, Some(1)), Some(1));
        assert_eq!(pick_of(&all, None, Some(0)), Some(2));
        all[1].is_picked();
        assert_eq!(pick_of(&all, Some(1), None), Some(1), "until its slice is over");
        assert_eq!(pick_of(&all, Some(1), Some(2)), Some(2));
        all[0].is_picked();
        assert_eq!(pick_of(&all, Some(0), None), Some(2));
    }

    #[test]
    fn a_light_one_runs_for_less_until_its_slice_is_over() {
        let mut light = entity(0, 12_000_000, WEIGHT / 4);
        assert!(!light.charge(2_999_999, 3_000_000));
        assert!(light.charge(1, 3_000_000));
        assert_eq!((light.vruntime_ns, light.deadline_ns), (12_000_000, 24_000_000));
    }

    proptest! {
        #[test]
        fn a_placed_entity_stands_as_far_behind_the_average_as_said(
            others in prop::collection::vec((-1_000_000_000i64..1_000_000_000, 2u64..4 << 20), 1..6),
            weight in 1u64 << 10..4 << 20,
            lag_ns in -6_000_000i64..6_000_000,
        ) {
            let others: Vec<Entity> =
                others.into_iter().map(|(vruntime_ns, weight)| entity(vruntime_ns, 0, weight.max(1 << 10))).collect();
            let mut coming = entity(7, 10, weight);
            coming.place(&Sums::of(others.iter()), 0, lag_ns);
            let average_ns = Sums::of(others.iter().chain([&coming])).average_ns().expect("somebody");
            prop_assert!((average_ns - coming.vruntime_ns - lag_ns).abs() <= 4);
            prop_assert_eq!(coming.deadline_ns - coming.vruntime_ns, 3);
        }

        #[test]
        fn an_entity_is_always_picked_and_never_one_that_is_ahead(
            all in prop::collection::vec((0i64..100_000_000, 0i64..100_000_000, 2u64..4 << 20), 1..8),
            current in 0usize..8,
            next in 0usize..8,
        ) {
            let all: Vec<Entity> = all.into_iter().map(|(runtime, deadline, weight)| entity(runtime, deadline, weight)).collect();
            let picked = pick_of(&all, Some(current), Some(next)).expect("there is somebody");
            prop_assert!(all.len() == 1 || Sums::of(all.iter()).are_behind(&all[picked]));
        }
    }
}
