//! Records gathered for a frame or for a segment's footer.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::format::{BODY_BASE, Body, Facts, Record, facts_len, record_len};

/// Gathered records, with each object's place among them.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) body: Body,
    objects: HashMap<u64, u16, FixedState>,
    /// Encoded size of `body`.
    pub(crate) len: usize,
}

impl Default for Gathered {
    fn default() -> Self {
        Gathered { body: Body::default(), objects: HashMap::default(), len: BODY_BASE }
    }
}

impl Gathered {
    /// Returns the object's index in the body, and updates its facts.
    pub(crate) fn object(&mut self, number: u64, facts: Facts) -> u16 {
        if let Some(index) = self.objects.get(&number) {
            let old = &mut self.body.objects[usize::from(*index)];
            self.len = self.len - facts_len(old) + facts_len(&facts);
            *old = facts;
            return *index;
        }
        let index = self.body.objects.len() as u16;
        self.len += facts_len(&facts);
        self.body.objects.push(facts);
        self.objects.insert(number, index);
        index
    }

    /// Adds a record to the frame.
    pub(crate) fn record(&mut self, record: Record) {
        self.len += record_len(&record);
        self.body.records.push(record);
    }

    /// Takes over the records that a closed frame gathered.
    pub(crate) fn absorb(&mut self, frame: Gathered) {
        let mut numbers = vec![0; frame.body.objects.len()];
        frame.objects.iter().for_each(|(number, index)| numbers[usize::from(*index)] = *number);
        let mut numbers = numbers.into_iter();
        self.absorb_body(frame.body, |_| numbers.next().unwrap_or_default());
    }

    /// Takes over a body. `number` returns the number of each object.
    pub(crate) fn absorb_body(&mut self, body: Body, mut number: impl FnMut(&Facts) -> u64) {
        let take = |facts| (number(&facts), facts);
        let indexes: Vec<u16> =
            body.objects.into_iter().map(take).map(|(n, facts)| self.object(n, facts)).collect();
        for mut record in body.records {
            if let Some(object) = record.object_mut() {
                *object = indexes[usize::from(*object)];
            }
            self.record(record);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.body.objects.is_empty() && self.body.records.is_empty()
    }

    pub(crate) fn into_body(self) -> Body {
        self.body
    }
}
