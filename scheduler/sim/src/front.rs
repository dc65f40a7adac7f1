//! Who decides at arrival: the gate, or a baseline.

use scheduler::{
    Admission, AdmissionMode, CacheChanges, CostModel, Forecast, Gate, GateConfig, IsolationConfig,
    KindConfig, Micros, OutputLength, Request, RequestId, Rule, SchedulerConfig, Settled,
    TenantTable, Terminal, Timeline, policy,
};

/// The rule of admission.
#[derive(Clone, Debug)]
pub enum Admitting {
    /// The gate.
    Gate(AdmissionMode, KindConfig),
    /// As long as fewer requests than this are inside; `usize::MAX` refuses nobody. It is told the
    /// true lengths.
    Cap(usize),
    /// The requests marked in this log, by id.
    Log(Vec<bool>),
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It enters; a baseline forecasts nothing.
    Admitted(Option<Forecast>),
    /// Refused; baselines have one rule, a bound.
    Shed(Rule),
    /// Could not be served in time, or at all, on an idle device.
    Impossible,
}

/// An [`Admitting`] rule at work.
#[derive(Debug)]
pub(crate) enum Front {
    Gate(Box<Gate>),
    Cap(usize),
    Log(Vec<bool>),
}

impl Front {
    pub(crate) fn new(
        rule: &Admitting,
        config: SchedulerConfig,
        isolation: IsolationConfig,
        policy: &str,
        cost: CostModel,
    ) -> Front {
        match rule {
            Admitting::Gate(mode, kinds) => {
                let policy = policy::by_name(policy).expect("the scheduler has it too");
                let config =
                    GateConfig { kinds: *kinds, isolation, ..GateConfig::new(*mode, config) };
                Front::Gate(Box::new(Gate::new(config, policy, cost)))
            }
            Admitting::Cap(most) => Front::Cap(*most),
            Admitting::Log(log) => Front::Log(log.clone()),
        }
    }

    pub(crate) fn with_tenants(self, tenants: &TenantTable) -> Front {
        match self {
            Front::Gate(gate) => Front::Gate(Box::new(gate.with_tenants(tenants))),
            other => other,
        }
    }

    pub(crate) fn gate(&self) -> Option<&Gate> {
        match self {
            Front::Gate(gate) => Some(gate),
            Front::Cap(_) | Front::Log(_) => None,
        }
    }

    /// Decides on a request that will have `actual` tokens while `inside` others are under way.
    pub(crate) fn offer(&mut self, request: &mut Request, actual: u32, inside: usize) -> Decision {
        let enters = match self {
            Front::Gate(gate) => {
                let sequences = request.sequences.len() as u32;
                let early = gate.early(request.arrival, &least(request), sequences).is_some();
                let admission = gate.admit(request.arrival, request);
                let admitted = matches!(admission, Admission::Admit(_));
                assert!(!(early && admitted), "refused before it was known, admitted after");
                return decision(admission);
            }
            Front::Cap(most) => inside < *most,
            Front::Log(log) => log[request.id.0 as usize],
        };
        if !enters {
            return Decision::Shed(Rule::Bound);
        }
        for spec in &mut request.sequences {
            spec.output.predicted = actual;
        }
        Decision::Admitted(None)
    }

    pub(crate) fn install(
        &mut self,
        now: Micros,
        cost: CostModel,
        timeline: impl FnOnce() -> Timeline,
        changes: CacheChanges,
    ) {
        if let Front::Gate(gate) = self {
            gate.install(now, timeline(), cost);
            gate.update_cache(changes);
        }
    }

    pub(crate) fn finish(
        &mut self,
        now: Micros,
        id: RequestId,
        terminal: Terminal,
        outputs: &[u32],
        first: Option<Micros>,
        last: Option<Micros>,
    ) -> Option<Settled> {
        match self {
            Front::Gate(gate) => gate.finish(now, id, terminal, outputs, first, last),
            Front::Cap(_) | Front::Log(_) => None,
        }
    }
}

/// What may be known of a request before its prompts are tokenised: each once, and that they are
/// at least so long. How much is known differs from request to request.
fn least(request: &Request) -> Request {
    let mut least = request.clone();
    least.sequences.dedup_by_key(|spec| spec.prompt);
    for spec in &mut least.sequences {
        let part = 1 + request.id.0 as u32 % 3;
        spec.prompt_tokens = spec.prompt_tokens.div_ceil(part);
        spec.output = OutputLength { min: 1, max: 1, predicted: 1, hint: None, exact: true };
    }
    least
}

/// Checks what holds of every answer of the gate.
fn decision(admission: Admission) -> Decision {
    match admission {
        Admission::Admit(forecast) => {
            assert!(forecast.first_token <= forecast.last_token);
            Decision::Admitted(Some(forecast))
        }
        Admission::Shed(shed) => {
            assert!((1_000..=60_000_000).contains(&shed.retry_after.0));
            Decision::Shed(shed.rule)
        }
        Admission::Unsatisfiable { predicted, budget, .. } => {
            assert!(predicted > budget);
            Decision::Impossible
        }
        Admission::NeverFits { needed, available } => {
            assert!(needed > available);
            Decision::Impossible
        }
    }
}
