//! An engine on a runner that tests can hold up and break.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use models::{Chunk, ModelRunner, RunnerError, RunnerLimits};
use scheduler::{
    AdmissionMode, Class, ClassConfig, ClassTable, CostModel, Deadline, FinishReason,
    IsolationConfig, KindConfig, Micros, RetryConfig, TenantId, TenantTable,
};

use crate::simulated::{SimulatedOptions, SimulatedRunner};
use crate::*;

/// The model's end token in these tests; the simulated runner never says it.
pub(crate) const EOS: u32 = 256;

pub(crate) const LIMITS: RunnerLimits = RunnerLimits {
    vocab_size: 257,
    max_model_len: 256,
    block_size: 16,
    num_blocks: 64,
    max_batched_tokens: 64,
    max_chunks: 32,
};

/// What the runner does in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Error,
    Panic,
    DeviceLost,
    NotFinite,
    TooFewRows,
}

/// How the runner behaves once the engine has started.
pub(crate) type Script = Box<dyn FnMut(&[Chunk<'_>]) -> Fault + Send>;

/// The simulated runner, with faults by script, held up until a step is allowed.
struct RiggedRunner {
    inner: SimulatedRunner,
    armed: Arc<AtomicBool>,
    script: Script,
    allowed: Receiver<()>,
}

impl ModelRunner for RiggedRunner {
    fn name(&self) -> &'static str {
        "rigged"
    }

    fn limits(&self) -> RunnerLimits {
        self.inner.limits()
    }

    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), RunnerError> {
        self.inner.run(chunks, logits)?;
        if !self.armed.load(Ordering::SeqCst) {
            return Ok(());
        }
        // Once the sender is gone, steps run freely.
        let _ = self.allowed.recv();
        match (self.script)(chunks) {
            Fault::None => {}
            Fault::Error => return Err(RunnerError::Step("planted".into())),
            Fault::Panic => panic!("planted"),
            Fault::DeviceLost => return Err(RunnerError::DeviceLost("planted".into())),
            Fault::NotFinite => {
                if let Some(logit) = logits.first_mut() {
                    *logit = f32::NAN;
                }
            }
            Fault::TooFewRows => logits.truncate(logits.len().saturating_sub(1)),
        }
        Ok(())
    }
}

/// Remembers what the engine reports.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) requests: Mutex<Vec<RequestReport>>,
    pub(crate) panic_at_step: AtomicBool,
    first_tokens: AtomicUsize,
}

impl Observer for Log {
    fn step(&self, report: &StepReport) {
        assert!(report.tokens > 0);
        assert!(!self.panic_at_step.load(Ordering::SeqCst), "planted");
    }

    fn token_gap(&self, _gap: Micros) {}

    fn first_token(&self, report: &FirstToken) {
        assert!(report.arrival <= report.scheduled && report.scheduled <= report.at);
        self.first_tokens.fetch_add(1, Ordering::SeqCst);
    }

    fn request(&self, report: &RequestReport) {
        self.requests.lock().expect("not poisoned").push(report.clone());
    }
}

/// An engine under test.
pub(crate) struct Rig {
    pub(crate) handle: Handle,
    pub(crate) log: Arc<Log>,
    /// Lets one step run for each message; dropping it lets all run.
    pub(crate) allow: Option<Sender<()>>,
    runtime: tokio::runtime::Runtime,
}

/// How a stream ended, and what came before that.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// Tokens by choice.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// Ends by choice.
    pub(crate) finished: Vec<Option<FinishReason>>,
    pub(crate) expired: bool,
    pub(crate) failed: Option<String>,
}

impl Rig {
    /// Steps run freely and without faults.
    pub(crate) fn free() -> Rig {
        Rig::held_up(4).run_freely()
    }

    /// Steps run one by one and without faults.
    pub(crate) fn held_up(max_num_seqs: u32) -> Rig {
        Rig::new(max_num_seqs, LIMITS, Box::new(|_| Fault::None))
    }

    /// Everything that fits into the queues is admitted.
    pub(crate) fn new(max_num_seqs: u32, limits: RunnerLimits, script: Script) -> Rig {
        Rig::with_gate(AdmissionMode::None, max_num_seqs, limits, script)
    }

    pub(crate) fn with_gate(
        admission: AdmissionMode,
        max_num_seqs: u32,
        limits: RunnerLimits,
        script: Script,
    ) -> Rig {
        Rig::recorded(None, admission, max_num_seqs, limits, script)
    }

    pub(crate) fn recorded(
        record: Option<record::Options>,
        admission: AdmissionMode,
        max_num_seqs: u32,
        limits: RunnerLimits,
        script: Script,
    ) -> Rig {
        Rig::with_policy("deadline", record, admission, max_num_seqs, limits, script)
    }

    pub(crate) fn with_policy(
        policy: &str,
        record: Option<record::Options>,
        admission: AdmissionMode,
        max_num_seqs: u32,
        limits: RunnerLimits,
        script: Script,
    ) -> Rig {
        let class = ClassConfig { max_waiting: 2_000, ..ClassConfig::default() };
        let config = Config {
            max_num_seqs,
            max_num_batched_tokens: limits.max_batched_tokens,
            classes: ClassTable([class; 2]),
            admission,
            tenants: TenantTable::default(),
            kinds: KindConfig::default(),
            isolation: IsolationConfig::default(),
            retries: RetryConfig::default(),
            policy: policy.into(),
            eos: vec![EOS],
            prefix_caching: true,
            record,
            cost: None,
        };
        let cost = CostModel {
            fixed_ns: 0,
            per_seq_ns: 0,
            per_context_token_ps: 0,
            per_prefill_token_ns: 0,
            per_prefill_span_ps: 0,
        };
        let options = SimulatedOptions { cost, noise_permille: 0, seed: 3, limits };
        let armed = Arc::new(AtomicBool::new(false));
        let (allow, allowed) = unbounded();
        let runner = RiggedRunner {
            inner: SimulatedRunner::new(options),
            armed: Arc::clone(&armed),
            script,
            allowed,
        };
        let log = Arc::new(Log::default());
        let observer: Arc<dyn Observer> = Arc::clone(&log) as _;
        let handle = start(Box::new(runner), config, observer, &mut |_| {}).expect("starts");
        armed.store(true, Ordering::SeqCst);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        Rig { handle, log, allow: Some(allow), runtime }
    }

    pub(crate) fn run_freely(mut self) -> Rig {
        self.allow = None;
        self
    }

    /// Lets one step run.
    pub(crate) fn allow_step(&self) {
        self.allow.as_ref().expect("held up").send(()).expect("the runner lives");
    }

    pub(crate) fn submit(&self, submission: Submission) -> TokenStream {
        self.handle.submit(submission).expect("admitted")
    }

    pub(crate) fn next(&self, stream: &mut TokenStream) -> Option<Update> {
        self.runtime.block_on(stream.recv())
    }

    /// The next update, if it is there.
    pub(crate) fn next_now(&self, stream: &mut TokenStream) -> Option<Update> {
        let mut next = pin!(stream.recv());
        self.runtime.block_on(poll_fn(|context| match next.as_mut().poll(context) {
            Poll::Ready(update) => Poll::Ready(update),
            Poll::Pending => Poll::Ready(None),
        }))
    }

    /// Reads a stream to its end.
    pub(crate) fn read(&self, mut stream: TokenStream) -> Answer {
        let mut answer = Answer::default();
        while let Some(update) = self.next(&mut stream) {
            let Answer { tokens, finished, expired, failed } = &mut answer;
            match update {
                Update::Token { choice, token, .. } => {
                    let index = choice as usize;
                    tokens.resize(tokens.len().max(index + 1), Vec::new());
                    tokens[index].push(token);
                }
                Update::Finished { choice, reason, .. } => {
                    let index = choice as usize;
                    finished.resize(finished.len().max(index + 1), None);
                    assert_eq!(finished[index].replace(reason), None, "a choice ends once");
                }
                Update::Cached(_) => panic!("the stream keeps it"),
                Update::Expired => *expired = true,
                Update::Failed(why) => *failed = Some(why),
            }
        }
        answer
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait(&self, what: &str, condition: impl Fn(&Rig) -> bool) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !condition(self) {
            assert!(Instant::now() < patience, "{what}: {:?}", self.handle.snapshot());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits for `reports` requests to have ended, then checks that each of them ended once and
    /// that nothing is left of them.
    pub(crate) fn check_idle(&self, reports: usize) -> Vec<RequestReport> {
        let ended = |rig: &Rig| rig.log.requests.lock().expect("not poisoned").len() >= reports;
        self.wait("requests end", ended);
        self.wait("idle", |rig| rig.handle.snapshot().step_age == Micros(0));
        let snapshot = self.handle.snapshot();
        assert_eq!((snapshot.counts.waiting, snapshot.counts.running), (0, 0));
        assert_eq!(snapshot.counts.free_blocks, snapshot.counts.num_blocks);
        assert_eq!(snapshot.outstanding, [Micros(0); 2]);
        let requests = self.log.requests.lock().expect("not poisoned").clone();
        let mut ids: Vec<_> = requests.iter().map(|report| report.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), requests.len()), (reports, reports), "each ends exactly once");
        assert!(requests.iter().all(|report| report.settled.is_some()), "the gate knew them");
        let begun = requests.iter().filter(|report| report.first_token.is_some()).count();
        let told = self.log.first_tokens.load(Ordering::SeqCst);
        assert_eq!(told, begun, "each begins at most once");
        requests
    }
}

/// `n` answers to each prompt of these lengths, of `max_tokens` tokens each.
pub(crate) fn submission(prompts: &[usize], n: u32, max_tokens: u32) -> Submission {
    let prompt = |len: usize| Prompt { tokens: (0..len as u32).map(|i| i * 7 % 250).collect(), n };
    Submission {
        class: Class::Latency,
        tenant: TenantId::DEFAULT,
        arrival: Micros(0),
        deadline: Deadline::default(),
        retry: 0,
        origin: 0,
        prompts: prompts.iter().map(|&len| prompt(len)).collect(),
        cache_salt: None,
        sampling: SamplingParams { max_tokens, seed: 11, ..SamplingParams::default() },
        outlook: Outlook::default(),
        name: "".into(),
    }
}
