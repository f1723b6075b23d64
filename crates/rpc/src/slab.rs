//! Connections by token. A token holds a generation, so that a late event never meets a later connection.

struct Slot<T> {
    generation: u32,
    value: Option<Box<T>>,
}

/// Values under tokens that are never reused.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds the value that `make` returns for its token, and returns the token.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u64) -> T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        let token = u64::from(slot.generation) << 32 | u64::from(index);
        slot.value = Some(Box::new(make(token)));
        token
    }

    /// Returns the value of a token, or `None` if the value was removed.
    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(token as u32 as usize)?;
        if u64::from(slot.generation) != token >> 32 {
            return None;
        }
        slot.value.as_deref_mut()
    }

    /// Removes and returns the value of a token. The slot is used again, with tokens that differ.
    pub(crate) fn remove(&mut self, token: u64) -> Option<Box<T>> {
        self.get_mut(token)?;
        let slot = &mut self.slots[token as u32 as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(token as u32);
        slot.value.take()
    }

    /// Iterates over all values with their tokens.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let token = u64::from(slot.generation) << 32 | index as u64;
            slot.value.as_deref_mut().map(|value| (token, value))
        })
    }
}
