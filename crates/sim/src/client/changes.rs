//! Changes of whole objects that a client makes: their sizes, their times, and their removal.

use super::Client;

impl Client {
    /// Truncates or grows some object to a size at which mistakes are likely.
    pub(super) async fn truncate_somewhere(&mut self) {
        let Some(number) = self.any() else { return };
        let size = self.shared.model.lock().size(number);
        let extent = self.shared.habits.extent;
        let sizes = [0, size, size.saturating_sub(1), size / 2, size + 1, self.rng.below(extent + 1)];
        let size = self.rng.pick(&sizes);
        self.truncate(number, size).await;
    }

    /// Truncates or grows an object.
    pub async fn truncate(&mut self, number: u8, size: u64) {
        let all = 0..u64::MAX / 2;
        if self.shared.model.lock().load(number, &all).0 + 4 > crate::register::OPERATIONS {
            return self.commit(number).await;
        }
        let Some(object) = self.object(number) else { return };
        if !self.shared.objects.lock().claim(number) {
            return;
        }
        let now = self.now();
        let id = self.shared.model.lock().begin_truncate(number, size, now);
        self.shared.tell(|| format!("truncate {id} of {number} to {size}"));
        let result = self.engine.truncate(&object, size, now).await;
        match result {
            Ok(()) => self.shared.model.lock().durable_by(id, self.engine.last()),
            Err(error) => {
                self.shared.model.lock().failed(id);
                self.check("a truncation", number, error);
            }
        }
        self.shared.tell(|| format!("truncate {id} done: {result:?}"));
        self.shared.objects.lock().release(number);
    }

    /// Sets the modification time of some object.
    pub(super) async fn set_some_time(&mut self) {
        let Some(number) = self.any() else { return };
        let all = 0..u64::MAX / 2;
        if self.shared.model.lock().load(number, &all).0 + 4 > crate::register::OPERATIONS {
            return self.commit(number).await;
        }
        let (Some(object), Some(key)) = (self.object(number), self.shared.objects.lock().key(number)) else {
            return;
        };
        if !self.shared.objects.lock().claim(number) {
            return;
        }
        let now = self.now();
        let id = self.shared.model.lock().begin_mtime(number, now);
        self.shared.tell(|| format!("set time {id} of {number} to {now:?}"));
        // As in the server, the file gets the time at once. The engine sets it too if it has something to destage.
        self.shared.store.touch(&key, now);
        match self.engine.set_mtime(&object, now).await {
            Ok(()) => self.shared.model.lock().durable_by(id, self.engine.last()),
            Err(error) => {
                self.shared.model.lock().failed(id);
                self.check("a change of time", number, error);
            }
        }
        self.shared.objects.lock().release(number);
    }

    /// Removes an object, with operations in progress on it, and makes a new one.
    pub(super) async fn replace_some(&mut self) {
        let Some(number) = self.any() else { return };
        let removed = {
            let mut objects = self.shared.objects.lock();
            let mut model = self.shared.model.lock();
            let extent = self.shared.habits.extent;
            if objects.create(&mut self.rng, extent, &self.shared.store, &mut model).is_none() {
                return;
            }
            model.remove(number);
            objects.remove(number)
        };
        self.adopt();
        if let Some((key, object)) = removed {
            self.shared.tell(|| format!("remove {number}"));
            self.shared.store.remove(&key);
            self.engine.forget(&object).await;
        }
    }
}
