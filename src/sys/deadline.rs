//! Deadlines: the point in monotonic time at which a wait gives up.

use std::time::{Duration, Instant};

/// Every wait takes one; [`Deadline::never`] is for waits that something else bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    at: Option<Instant>,
}

impl Deadline {
    pub fn after(duration: Duration) -> Deadline {
        Deadline { at: Instant::now().checked_add(duration) }
    }

    pub fn never() -> Deadline {
        Deadline { at: None }
    }

    pub fn expired(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// The time that is left; `None` when there is no end.
    pub fn remaining(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whichever of the two comes first.
    pub fn earlier(self, other: Deadline) -> Deadline {
        match (self.at, other.at) {
            (Some(one), Some(two)) => Deadline { at: Some(one.min(two)) },
            (one, two) => Deadline { at: one.or(two) },
        }
    }

    /// The time that is left, but at most `slice`: for waits that look at a flag between slices.
    pub fn slice(&self, slice: Duration) -> Duration {
        self.remaining().map_or(slice, |left| left.min(slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_compare_and_expire() {
        let now = Deadline::after(Duration::ZERO);
        let later = Deadline::after(Duration::from_secs(60));
        assert!(now.expired() && !later.expired() && !Deadline::never().expired());
        assert_eq!(now.remaining(), Some(Duration::ZERO));
        assert_eq!(later.earlier(now), now);
        assert_eq!(Deadline::never().earlier(now), now);
        assert_eq!(now.earlier(Deadline::never()), now);
        assert_eq!(Deadline::never().slice(Duration::from_secs(1)), Duration::from_secs(1));
        assert_eq!(now.slice(Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(
            Deadline::after(Duration::MAX).remaining(),
            None,
            "beyond the clock's range there is no end"
        );
    }
}
