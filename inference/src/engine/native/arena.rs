//! Where values lie: those that are not needed at the same time share memory.

use super::simd::LANES;
use super::step::Place;

/// Most values of memory for one image: 4 GiB.
const MAX_VALUES: usize = 1 << 30;

/// What a step does with values.
pub(super) struct Use<'a> {
    pub(super) reads: &'a [usize],
    pub(super) writes: usize,
    /// A value that the step may overwrite while it reads it.
    pub(super) in_place: Option<usize>,
}

/// The values of a program. The first is not its own: it is the input, which the caller has.
#[derive(Default)]
pub(super) struct Arena {
    values: Vec<Life>,
}

/// When a value is needed.
#[derive(Clone, Debug)]
struct Life {
    size: usize,
    /// The steps that write it first and read it last.
    steps: Option<(usize, usize)>,
    /// A value that it may take the memory of, and when.
    after: Option<(usize, usize)>,
}

impl Arena {
    /// Adds a value of this size.
    pub(super) fn add(&mut self, size: usize) -> usize {
        self.values.push(Life { size, steps: None, after: None });
        self.values.len() - 1
    }

    /// Says what a step does.
    pub(super) fn step(&mut self, step: usize, uses: Use<'_>) {
        for &value in uses.reads {
            self.keep(value, step);
        }
        self.keep(uses.writes, step);
        self.values[uses.writes].after = uses.in_place.map(|value| (value, step));
    }

    /// Keeps a value until a step.
    pub(super) fn keep(&mut self, value: usize, step: usize) {
        let life = &mut self.values[value];
        let (first, last) = life.steps.unwrap_or((step, step));
        life.steps = Some((first.min(step), last.max(step)));
    }

    /// Where each value lies, and how many values of memory that takes for an image.
    pub(super) fn lay_out(&self) -> Result<(Vec<Place>, usize), String> {
        let mut places: Vec<_> =
            self.values.iter().map(|life| Place { offset: 0, values: life.size }).collect();
        // Values with memory, as (value, offset, end, last step).
        let mut living: Vec<(usize, usize, usize, usize)> = Vec::new();
        let mut memory = 0;
        let mut order: Vec<_> =
            (1..self.values.len()).filter_map(|at| Some((self.values[at].steps?, at))).collect();
        order.sort_unstable();
        for ((first, last), value) in order {
            let life = &self.values[value];
            living.retain(|&(.., last)| last >= first);
            let heir = life.after.and_then(|(from, step)| {
                living.iter_mut().find(|&&mut (value, .., last)| {
                    value == from && last == step && self.values[from].size == life.size
                })
            });
            let offset = if let Some(heir) = heir {
                *heir = (value, heir.1, heir.2, last);
                heir.1
            } else {
                let size = life.size.next_multiple_of(LANES);
                let offset = gap(&living, size);
                living.push((value, offset, offset + size, last));
                offset
            };
            places[value].offset = offset;
            memory = memory.max(offset + life.size.next_multiple_of(LANES));
            if memory > MAX_VALUES {
                return Err(format!(
                    "an image takes more than the {MAX_VALUES} values of memory that are allowed"
                ));
            }
        }
        Ok((places, memory))
    }
}

/// The first gap of this size between the values that live.
fn gap(living: &[(usize, usize, usize, usize)], size: usize) -> usize {
    let mut taken: Vec<_> = living.iter().map(|&(_, offset, end, _)| (offset, end)).collect();
    taken.sort_unstable();
    let mut at = 0;
    for (offset, end) in taken {
        if offset >= at + size {
            break;
        }
        at = at.max(end);
    }
    at
}
