//! The choices of runs of which each takes another order of steps, until all orders were taken.

/// The choices of one run, each with the number of alternatives.
#[derive(Default)]
pub(super) struct Choices {
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    /// Returns the number of an alternative out of `count`.
    pub(super) fn choose(&mut self, count: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, count));
        }
        self.at += 1;
        self.made[self.at - 1].0
    }

    /// Turns to the next run. Returns false if there is none.
    pub(super) fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, count)) = self.made.pop() {
            if choice + 1 < count {
                self.made.push((choice + 1, count));
                return true;
            }
        }
        false
    }
}
