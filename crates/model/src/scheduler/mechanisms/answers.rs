//! The policy's answers about siblings and yields: asked once for all that can be seen, then looked up.

use crate::machine::{HostVcpu, Kind, WAITING_KINDS};
use microslice_policy as policy;
use microslice_policy::{
    AccelerateConfig, PassScope, SiblingAnswer, SiblingDecision, SiblingObservation, UrgentEvent, YieldCause,
    YieldDecision, YieldObservation,
};
use policy::Coded;

/// All of them.
pub struct Answers {
    paper_rules: u32,
    siblings: SiblingAnswers,
    short_cuts: [Option<ShortCut>; SCOPES.len()],
    yields: YieldAnswers,
    /// Of a VM that isn't helped: there is no micro pool for it.
    /// The kinds of waiting siblings (`Waiting::kinds`) that are stranded.
    pub stranded_kinds: u64,
}

impl Answers {
    /// For a host without a micro pool so far. `known`: it can see which siblings owe an answer, if its
    /// rules look.
    pub fn new(rules: &AccelerateConfig, known: bool) -> Self {
        let siblings = SiblingAnswers::new(known && policy::answers_are_read(rules));
        let short_cuts = SCOPES.map(|scope| ShortCut::new(&siblings, scope));
        let stranded = (0..WAITING_KINDS).filter(|&kind| is_stranded(Kind::of_number(kind)));
        let stranded_kinds = stranded.fold(0, |mask, kind| mask | 1 << kind);
        let paper_rules = rules.paper_rules;
        Self { paper_rules, siblings, short_cuts, yields: YieldAnswers::new(paper_rules, 0), stranded_kinds }
    }

    /// The micro pool has so many pCPUs from now on.
    pub fn set_pool_size(&mut self, micro_pcpus: usize) {
        self.yields = YieldAnswers::new(self.paper_rules, micro_pcpus);
    }

    /// What this host sees of a vCPU that owes an answer, or owes none.
    #[inline]
    pub fn answer_of(&self, owes: bool) -> SiblingAnswer {
        answer_of(self.siblings.known, owes)
    }

    #[inline]
    pub fn on_sibling(
        &self,
        scope: PassScope,
        state: policy::VcpuState,
        kind: usize,
        requested: bool,
    ) -> SiblingDecision {
        self.siblings.get(scope, state, kind, requested)
    }

    #[inline]
    pub fn on_yield(&self, cause: YieldCause, host: &HostVcpu) -> YieldDecision {
        self.yields.get(cause, host)
    }

    /// What Algorithm 1 counts such a yield as.
    #[inline]
    pub fn urgent_event(
        &self,
        cause: YieldCause,
        class: policy::GuestClass,
        interrupts_enabled: bool,
    ) -> UrgentEvent {
        self.yields.urgent_event(cause, class, interrupts_enabled)
    }

    /// `None`: a pass of this scope must look at all.
    #[inline]
    pub fn short_cut(&self, scope: PassScope) -> Option<&ShortCut> {
        self.short_cuts[scope as usize].as_ref()
    }
}

/// Answers of `decide_on_sibling`, which is a pure function of few values: asked once each, then looked up. A
/// pass over all siblings at every pause-loop exit is the hottest loop of a run.
struct SiblingAnswers {
    decisions: Vec<SiblingDecision>,
    /// The host can see which siblings owe an answer.
    known: bool,
}

const SCOPES: [PassScope; 5] = [
    PassScope::None,
    PassScope::OneCritical,
    PassScope::AllPreempted,
    PassScope::AllOwing,
    PassScope::AllCritical,
];
const STATES: usize = policy::VcpuState::ALL.len();
const CLASSES: usize = policy::GuestClass::ALL.len();

impl SiblingAnswers {
    /// `known`: the host can see which siblings owe an answer.
    fn new(known: bool) -> Self {
        let observation = |state, kind: Kind, requested_count| SiblingObservation {
            state: policy::Code::raw(state),
            preempted: u32::from(kind.preempted),
            yielded: u32::from(kind.yielded),
            guest_class: policy::Code::raw(kind.class as u32),
            requested_count,
            answer: answer_of(known, kind.owes_answer).into(),
        };
        let mut decisions = Vec::with_capacity(SCOPES.len() * STATES * WAITING_KINDS * 2);
        for scope in SCOPES {
            for state in 0..STATES as u32 {
                for kind in (0..WAITING_KINDS).map(Kind::of_number) {
                    for requested_count in 0..2 {
                        let seen = observation(state, kind, requested_count);
                        decisions.push(policy::decide_on_sibling(scope, &seen));
                    }
                }
            }
        }
        Self { decisions, known }
    }

    #[inline]
    fn get(
        &self,
        scope: PassScope,
        state: policy::VcpuState,
        kind: usize,
        requested: bool,
    ) -> SiblingDecision {
        let row = (scope as usize * STATES + state as usize) * WAITING_KINDS + kind;
        self.decisions[row * 2 + usize::from(requested)]
    }
}

/// Of siblings that wait for a pCPU, and aren't requested.
fn is_stranded(kind: Kind) -> bool {
    policy::sibling_is_stranded(&SiblingObservation {
        state: policy::VcpuState::Runnable.into(),
        preempted: u32::from(kind.preempted),
        yielded: u32::from(kind.yielded),
        guest_class: policy::Code::raw(kind.class as u32),
        ..SiblingObservation::default()
    })
}

#[inline]
fn answer_of(known: bool, owes: bool) -> SiblingAnswer {
    match (known, owes) {
        (false, _) => SiblingAnswer::Unknown,
        (true, true) => SiblingAnswer::Owed,
        (true, false) => SiblingAnswer::Given,
    }
}

/// How the result of a pass is known without a look at any sibling.
pub struct ShortCut {
    /// The kinds of waiting siblings (`Waiting::kinds`) that `decide_on_sibling` doesn't pass over. With none
    /// of them there, a pass requests nobody.
    pub kinds_that_matter: u64,
    /// Each of these is requested, if there is room, and if nobody was in this pass.
    pub each_is_requested: bool,
    /// Whether running siblings that owe an answer count as help.
    pub answering_help: bool,
}

impl ShortCut {
    /// `None`: it isn't so simple, and a pass must look at all.
    fn new(siblings: &SiblingAnswers, scope: PassScope) -> Option<Self> {
        use SiblingDecision::{AlreadyRequested, Answering, NotCritical, NotPreempted, Yielded};
        use policy::VcpuState::{Blocked, Micro, Pending, Runnable, Running};
        let kinds = 0..WAITING_KINDS;
        let answer = |state, kind| siblings.get(scope, state, kind, false);
        let passed_over =
            |decision| matches!(decision, NotPreempted | NotCritical | Yielded | SiblingDecision::Answered);
        let owing = |kind: &usize| Kind::of_number(*kind).owes_answer;
        let answering_help = kinds.clone().filter(owing).all(|kind| answer(Running, kind) == Answering);
        let is_simple = kinds.clone().all(|kind| {
            let running = if answering_help && owing(&kind) {
                answer(Running, kind) == Answering
            } else {
                passed_over(answer(Running, kind))
            };
            let members_help = [Pending, Micro].iter().all(|&state| answer(state, kind) == AlreadyRequested);
            running && members_help && passed_over(answer(Blocked, kind))
        });
        let mut those_that_matter = kinds.filter(|&kind| !passed_over(answer(Runnable, kind)));
        let kinds_that_matter = those_that_matter.clone().fold(0, |mask, kind| mask | 1 << kind);
        let each_is_requested =
            those_that_matter.all(|kind| answer(Runnable, kind) == SiblingDecision::Request);
        is_simple.then_some(Self { kinds_that_matter, each_is_requested, answering_help })
    }
}

/// Answers of `decide_on_yield` for one size of the micro pool, and what each is counted as: asked once, then
/// looked up.
struct YieldAnswers(Vec<(YieldDecision, UrgentEvent)>);

impl YieldAnswers {
    fn new(paper_rules: u32, micro_pcpu_count: usize) -> Self {
        let causes = 0..YieldCause::ALL.len() as u32;
        let seen = causes.flat_map(|cause| {
            (0..CLASSES as u32).flat_map(move |class| {
                (0..2).map(move |interrupts_enabled| YieldObservation {
                    cause: policy::Code::raw(cause),
                    guest_class: policy::Code::raw(class),
                    interrupts_enabled,
                    micro_pcpu_count: micro_pcpu_count as u32,
                    pass_active: 0,
                    paper_rules,
                })
            })
        });
        let answered = seen.map(|seen| {
            let decision = policy::decide_on_yield(&seen);
            (decision, policy::urgent_event_of_yield(&seen, &decision))
        });
        Self(answered.collect())
    }

    #[inline]
    fn get(&self, cause: YieldCause, host: &HostVcpu) -> YieldDecision {
        self.0[index_of(cause, host.class, host.interrupts_enabled)].0
    }

    /// What Algorithm 1 counts such a yield as.
    #[inline]
    fn urgent_event(
        &self,
        cause: YieldCause,
        class: policy::GuestClass,
        interrupts_enabled: bool,
    ) -> UrgentEvent {
        self.0[index_of(cause, class, interrupts_enabled)].1
    }
}

#[inline]
fn index_of(cause: YieldCause, class: policy::GuestClass, interrupts_enabled: bool) -> usize {
    (cause as usize * CLASSES + class as usize) * 2 + usize::from(interrupts_enabled)
}
