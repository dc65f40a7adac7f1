//! A small thread pool for SPMD regions: spins briefly, then yields, then parks.

/// A fixed set of threads that run one task at a time, all of them together.
#[allow(missing_debug_implementations)]
pub struct Pool {}

impl Pool {
    /// A pool of `threads` threads in all; the caller of [`Pool::run`] is one of them.
    #[must_use]
    pub fn new(threads: usize) -> Pool {
        todo!()
    }
    /// How many threads take part.
    #[must_use]
    pub fn threads(&self) -> usize {
        todo!()
    }
    /// Runs `task(worker)` once on every thread and returns when all are done.
    pub fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        todo!()
    }
}
