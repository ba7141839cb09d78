//! Shares work between threads without changing a bit of the result: what a chunk holds depends on the shape alone.

use rayon::prelude::*;

/// Elements of one task: enough that starting it costs nothing, few enough that the threads end together.
pub(super) const TASK: usize = 32 * 1024;

/// Fewer elements than this take a fifth of a millisecond, in which another thread has hardly woken up.
const WORTH_THREADS: usize = 1 << 20;

/// Calls `work` with each chunk of `len` values and its index; `elements` is what all of it amounts to.
pub(super) fn for_each_chunk<T: Send>(
    elements: usize,
    target: &mut [T],
    len: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    if elements >= WORTH_THREADS && rayon::current_num_threads() > 1 {
        target.par_chunks_mut(len).enumerate().for_each(|(index, chunk)| work(index, chunk));
    } else {
        target.chunks_mut(len).enumerate().for_each(|(index, chunk)| work(index, chunk));
    }
}
