//! Whose turn it is: the round robin over what waits.

use core::cmp::Reverse;

use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::time::Micros;

impl Scheduler {
    /// Gives those who borrow their rounds; so far they wait in the policy's order.
    pub(crate) fn share_among_tenants(&mut self) {
        let mut waiting = core::mem::take(&mut self.waiting);
        self.service.begin(waiting.iter().map(|seq| seq.tenant));
        let mut rounds = self.service.rounds();
        for seq in waiting.iter_mut().rev().filter(|seq| seq.borrows) {
            let round = rounds.next(seq.tenant, self.work(seq));
            seq.rank = seq.rank.borrowed(round);
        }
        waiting.sort_by_key(|seq| Reverse((seq.rank, seq.arrival, seq.id)));
        self.waiting = waiting;
    }

    /// A waiting sequence starts, at its tenant's expense.
    pub(crate) fn charge(&mut self, seq: &Sequence) {
        let work = self.work(seq);
        self.service.charge(seq.tenant, work);
    }

    /// What a waiting sequence will take of a full device: the time that it adds, and its part of
    /// its steps.
    fn work(&self, seq: &Sequence) -> Micros {
        let (known, more) = (seq.known(), seq.remaining() - 1);
        let context = u64::from(known) + u64::from(more / 2);
        let decode = self.cost.decode_work_ns(context).saturating_mul(more.into()) / 1_000;
        let part = self.cost.fixed_ns.saturating_mul(more.into()) / u64::from(self.config.slots());
        self.cost.prefill_work(0, known).plus(Micros(decode)).plus(Micros(part / 1_000))
    }
}
