//! Scheduling policies: three questions, one file each.

use alloc::boxed::Box;

/// Answers who is next, whom to preempt and how big the next step may be. (The scheduler's owner
/// defines the methods; other crates only pass policies by name.)
pub trait SchedulerPolicy: Send {
    /// The name on the command line.
    fn name(&self) -> &'static str;
}

/// Names of the shipped policies, default first.
pub const NAMES: [&str; 2] = ["deadline", "fcfs"];

/// The policy called `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn SchedulerPolicy>> {
    todo!()
}
