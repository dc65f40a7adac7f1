//! How far loading is, on standard error: a bar for people, nothing but stages for log files.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows stages and the share of a stage that is done.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// On standard error; invisible where that is no terminal.
    pub(super) fn start() -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style("{spinner} {msg}"));
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress { bar }
    }

    /// What is being done now.
    pub(super) fn stage(&self, what: &str) {
        if self.bar.is_hidden() {
            tracing::debug!("{what}");
        }
        self.bar.set_message(what.to_owned());
    }

    /// How much of it is done.
    pub(super) fn part(&self, done: usize, all: usize) {
        if self.bar.length().is_none() {
            self.bar.set_style(style("{spinner} {msg} {wide_bar} {pos}/{len}"));
        }
        self.bar.set_length(all as u64);
        self.bar.set_position(done as u64);
    }

    /// Takes the line away.
    pub(super) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}
