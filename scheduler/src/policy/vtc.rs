//! Virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024):
//! the tenant that was served least goes first.
//!
//! Each tenant has a counter of tokens that were served to it, output tokens counting twice. A
//! prompt is charged when its prefill begins, an output token when it comes; nothing has to be
//! predicted. A tenant that comes back after a while is lifted to the least counter of those that
//! wait, so it cannot save up what it did not use. Of two tenants that always have something
//! waiting, neither is ever ahead by more than twice a longest prompt and the output tokens of a
//! whole batch (weighted), as long as nobody is passed for want of blocks; the paper's bound counts
//! the prompts of the whole batch.
//! Whoever waits alone gets the whole device.
//!
//! Within a tenant it is first come, first served. So where a sequence stands depends on those of
//! its tenant before it: after each of them the counter will be higher by its prompt.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Change, Rank, SchedulerPolicy, View, cheapest};
use crate::sequence::Sequence;
use crate::tenants::TenantId;
use crate::time::Micros;

/// What an input token and an output token count.
const INPUT: u64 = 1;
const OUTPUT: u64 = 2;

/// One tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    /// Weighted tokens that it was served, lifted.
    served: u64,
    /// Sequences that wait.
    waiting: u64,
    /// Weighted prompts of those among them that were never started.
    ahead: u64,
}

/// Least served tenant first.
#[derive(Clone, Debug, Default)]
pub struct VtcPolicy {
    /// One for each tenant that was ever seen; ids are small numbers.
    accounts: BTreeMap<TenantId, Account>,
    /// The counter of the last tenant that had nothing waiting any more.
    left: u64,
}

impl VtcPolicy {
    fn account(&self, tenant: TenantId) -> Account {
        self.accounts.get(&tenant).copied().unwrap_or_default()
    }

    /// The counter of a tenant, lifted if it has nothing waiting.
    fn counter(&self, tenant: TenantId) -> u64 {
        let account = self.account(tenant);
        if account.waiting > 0 {
            return account.served;
        }
        let waiting = self.accounts.values().filter(|account| account.waiting > 0);
        account.served.max(waiting.map(|account| account.served).min().unwrap_or(self.left))
    }

    fn prompt(seq: &Sequence) -> u64 {
        u64::from(seq.prompt_tokens) * INPUT
    }

    /// The sequence waits no more.
    fn leave(&mut self, seq: &Sequence) {
        let Some(account) = self.accounts.get_mut(&seq.tenant) else { return };
        account.waiting = account.waiting.saturating_sub(1);
        if seq.preemptions == 0 {
            account.ahead = account.ahead.saturating_sub(Self::prompt(seq));
        }
        if account.waiting == 0 {
            self.left = account.served;
        }
    }
}

impl SchedulerPolicy for VtcPolicy {
    fn name(&self) -> &'static str {
        "vtc"
    }

    /// That of a sequence which comes now, behind all others of its tenant.
    fn rank(&self, _: &View<'_>, seq: &Sequence) -> Option<Rank> {
        let ahead = self.account(seq.tenant).ahead;
        Some(Rank::of(seq, Micros(self.counter(seq.tenant).saturating_add(ahead))))
    }

    fn best_rank(&self, view: &View<'_>, seq: &Sequence) -> Rank {
        self.rank(view, seq).unwrap_or(Rank::LAST)
    }

    /// As if each of a tenant's sequences had been charged before the next one is asked for.
    fn spread(&self, waiting: &mut [Sequence]) {
        let mut order: Vec<usize> = (0..waiting.len()).collect();
        order.sort_unstable_by_key(|i| (waiting[*i].arrival, waiting[*i].id));
        let mut counters: BTreeMap<TenantId, u64> = BTreeMap::new();
        for i in order {
            let seq = &mut waiting[i];
            let counter =
                counters.entry(seq.tenant).or_insert_with(|| self.account(seq.tenant).served);
            seq.rank = Rank::of(seq, Micros(*counter));
            if seq.preemptions == 0 {
                *counter = counter.saturating_add(Self::prompt(seq));
            }
        }
    }

    /// One of the tenant that was served most.
    fn victim(&self, view: &View<'_>, candidates: &[&Sequence]) -> Option<usize> {
        cheapest(view, candidates, |seq| self.account(seq.tenant).served)
    }

    fn observe(&mut self, seq: &Sequence, change: Change) {
        let counter = self.counter(seq.tenant);
        match change {
            Change::Queued => {
                let account = self.accounts.entry(seq.tenant).or_default();
                account.served = counter;
                account.waiting += 1;
                account.ahead = account.ahead.saturating_add(Self::prompt(seq));
            }
            Change::Started => {
                if let Some(account) = self.accounts.get_mut(&seq.tenant)
                    && seq.preemptions == 0
                {
                    account.served = account.served.saturating_add(Self::prompt(seq));
                }
                self.leave(seq);
            }
            Change::Served(chunk) if chunk.sample => {
                let account = self.accounts.entry(seq.tenant).or_default();
                account.served = account.served.saturating_add(OUTPUT);
            }
            Change::Served(_) => {}
            Change::Preempted => self.accounts.entry(seq.tenant).or_default().waiting += 1,
            Change::Left => self.leave(seq),
        }
    }

    fn state(&self) -> Vec<u64> {
        let account = |(tenant, account): (&TenantId, &Account)| {
            [u64::from(tenant.0), account.served, account.waiting, account.ahead]
        };
        [self.left].into_iter().chain(self.accounts.iter().flat_map(account)).collect()
    }

    fn restore(&mut self, state: &[u64]) -> bool {
        self.accounts.clear();
        let Some((left, accounts)) = state.split_first() else { return false };
        self.left = *left;
        let (accounts, rest) = accounts.as_chunks();
        for [tenant, served, waiting, ahead] in accounts {
            let Ok(tenant) = u8::try_from(*tenant) else { return false };
            let account = Account { served: *served, waiting: *waiting, ahead: *ahead };
            self.accounts.insert(TenantId(tenant), account);
        }
        rest.is_empty()
    }
}
