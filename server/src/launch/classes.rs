//! Class settings as the scheduler takes them.

use std::time::Duration;

use scheduler::{ClassConfig, ClassTable, Micros, Slo};

use crate::config::{ClassSettings, Classes, Safety, Target};

/// Both classes.
pub(crate) fn table(classes: &Classes) -> ClassTable {
    ClassTable([class(&classes.latency), class(&classes.throughput)])
}

fn class(settings: &ClassSettings) -> ClassConfig {
    ClassConfig {
        slo: Slo {
            ttft: target(settings.slo_ttft),
            tpot: target(settings.slo_tpot),
            e2e: target(settings.slo_e2e),
        },
        max_waiting: settings.max_waiting,
        max_num_seqs: settings.max_num_seqs,
        slots_kept: settings.slots_kept,
        kv_permille: settings.kv_share.map(super::permille),
        safety_permille: match settings.safety_factor {
            Safety::Auto => None,
            Safety::Permille(permille) => Some(permille),
        },
    }
}

/// `auto` is the engine's to fill in: it stands for the largest time.
pub(crate) fn target(target: Target) -> Option<Micros> {
    match target {
        Target::None => None,
        Target::Auto => Some(Micros::MAX),
        Target::Within(duration) => Some(micros(duration)),
    }
}

fn micros(duration: Duration) -> Micros {
    Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_promise_what_the_guide_says() {
        let table = table(&Classes::default());
        let [latency, throughput] = table.0.map(|class| class.slo);
        assert_eq!(latency.ttft, Some(Micros(1_500_000)));
        assert_eq!(latency.tpot, Some(Micros::MAX));
        assert_eq!(throughput.ttft, Some(Micros(60_000_000)));
        assert_eq!((throughput.tpot, throughput.e2e), (None, None));
    }
}
