//! Between two steps: taking in what has arrived, sleeping when there is nothing to do. And the
//! end.

use scheduler::{Counts, RequestId, Terminal};

use super::EngineThread;
use crate::active::ActiveRequest;
use crate::shared::Command;
use crate::stream::Departure;

impl EngineThread {
    /// Takes in everything that has arrived: as many commands as lie in the (bounded) channel, and
    /// the mail. Returns whether to shut down.
    ///
    /// The mail is taken first and applied last: a request that somebody leaves has been handed
    /// over before, so it is known by then.
    pub(super) fn take_in(&mut self) -> bool {
        let mail = self.shared.mailbox.take();
        for _ in 0..self.commands.len() {
            if let Ok(command) = self.commands.try_recv() {
                self.obey(command);
            }
        }
        let now = self.shared.clock.now();
        for departure in &mail.departures {
            match *departure {
                Departure::Cancel(id) => {
                    if self.parts.scheduler.cancel(id) {
                        self.end(now, id, Terminal::Cancelled, "");
                    }
                }
                Departure::Stop(seq) => {
                    let events = self.parts.scheduler.stop(seq);
                    self.book(now, &events, "");
                }
            }
        }
        if !mail.departures.is_empty() {
            self.publish();
        }
        mail.shutdown
    }

    pub(super) fn obey(&mut self, command: Command) {
        if let Command::Start(start) = command {
            self.parts.scheduler.enqueue(&start.request);
            let id = start.request.id;
            self.requests.insert(id, ActiveRequest::new(*start, &self.parts.eos));
        }
    }

    /// Nothing to do: sleeps until a command comes. Returns whether anybody can still send one.
    pub(super) fn rest(&mut self) -> bool {
        let now = self.shared.clock.now();
        self.install_timeline(now, now);
        self.publish();
        // Mail whose wake-up has been received already must not be slept over.
        if !self.shared.mailbox.is_empty() {
            return true;
        }
        let Ok(command) = self.commands.recv() else { return false };
        self.last_step = self.shared.clock.now();
        self.timed_from = self.last_step;
        self.shared.live().progress = Some(self.last_step);
        self.obey(command);
        true
    }

    /// The end: nothing is taken in any more, and everything fails, also what was handed over at
    /// the last moment.
    pub(super) fn close(&mut self, why: &str) {
        self.shared.front().alive = false;
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Start(start) = command {
                let id = start.request.id;
                self.requests.insert(id, ActiveRequest::new(*start, &self.parts.eos));
            }
        }
        let now = self.shared.clock.now();
        let mut left: Vec<RequestId> = self.requests.keys().copied().collect();
        left.sort_unstable();
        for id in left {
            self.end(now, id, Terminal::Failed, why);
        }
        let mut live = self.shared.live();
        let Counts { num_blocks, .. } = live.counts;
        let (waiting, running, cached_blocks, free_blocks) = (0, 0, 0, num_blocks);
        live.counts = Counts { waiting, running, cached_blocks, free_blocks, ..live.counts };
        live.progress = None;
        drop(live);
        self.outbox.flush();
        self.shared.front().gate.end_record(&self.parts.scheduler);
        self.parts.scheduler.close_record();
    }
}
