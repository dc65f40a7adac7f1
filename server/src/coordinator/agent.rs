//! The replica's side of the protocol: which call comes next, and what an answer means. Knows no
//! network; time is an argument, so that a simulation can drive it through any trouble.

use scheduler::Micros;
use scheduler::cluster::{
    ClusterView, Entry, Lease, Others, Pace, Report, Roster, Standing, Use, share,
};

use super::record::{self, Decoded};
use super::{Call, Claim, Peer, Reply};

/// Who is first where a cap has fewer units than there are replicas changes this often.
const TURN_MS: u64 = 10_000;

/// A tenant whose cap holds for all replicas together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The number of its name, see [`record::number`].
    pub tenant: u64,
    /// Units.
    pub cap: u32,
}

/// One replica.
#[derive(Debug)]
pub struct Agent {
    member: Box<str>,
    seq: u32,
    epoch: u64,
    server: Option<u64>,
    roster: Roster,
    leases: Vec<(u64, Lease, Others)>,
    /// Until then nothing may be claimed beyond what is held: others may hold what the books have
    /// lost, until they are back in them.
    quarantine: Micros,
    turn: u64,
    /// How many replicas a cap is divided among as long as nobody has been heard of.
    expected: u32,
}

impl Agent {
    /// A replica that was started just now. `expected` is among how many replicas a cap is divided
    /// until others have been heard of.
    #[must_use]
    pub fn new(member: &str, expected: u32) -> Agent {
        Agent {
            member: member.into(),
            seq: 0,
            epoch: 0,
            server: None,
            roster: Roster::new(member),
            leases: Vec::new(),
            quarantine: Micros(0),
            turn: 0,
            expected,
        }
    }

    /// The caps that it shares with the others. None is held yet.
    pub fn share(&mut self, shared: &[Shared]) {
        let lease = |shared: &Shared| (shared.tenant, Lease::new(shared.cap), Others::default());
        self.leases = shared.iter().map(lease).collect();
    }

    /// Its name.
    #[must_use]
    pub fn member(&self) -> &str {
        &self.member
    }

    /// The rhythm of its calls.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.roster.pace()
    }

    /// There is a connection. What another server tells may be older than what the last one told.
    pub fn connected(&mut self, now: Micros, peer: &Peer) {
        if self.server.is_some_and(|server| server != peer.server) {
            self.quarantine(now);
        }
        self.server = Some(peer.server);
    }

    fn quarantine(&mut self, now: Micros) {
        let life = self.pace().life;
        self.quarantine = self.quarantine.max(now.plus(life).plus(life));
    }

    /// The next call. `uses` are what happened to each shared tenant since the last one, in order.
    /// What the call gives back is given back at once.
    pub fn call(&mut self, now: Micros, report: &Report, uses: &[Use]) -> Call {
        self.seq += 1;
        let Pace { life, .. } = self.pace();
        let life_ms = u32::try_from(life.as_millis()).unwrap_or(u32::MAX);
        let steady = now >= self.quarantine && !self.roster.is_split();
        let none = Use::default();
        let uses = uses.iter().chain(std::iter::repeat(&none));
        let claims = self.leases.iter_mut().zip(uses).map(|((tenant, lease, others), seen)| {
            lease.observe(*seen);
            let want = lease.claim(seen.in_use, others);
            Claim {
                tenant: *tenant,
                cap: lease.cap(),
                held: lease.held(),
                want: if steady { want } else { want.min(lease.held()) },
                demand: lease.demand(),
            }
        });
        Call {
            member: self.member.clone(),
            seq: self.seq,
            epoch: self.epoch,
            life_ms,
            leaves: false,
            claims: claims.collect(),
            record: record::encode(&Decoded { seq: self.seq, life_ms, report: *report }),
        }
    }

    /// The last call: this replica goes.
    pub fn leave(&mut self) -> Call {
        let mut call = self.call(Micros(0), &Report::default(), &[]);
        call.leaves = true;
        call
    }

    /// The answer to the call that was sent at `sent`.
    pub fn reply(&mut self, now: Micros, sent: Micros, reply: &Reply) {
        if reply.stale {
            return;
        }
        // After silence others may come back later than this one: their units are not free.
        let life = self.pace().life;
        let silent = self.roster.age(now).is_none_or(|age| age.0 > life.0 / 2);
        if self.epoch != reply.epoch || !reply.steady || silent {
            self.quarantine(now);
        }
        self.epoch = reply.epoch;
        self.turn = reply.now_ms / TURN_MS;
        let others = reply.members.iter().filter(|member| member.name != self.member);
        let entries = others.clone().filter_map(|member| {
            let Decoded { life_ms, report, .. } = record::decode(&member.record)?;
            let age_ms = u64::from(life_ms).saturating_sub(member.expires_in_ms);
            Some(Entry { member: member.name.clone(), age: Micros::from_millis(age_ms), report })
        });
        self.roster.apply(sent, entries.collect());
        let rank = self.roster.rank(self.turn);
        for ((tenant, lease, sums), granted) in self.leases.iter_mut().zip(&reply.grants) {
            lease.granted(sent, *granted);
            let shares = others.clone().flat_map(|member| record::shares(&member.leases));
            let demands = shares.filter(|share| share.tenant == *tenant);
            *sums = Others { before: rank, ..Others::default() };
            for share in demands {
                sums.demand += u64::from(share.demand);
                sums.count += 1;
            }
        }
    }

    /// The cluster as it is to be counted with now.
    pub fn view(&mut self, now: Micros, own: &Report) -> ClusterView {
        self.roster.view(now, own)
    }

    /// How far the others' reports can be trusted now.
    #[must_use]
    pub fn standing(&self, now: Micros) -> Standing {
        self.roster.standing(now)
    }

    /// Replicas known last, this one included.
    #[must_use]
    pub fn known(&self) -> u32 {
        self.roster.known()
    }

    /// Half of the others or more are missing.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.roster.is_split()
    }

    /// Age of the last answer; `None` if there never was one.
    #[must_use]
    pub fn age(&self, now: Micros) -> Option<Micros> {
        self.roster.age(now)
    }

    /// Units of each shared tenant that may be in use here now, in order.
    pub fn limits(&self, now: Micros) -> impl Iterator<Item = u32> {
        let heard = self.roster.age(now).is_some();
        let (known, rank) = (self.roster.known(), self.roster.rank(0));
        self.leases.iter().map(move |(_, lease, _)| match heard {
            true => lease.limit(now, known, rank),
            // Nobody knows who else is there: a part, but never nothing.
            false => share(lease.cap(), self.expected, u32::MAX).max(lease.cap().min(1)),
        })
    }
}
