//! Copies a strided tensor into a flat row-major buffer, in one pass over memory.
//!
//! Gradients of convolutions and linear layers often arrive as transposed views. Making them contiguous first and
//! copying the result into the bucket would touch the memory twice, and pay for fresh pages in between.

use bytemuck::{Pod, cast_slice, cast_slice_mut};

/// Elements of a tile's edge: 32 lines of 64 bytes of each side fit the first-level cache.
const TILE: usize = 32;

/// One dimension of the source: its size, and the distance between neighbours in source and target, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dim {
    size: usize,
    source: usize,
    target: usize,
}

/// Where a strided tensor lies in its storage. Counts are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) strides: &'a [usize],
    pub(crate) offset: usize,
}

/// Copies the tensor that lies in `storage` as `layout` says to `target`, in row-major order.
///
/// `target` holds exactly the tensor's elements of `size_bytes` each (2, 4 or 8).
pub(crate) fn copy(storage: &[u8], layout: Strided<'_>, size_bytes: usize, target: &mut [u8]) {
    match size_bytes {
        2 => copy_as::<u16>(cast_slice(storage), layout, cast_slice_mut(target)),
        4 => copy_as::<u32>(cast_slice(storage), layout, cast_slice_mut(target)),
        8 => copy_as::<u64>(cast_slice(storage), layout, cast_slice_mut(target)),
        other => unreachable!("no float has {other} bytes"),
    }
}

fn copy_as<T: Pod>(storage: &[T], layout: Strided<'_>, target: &mut [T]) {
    if target.is_empty() {
        return;
    }
    let mut outer = merged(layout);
    let storage = &storage[layout.offset..];
    let Some(last) = outer.pop() else {
        target[0] = storage[0];
        return;
    };
    if last.source == 1 {
        each(&outer, |source, at| {
            target[at..at + last.size].copy_from_slice(&storage[source..source + last.size])
        });
    } else if let Some(unit) = outer.iter().position(|dim| dim.source == 1) {
        let unit = outer.remove(unit);
        each(&outer, |source, at| transpose(&storage[source..], unit, last, &mut target[at..]));
    } else {
        each(&outer, |source, at| {
            for i in 0..last.size {
                target[at + i] = storage[source + i * last.source];
            }
        });
    }
}

/// The dimensions that matter, outermost first: neighbours that lie in one run are one dimension.
fn merged(layout: Strided<'_>) -> Vec<Dim> {
    let mut dims: Vec<Dim> = Vec::with_capacity(layout.shape.len());
    let mut target = 1;
    for (&size, &source) in layout.shape.iter().zip(layout.strides).rev() {
        match dims.last_mut() {
            _ if size == 1 => {}
            Some(inner) if source == inner.source * inner.size => inner.size *= size,
            _ => dims.push(Dim { size, source, target }),
        }
        target *= size;
    }
    dims.reverse();
    dims
}

/// Calls `run` with the source and target position of each index over `dims`, in row-major order.
fn each(dims: &[Dim], mut run: impl FnMut(usize, usize)) {
    let mut index = vec![0; dims.len()];
    let (mut source, mut target) = (0, 0);
    loop {
        run(source, target);
        let mut position = dims.len();
        loop {
            let Some(previous) = position.checked_sub(1) else { return };
            position = previous;
            let dim = dims[position];
            index[position] += 1;
            source += dim.source;
            target += dim.target;
            if index[position] < dim.size {
                break;
            }
            source -= dim.source * dim.size;
            target -= dim.target * dim.size;
            index[position] = 0;
        }
    }
}

/// Copies a plane that is contiguous along `unit` in the source and along `last` in the target, tile by tile.
fn transpose<T: Pod>(storage: &[T], unit: Dim, last: Dim, target: &mut [T]) {
    for unit_start in (0..unit.size).step_by(TILE) {
        let unit_end = unit.size.min(unit_start + TILE);
        for last_start in (0..last.size).step_by(TILE) {
            let last_end = last.size.min(last_start + TILE);
            for u in unit_start..unit_end {
                let row = &mut target[u * unit.target + last_start..u * unit.target + last_end];
                for (value, l) in row.iter_mut().zip(last_start..) {
                    *value = storage[u + l * last.source];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies by the definition: element (i, j, …) lies at offset + i s0 + j s1 + ….
    fn expected(storage: &[f32], shape: &[usize], strides: &[usize], offset: usize) -> Vec<f32> {
        let count: usize = shape.iter().product();
        (0..count)
            .map(|mut flat| {
                let mut at = offset;
                for (size, stride) in shape.iter().zip(strides).rev() {
                    at += flat % size * stride;
                    flat /= size;
                }
                storage[at]
            })
            .collect()
    }

    #[test]
    fn every_kind_of_layout_is_copied_by_its_definition() {
        let storage: Vec<f32> = (0..8192).map(|i| i as f32).collect();
        let cases: &[(&[usize], &[usize], usize)] = &[
            (&[], &[], 5),
            (&[7], &[1], 3),
            (&[7], &[3], 1),
            (&[4, 5], &[5, 1], 0),
            (&[4, 5], &[1, 4], 2),
            (&[70, 45], &[1, 70], 0),
            (&[6, 1, 5, 1], &[1, 9, 6, 2], 0),
            (&[8, 6, 3, 3], &[9, 72, 3, 1], 4),
            (&[3, 4, 5], &[1, 15, 3], 0),
            (&[3, 4, 5], &[40, 2, 8], 0),
            (&[3, 5], &[0, 1], 0),
            (&[0, 5], &[5, 1], 0),
        ];
        for &(shape, strides, offset) in cases {
            let mut target = vec![0f32; shape.iter().product()];
            let layout = Strided { shape, strides, offset };
            copy(cast_slice(&storage), layout, 4, cast_slice_mut(&mut target));
            assert_eq!(target, expected(&storage, shape, strides, offset), "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn dimensions_in_one_run_are_merged() {
        let layout = Strided { shape: &[2, 3, 4, 1], strides: &[12, 4, 1, 1], offset: 0 };
        assert_eq!(merged(layout), [Dim { size: 24, source: 1, target: 1 }]);
    }
}
