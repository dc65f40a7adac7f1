//! What each tenant may ask for, and who is within its reservation.
//!
//! A reservation of a share s is a device of its own, s times as fast (`share.rs`). Two are kept
//! for each tenant: one that does all work admitted within the reservation, and one that does the
//! prefills among it. A request is within the reservation if it would have its tokens in time
//! there and nobody else would be late by it; otherwise it borrows. Reservations are at most the
//! whole device together, so what is within them can be served in time whatever those who borrow
//! ask for.

use alloc::vec::Vec;

use super::share::Share;
use super::{TenantConfig, TenantId, TenantTable};
use crate::ledger::Reservation;
use crate::request::{Deadline, Request};
use crate::retry::Fading;
use crate::time::Micros;

/// Over what time shares are measured.
const WINDOW: Micros = Micros(10_000_000);

/// Work that may be admitted beyond a cap at once, as time of the capped device; and how far a
/// reservation may be ahead with answers that have no deadline for their last token.
const DEPTH: Micros = Micros(10_000_000);

/// Longest wait that a client is told.
const LONGEST: Micros = Micros(60_000_000);

/// At most this much of the device is kept for the reservations of others, per mille.
const MOST_KEPT: u32 = 900;

/// What a request takes of a full device: its work, and its part of what steps cost whoever is in
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Before its first token.
    pub(crate) prefill: Micros,
    /// In all.
    pub(crate) work: Micros,
}

/// A tenant has used what it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverBudget {
    /// Its share; it falls below the cap then.
    Share(Micros),
    /// It has as many requests inside as it may.
    Requests,
}

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Account {
    /// What the reserved share has not done yet of what was admitted within it.
    work: Share,
    /// The same of prefills.
    prefills: Share,
    /// When a device as large as the cap would have done everything.
    capped: Micros,
    /// When the next of those that are over the cap is told to come.
    invited: Micros,
    outstanding: Micros,
    requests: u32,
    /// Requests that were refused for being over the budget.
    refused: u64,
    /// Work that was admitted lately.
    used: Fading,
}

impl Account {
    const NEW: Account = Account {
        work: Share::NEW,
        prefills: Share::NEW,
        capped: Micros(0),
        invited: Micros(0),
        outstanding: Micros(0),
        requests: 0,
        refused: 0,
        used: Fading::new(WINDOW),
    };
}

/// The accounts of all tenants.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Budgets {
    table: TenantTable,
    accounts: Vec<Account>,
    matters: bool,
}

impl Budgets {
    pub(crate) fn new(table: TenantTable) -> Budgets {
        let accounts = alloc::vec![Account::NEW; table.len()];
        Budgets { matters: table.matters(), table, accounts }
    }

    pub(crate) const fn table(&self) -> &TenantTable {
        &self.table
    }

    /// Whether it matters who sends a request.
    pub(crate) const fn matters(&self) -> bool {
        self.matters
    }

    /// Whether a tenant of this many has a reservation.
    pub(crate) fn has_reservation(&self, tenant: TenantId) -> bool {
        self.table.get(tenant).reserved_permille > 0
    }

    /// Sets how many requests of a tenant may be inside.
    pub(crate) fn set_limit(&mut self, tenant: TenantId, max_requests: Option<u32>) {
        let place = self.place(tenant);
        if let Some(config) = self.table.iter_mut().nth(place) {
            config.max_requests = max_requests;
        }
    }

    /// Whether a tenant may have one more request inside.
    pub(crate) fn check(&self, now: Micros, tenant: TenantId) -> Result<(), OverBudget> {
        let (config, account) = self.of(tenant);
        if config.max_requests.is_some_and(|most| account.requests >= most) {
            return Err(OverBudget::Requests);
        }
        let ahead = account.capped.minus(now);
        match config.cap_permille {
            Some(_) if ahead > DEPTH => Err(OverBudget::Share(now.plus(ahead.minus(DEPTH)))),
            _ => Ok(()),
        }
    }

    /// Whether a request borrows that costs so much.
    pub(crate) fn borrows(&mut self, now: Micros, request: &Request, cost: Cost) -> bool {
        let place = self.place(request.tenant);
        let reserved = self.table.0[place].reserved_permille;
        if reserved == 0 {
            return self.matters;
        }
        let Account { work, prefills, .. } = &mut self.accounts[place];
        work.advance(now, reserved);
        prefills.advance(now, reserved);
        let (first, last) = due(now, request);
        !(prefills.fits(now, reserved, cost.prefill, first)
            && work.fits(now, reserved, cost.work, last))
    }

    /// What is reserved for others than `tenant` and not used by them, per mille of the device.
    pub(crate) fn kept_for_others(&self, now: Micros, tenant: TenantId) -> u32 {
        let own = self.place(tenant);
        let unused = |(place, config): (usize, &TenantConfig)| match place == own {
            true => 0,
            false => config.reserved_permille.saturating_sub(self.accounts[place].share(now)),
        };
        self.table.0.iter().enumerate().map(unused).sum::<u32>().min(MOST_KEPT)
    }

    /// What is reserved for others than `tenant`, per mille of the device.
    pub(crate) fn reserved_by_others(&self, tenant: TenantId) -> u32 {
        let all: u32 = self.table.0.iter().map(|config| config.reserved_permille).sum();
        all - self.table.get(tenant).reserved_permille
    }

    /// A request was admitted that adds `outstanding` work to the device.
    pub(crate) fn admit(
        &mut self,
        now: Micros,
        request: &Request,
        cost: Cost,
        outstanding: Micros,
    ) {
        let Cost { prefill, work } = cost;
        let place = self.place(request.tenant);
        let TenantConfig { reserved_permille, cap_permille, .. } = self.table.0[place];
        let account = &mut self.accounts[place];
        if reserved_permille > 0 && !request.borrows {
            let (first, last) = due(now, request);
            account.work.add(work, last);
            account.prefills.add(prefill, first);
        }
        if let Some(cap) = cap_permille {
            account.capped = account.capped.max(now).plus(on_share(work, cap));
        }
        account.outstanding = account.outstanding.plus(outstanding);
        account.requests += 1;
        account.used.add(now, work.0);
    }

    /// A reservation has ended. One that was not `served` has added nothing to the device.
    pub(crate) fn end(&mut self, reservation: &Reservation, served: bool) {
        let work = reservation.work();
        let place = self.place(reservation.kind().tenant);
        let TenantConfig { reserved_permille, cap_permille, .. } = self.table.0[place];
        let account = &mut self.accounts[place];
        account.outstanding = account.outstanding.minus(work);
        account.requests -= 1;
        if served {
            return;
        }
        if reserved_permille > 0 && !reservation.borrows() {
            account.work.drop_work(work);
        }
        if let Some(cap) = cap_permille {
            account.capped = account.capped.minus(on_share(work, cap));
        }
    }

    /// How long a request is told to wait that is over its budget, would take `work`, and could be
    /// admitted at `earliest`: each the longer the more were told before.
    pub(crate) fn invite(
        &mut self,
        now: Micros,
        tenant: TenantId,
        work: Micros,
        earliest: Micros,
    ) -> Micros {
        let place = self.place(tenant);
        let cap = self.table.0[place].cap_permille.unwrap_or(1_000);
        let account = &mut self.accounts[place];
        account.refused += 1;
        let due = account.invited.max(earliest).max(now);
        let wait = due.minus(now);
        if wait < LONGEST {
            account.invited = due.plus(on_share(work, cap));
        }
        wait.min(LONGEST)
    }

    /// Predicted device time of a tenant's admitted, unfinished requests.
    pub(crate) fn outstanding(&self, tenant: TenantId) -> Micros {
        self.of(tenant).1.outstanding
    }

    /// A tenant's admitted, unfinished requests.
    pub(crate) fn requests(&self, tenant: TenantId) -> u32 {
        self.of(tenant).1.requests
    }

    /// How many of a tenant's requests were refused for being over its budget.
    pub(crate) fn refused(&self, tenant: TenantId) -> u64 {
        self.of(tenant).1.refused
    }

    /// The share of the device that a tenant's admitted requests took lately, per mille.
    pub(crate) fn share(&self, now: Micros, tenant: TenantId) -> u32 {
        self.of(tenant).1.share(now)
    }

    fn of(&self, tenant: TenantId) -> (&TenantConfig, &Account) {
        let place = self.place(tenant);
        (&self.table.0[place], &self.accounts[place])
    }

    fn place(&self, tenant: TenantId) -> usize {
        if tenant.index() < self.accounts.len() { tenant.index() } else { 0 }
    }
}

impl Account {
    fn share(&self, now: Micros) -> u32 {
        u32::try_from(self.used.sum(now) * 1_000 / WINDOW.0).unwrap_or(u32::MAX)
    }
}

/// When the first and the last token of `request` are due on the share.
fn due(now: Micros, request: &Request) -> (Micros, Micros) {
    let Deadline { first_token, last_token, .. } = request.deadline;
    let last = last_token.unwrap_or(now.plus(DEPTH));
    (first_token.unwrap_or(last).min(last), last)
}

/// How long `work` takes on a share of the device.
const fn on_share(work: Micros, permille: u32) -> Micros {
    Micros(work.0.saturating_mul(1_000) / if permille > 0 { permille as u64 } else { 1 })
}
