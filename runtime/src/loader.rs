//! Batches made ahead of time by threads, in the sampler's order. Knows nothing of ranks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{JoinHandle, Result};

use tch::Tensor;

/// An iterator over batches that `n_threads` threads make ahead, in the order of the indices.
///
/// A panic while making a batch comes out of `next`. Dropping the loader ends the threads.
#[derive(Debug)]
pub struct Prefetch<T> {
    /// Thread `t` of `n` makes batches `t`, `t + n`, …, so that taking turns keeps the order.
    made: Vec<Receiver<Result<T>>>,
    next: usize,
    n_batches: usize,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Makes a batch of each of `batches` (row indices, from a sampler's epoch) by `make`, with
    /// `n_threads` threads that are each at most `n_ahead` batches ahead; both count as at least 1.
    pub fn new(
        batches: impl Iterator<Item = Tensor>,
        n_threads: usize,
        n_ahead: usize,
        make: impl Fn(Tensor) -> T + Send + Sync + 'static,
    ) -> Self {
        let n_threads = n_threads.max(1);
        let mut shares: Vec<Vec<Tensor>> = (0..n_threads).map(|_| Vec::new()).collect();
        let mut n_batches = 0;
        for rows in batches {
            shares[n_batches % n_threads].push(rows);
            n_batches += 1;
        }
        let make = Arc::new(make);
        let (mut made, mut threads) = (Vec::new(), Vec::new());
        for share in shares {
            let (sender, receiver) = sync_channel(n_ahead.max(1));
            let make = Arc::clone(&make);
            threads.push(std::thread::spawn(move || work(share, &*make, &sender)));
            made.push(receiver);
        }
        Self { made, next: 0, n_batches, threads }
    }
}

fn work<T>(share: Vec<Tensor>, make: &impl Fn(Tensor) -> T, sender: &SyncSender<Result<T>>) {
    for rows in share {
        let batch = catch_unwind(AssertUnwindSafe(|| make(rows)));
        let failed = batch.is_err();
        if sender.send(batch).is_err() || failed {
            return;
        }
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.next == self.n_batches {
            return None;
        }
        let turn = self.next % self.made.len();
        match self.made[turn].recv().ok()? {
            Ok(batch) => {
                self.next += 1;
                Some(batch)
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let rest = self.n_batches - self.next;
        (rest, Some(rest))
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        // Closing the channels wakes threads that wait for room in them.
        self.made.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(n: i64) -> impl Iterator<Item = Tensor> {
        (0..n).map(|index| Tensor::from_slice(&[index]))
    }

    #[test]
    fn batches_come_in_order_from_many_threads() {
        let make = |rows: Tensor| {
            let row = rows.int64_value(&[0]);
            std::thread::sleep(std::time::Duration::from_millis((row as u64 * 7) % 5));
            row
        };
        let made: Vec<i64> = Prefetch::new(batches(40), 4, 2, make).collect();
        assert_eq!(made, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn dropping_it_half_way_ends_the_threads() {
        let mut loader = Prefetch::new(batches(1000), 3, 1, |rows| rows.int64_value(&[0]));
        assert_eq!(loader.next(), Some(0));
        drop(loader);
    }

    #[test]
    fn a_panic_reaches_the_consumer() {
        let loader = Prefetch::new(batches(3), 1, 1, |rows| {
            assert!(rows.int64_value(&[0]) != 1, "a broken sample");
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| loader.count()));
        assert!(outcome.is_err());
    }
}
