//! Reports and leases as bytes of fixed places. A later version may only append: whoever knows an
//! earlier one reads what it knows and passes over the rest.

use scheduler::Micros;
use scheduler::cluster::{Load, Report, Stage};

use super::Claim;

/// Bytes of a report.
pub const SIZE: usize = 96;

/// Bytes of a lease.
pub const LEASE: usize = 16;

const VERSION: u8 = 1;

/// Fields up to here are in every version.
const KNOWN: usize = 70;

/// What is known of a member by its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The call that wrote it.
    pub seq: u32,
    /// How long the entry lived when it was written, in milliseconds.
    pub life_ms: u32,
    /// The report.
    pub report: Report,
}

/// What a member holds and wants of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Of which tenant.
    pub tenant: u64,
    /// What it holds.
    pub held: u32,
    /// What it would use if it could.
    pub demand: u32,
}

/// Writes a report down. The number of the call comes first, behind the version: the books compare
/// it.
#[must_use]
pub fn encode(decoded: &Decoded) -> Vec<u8> {
    let Decoded { seq, life_ms, report } = decoded;
    let load = &report.load;
    let mut bytes = Vec::with_capacity(SIZE);
    bytes.push(VERSION);
    bytes.extend(seq.to_be_bytes());
    bytes.push(match report.stage {
        Stage::Pending => 0,
        Stage::Ready => 1,
        Stage::Draining => 2,
    });
    bytes.extend(life_ms.to_be_bytes());
    load.outstanding.iter().for_each(|work| bytes.extend(work.0.to_be_bytes()));
    let numbers = [
        load.in_flight,
        load.offered_permille,
        load.refused_permille[0],
        load.refused_permille[1],
        millis(load.since_refused[0]),
        millis(load.since_refused[1]),
        millis(load.next_slot),
        report.waiting,
        report.running,
        report.free_kv_permille,
        millis(report.step_age),
    ];
    numbers.iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    bytes.resize(SIZE, 0);
    bytes
}

/// Reads a report; `None` if it is none.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Decoded> {
    if bytes.len() < KNOWN || bytes[0] == 0 {
        return None;
    }
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    let number = |index: usize| word(26 + 4 * index);
    let load = Load {
        outstanding: [Micros(long(10)), Micros(long(18))],
        in_flight: number(0),
        offered_permille: number(1),
        refused_permille: [number(2), number(3)],
        since_refused: [span(number(4)), span(number(5))],
        next_slot: span(number(6)),
    };
    let report = Report {
        stage: match bytes[5] {
            0 => Stage::Pending,
            1 => Stage::Ready,
            _ => Stage::Draining,
        },
        load,
        waiting: number(7),
        running: number(8),
        free_kv_permille: number(9),
        step_age: span(number(10)),
    };
    Some(Decoded { seq: word(1), life_ms: word(6), report })
}

/// Writes down what is held after a call was granted `grants`.
#[must_use]
pub fn leases(claims: &[Claim], grants: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(claims.len() * LEASE);
    for (claim, held) in claims.iter().zip(grants) {
        bytes.extend(claim.tenant.to_be_bytes());
        bytes.extend(held.to_be_bytes());
        bytes.extend(claim.demand.to_be_bytes());
    }
    bytes
}

/// Reads them; what is no whole lease is passed over.
pub fn shares(bytes: &[u8]) -> impl Iterator<Item = Share> {
    bytes.chunks_exact(LEASE).map(|lease| {
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| lease[at + i]));
        let tenant = u64::from(word(0)) << 32 | u64::from(word(4));
        Share { tenant, held: word(8), demand: word(12) }
    })
}

/// A number for a text, the same on every machine and in every version (FNV-1a): leases go by that
/// of the tenant's name, as replicas need not have the same tenants while a change is rolled out.
#[must_use]
pub fn number(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn millis(span: Micros) -> u32 {
    u32::try_from(span.0.div_ceil(1_000)).unwrap_or(u32::MAX)
}

fn span(millis: u32) -> Micros {
    if millis == u32::MAX { Micros::MAX } else { Micros::from_millis(millis.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded() -> Decoded {
        let load = Load {
            outstanding: [Micros(1), Micros(u64::MAX)],
            in_flight: 2,
            offered_permille: 3,
            refused_permille: [4, 5],
            since_refused: [Micros::from_millis(6), Micros::MAX],
            next_slot: Micros::from_millis(7),
        };
        let report = Report {
            stage: Stage::Draining,
            load,
            waiting: 8,
            running: 9,
            free_kv_permille: 10,
            step_age: Micros::from_millis(11),
        };
        Decoded { seq: 12, life_ms: 13, report }
    }

    #[test]
    fn a_report_is_what_was_written_and_so_is_one_of_a_later_version() {
        let mut bytes = encode(&decoded());
        assert_eq!(bytes.len(), SIZE);
        assert_eq!(decode(&bytes), Some(decoded()));
        bytes[0] = 9;
        bytes.extend([7; 40]);
        assert_eq!(decode(&bytes), Some(decoded()));
    }

    #[test]
    fn what_is_no_report_is_none() {
        let bytes = encode(&decoded());
        assert!((0..KNOWN).all(|len| decode(&bytes[..len]).is_none()));
        assert_eq!(decode(&[0; SIZE]), None);
    }

    /// Replicas of other versions use the same numbers, so they must never change.
    #[test]
    fn a_tenant_has_the_same_number_everywhere() {
        assert_eq!(number(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(number("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn leases_are_what_was_written() {
        let claim = |tenant, demand| Claim { tenant, demand, ..Claim::default() };
        let bytes = leases(&[claim(u64::MAX - 1, 3), claim(2, 0)], &[7, 8]);
        let read: Vec<Share> = shares(&bytes).collect();
        let share = |tenant, held, demand| Share { tenant, held, demand };
        assert_eq!(read, [share(u64::MAX - 1, 7, 3), share(2, 8, 0)]);
        assert_eq!(shares(&bytes[..17]).count(), 1);
    }
}
