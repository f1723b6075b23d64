//! The window of sequence numbers of a context (RFC 2203, section 5.3.3.1).

/// The size of the window, told to the client: the number of requests that it may have in flight. A connection has at
/// most 256 requests in flight, and a client may use several connections for a context.
pub(crate) const WINDOW: u32 = 1024;

const WORDS: usize = WINDOW as usize / 64;

/// The sequence numbers that were received.
pub(crate) struct Window {
    /// The highest number so far.
    highest: u32,
    /// The numbers in `highest - WINDOW + 1 ..= highest` that were received, by the number modulo the size.
    seen: [u64; WORDS],
    is_used: bool,
}

impl Default for Window {
    fn default() -> Self {
        Window { highest: 0, seen: [0; WORDS], is_used: false }
    }
}

impl Window {
    /// Enters a number. Returns false for a number that was received before, or lies below the window.
    pub(crate) fn enter(&mut self, number: u32) -> bool {
        if !self.is_used {
            self.is_used = true;
            self.highest = number;
        } else if number > self.highest {
            let skipped = number - self.highest;
            if skipped >= WINDOW {
                self.seen = [0; WORDS];
            } else {
                (1..=skipped).for_each(|step| self.clear(self.highest + step));
            }
            self.highest = number;
        } else if self.highest - number >= WINDOW {
            return false;
        }
        let (word, bit) = place(number);
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_new
    }

    fn clear(&mut self, number: u32) {
        let (word, bit) = place(number);
        self.seen[word] &= !bit;
    }
}

fn place(number: u32) -> (usize, u64) {
    let slot = number % WINDOW;
    (slot as usize / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_number_is_entered_once_and_not_below_the_window() {
        let mut window = Window::default();
        assert!(window.enter(5) && !window.enter(5));
        assert!(window.enter(3) && !window.enter(3), "numbers arrive in any order");
        assert!(window.enter(5 + WINDOW - 1));
        assert!(!window.enter(5), "still in the window, and received");
        assert!(window.enter(6) && !window.enter(6));
        assert!(window.enter(5 + WINDOW));
        assert!(!window.enter(5), "below the window");
        assert!(window.enter(u32::MAX) && !window.enter(u32::MAX) && !window.enter(7));
    }

    #[test]
    fn every_sequence_agrees_with_a_set() {
        let (mut window, mut entered, mut highest) = (Window::default(), HashSet::new(), 0u32);
        let mut random = 0x2545_f491_u32;
        for step in 0..200_000u32 {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            let jump = if step % 997 == 0 { 5000 } else { 40 };
            let number = (highest + random % jump).saturating_sub(random % 1500);
            let below = highest >= WINDOW && number <= highest - WINDOW;
            let expected = !below && entered.insert(number);
            assert_eq!(window.enter(number), expected, "{number}, highest {highest}");
            highest = highest.max(number);
        }
    }
}
