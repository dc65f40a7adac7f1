//! A small thread pool for SPMD regions.
//!
//! A forward pass is some hundred short regions, each run by all threads together, with a serial
//! microsecond between them. Handing work over must therefore cost about a microsecond, yet an idle
//! server must use no processor time, and a busy one must leave room to the network threads. So
//! whoever waits first spins for some tens of microseconds, then yields its core to others for half
//! a millisecond, then parks.
//!
//! A region takes whoever comes: its caller starts at once, workers join while there is work left,
//! and the caller waits only for those who have joined. A worker that sleeps, or whose core is busy
//! with something else, delays nobody.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Most threads of a pool.
const MAX_THREADS: usize = 256;
/// Turns of the spin loop before yielding; a turn is some 15 to 40 ns.
const SPINS: usize = 2000;
/// How long a waiter yields before it parks: longer than the gap between two steps.
const YIELD: Duration = Duration::from_micros(500);

/// A fixed set of threads that work on one region at a time, all of them together.
///
/// A panic in a task reaches the caller of the region once every thread has left it; the pool
/// stays usable. A region that is started while another one runs (from within a task, or by another
/// thread) runs on its caller alone.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    running: Mutex<()>,
}

/// What the caller and the workers share.
///
/// `state` is the number of the region in the upper half, whether it is open, and how many workers
/// are in it. The caller writes `job` while the region is closed and empty, then opens the next
/// one; a worker reads it after it has entered, which it can do only while the region is open.
#[derive(Debug)]
struct Shared {
    state: State,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

/// On its own cache line, because workers spin on it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct State(AtomicU64);

const REGION: u64 = 1 << 32;
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

struct Job {
    task: *const (dyn Fn(usize) + Sync),
    caller: Thread,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("caller", &self.caller).finish_non_exhaustive()
    }
}

// SAFETY: `job` is the only part that is not `Sync` by itself; `state` orders its writes and reads
// (see there), and the task that it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: the task is `Sync`, so a pointer to it may be used from another thread.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads in all (1 to 256); the caller of [`Pool::run`] is one of them.
    /// Where the system refuses to start as many, the pool has those that it got.
    #[must_use]
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            state: State::default(),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let workers = (1..threads.min(MAX_THREADS)).map_while(|worker| spawn(worker, &shared));
        Pool { workers: workers.collect(), shared, running: Mutex::new(()) }
    }

    /// How many threads take part.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(worker)` once for each worker in `0..threads()` and returns when all are done.
    /// A thread may run several of them, one after the other, so they must not wait for each other.
    pub fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        self.region(&|_thread| {
            loop {
                let worker = next.fetch_add(1, Ordering::Relaxed);
                if worker >= self.threads() {
                    break;
                }
                task(worker);
            }
        });
    }

    /// Runs `work(thread)` on the caller (thread 0) and on every worker that comes before the
    /// caller's call returns. So `work` takes from a common store until that is empty.
    fn region(&self, work: &(dyn Fn(usize) + Sync)) {
        let Ok(guard) = self.running.try_lock() else {
            return work(0);
        };
        if self.workers.is_empty() {
            return work(0);
        }
        self.open(work);
        let own = panic::catch_unwind(AssertUnwindSafe(|| work(0)));
        self.shared.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        wait_until(|| self.shared.state.0.load(Ordering::Acquire) & INSIDE == 0);
        let theirs = lock(&self.shared.panic).take();
        // Released before unwinding, or the lock would be poisoned and the pool serial for good.
        drop(guard);
        if let Some(payload) = own.err().or(theirs) {
            panic::resume_unwind(payload);
        }
    }

    /// Opens the next region. The caller must not return before it is closed and empty.
    fn open(&self, work: &(dyn Fn(usize) + Sync)) {
        let task: *const (dyn Fn(usize) + Sync + '_) = work;
        // SAFETY: only the lifetime changes; `region` outlasts every use, see there.
        let task: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        // SAFETY: `running` is held and the region is closed and empty, so nobody else touches it.
        unsafe { *self.shared.job.get() = Some(Job { task, caller: thread::current() }) };
        // Closed and empty: adding carries into the number only.
        self.shared.state.0.fetch_add(REGION + OPEN, Ordering::Release);
        for worker in &self.workers {
            worker.thread().unpark();
        }
    }

    /// Runs `task` for every item in `0..items`, handing out single items in order: for items that
    /// take long or differ in length.
    pub fn for_each(&self, items: usize, task: impl Fn(usize) + Sync) {
        self.for_ranges(items, 1, |range| range.for_each(&task));
    }

    /// Splits `0..items` into ranges of `size` (the last may be shorter) and runs `task` for each.
    /// A thread that is held up takes fewer, so a shared core does not stall the others.
    pub fn for_ranges(&self, items: usize, size: usize, task: impl Fn(Range<usize>) + Sync) {
        self.for_ranges_with_worker(items, size, |_worker, range| task(range));
    }

    /// Like [`Pool::for_ranges`]; the task also learns which thread
    /// runs it, a number below [`Pool::threads`].
    pub fn for_ranges_with_worker(
        &self,
        items: usize,
        size: usize,
        task: impl Fn(usize, Range<usize>) + Sync,
    ) {
        let size = size.max(1);
        let next = AtomicUsize::new(0);
        let work = |worker: usize| {
            loop {
                let start = next.fetch_add(size, Ordering::Relaxed);
                if start >= items {
                    break;
                }
                task(worker, start..items.min(start + size));
            }
        };
        if items <= size { work(0) } else { self.region(&work) }
    }

    /// Splits `out` into rows of `row_len` (the last may be shorter) and runs `task(row, slice)`
    /// for each, on all threads.
    pub fn for_rows<T: Send>(
        &self,
        out: &mut [T],
        row_len: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let row_len = row_len.max(1);
        let len = out.len();
        let out = Disjoint::new(out);
        let rows = len.div_ceil(row_len);
        self.for_ranges(rows, self.share(rows), |range| {
            for row in range {
                let start = row * row_len;
                // SAFETY: each row is handed out once, and rows do not overlap.
                task(row, unsafe { out.slice(start, row_len.min(len - start)) });
            }
        });
    }

    /// A range size that cuts `items` into about four ranges a thread.
    #[must_use]
    pub fn share(&self, items: usize) -> usize {
        if self.workers.is_empty() { items.max(1) } else { items.div_ceil(4 * self.threads()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.state.0.fetch_add(REGION, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches every panic of its tasks, so it ends in the ordinary way.
            let _ = worker.join();
        }
    }
}

fn spawn(worker: usize, shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let builder = thread::Builder::new().name(format!("sluice-compute-{worker}"));
    builder.spawn(move || shared.work(worker)).ok()
}

impl Shared {
    /// The life of a worker: each region at most once, until the pool stops.
    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            wait_until(|| self.state.0.load(Ordering::Acquire) / REGION != seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let (region, entered) = self.enter();
            seen = region;
            if entered {
                self.take_part(worker);
            }
        }
    }

    /// Enters the current region unless it is closed already; says which one it is.
    fn enter(&self) -> (u64, bool) {
        let mut state = self.state.0.load(Ordering::Acquire);
        while state & OPEN != 0 {
            let inside = state + 1;
            match self.state.0.compare_exchange_weak(
                state,
                inside,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return (state / REGION, true),
                Err(now) => state = now,
            }
        }
        (state / REGION, false)
    }

    fn take_part(&self, worker: usize) {
        // SAFETY: this worker is in the region, so the job is set and stays until it has left.
        let job = unsafe { (*self.job.get()).as_ref() }.expect("a region opens with its job set");
        let caller = job.caller.clone();
        // SAFETY: the caller keeps the task alive until every worker has left.
        let task = unsafe { &*job.task };
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| task(worker))) {
            lock(&self.panic).get_or_insert(payload);
        }
        let left = self.state.0.fetch_sub(1, Ordering::AcqRel) - 1;
        if left & (OPEN | INSIDE) == 0 {
            caller.unpark();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spins, then yields, then parks until `done`; whoever makes it so unparks the waiter afterwards.
fn wait_until(done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        hint::spin_loop();
    }
    let since = Instant::now();
    while since.elapsed() < YIELD {
        if done() {
            return;
        }
        thread::yield_now();
    }
    while !done() {
        thread::park();
    }
}

/// A slice whose disjoint parts several threads write at once.
#[derive(Debug)]
pub(crate) struct Disjoint<'a, T> {
    data: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]` whose parts are handed out without overlap (the contract of
// `slice`), so sharing it is sending parts of a `&mut [T]`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { data: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// The part `start..start + len`.
    ///
    /// # Safety
    /// No other part that is in use overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part out of bounds");
        // SAFETY: in bounds (above), exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn every_worker_runs_once_in_every_region() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            let counts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for region in 1..200 {
                pool.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == region));
            }
        }
    }

    #[test]
    fn rows_and_ranges_cover_everything_once() {
        let pool = Pool::new(3);
        for (len, row_len) in [(0, 4), (1, 4), (4, 4), (203, 4), (64, 1)] {
            let mut out = vec![0; len];
            pool.for_rows(&mut out, row_len, |row, part| {
                part.iter_mut().for_each(|value| *value += row + 1);
            });
            assert!(out.iter().enumerate().all(|(i, &value)| value == i / row_len + 1));
        }
        let sum = AtomicUsize::new(0);
        pool.for_each(1000, |item| {
            sum.fetch_add(item, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 999 * 500);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for culprit in 0..3 {
            let task = |worker| assert!(worker != culprit, "worker {worker} fails");
            let caught = panic::catch_unwind(AssertUnwindSafe(|| pool.run(&task)));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("worker {culprit} fails"));
            let alive = AtomicUsize::new(0);
            pool.run(&|_| {
                alive.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(alive.into_inner(), 3);
        }
    }

    #[test]
    fn a_region_within_a_region_runs_on_its_caller() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        pool.run(&|_| {
            pool.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 4);
    }

    #[test]
    fn workers_come_also_when_they_were_parked() {
        let pool = Pool::new(2);
        for nap in [Duration::ZERO, 2 * YIELD, 20 * YIELD] {
            thread::sleep(nap);
            // Both items have to be under way at once, so two threads have to be there.
            let both = Barrier::new(2);
            pool.for_each(2, |_| {
                both.wait();
            });
        }
    }
}
