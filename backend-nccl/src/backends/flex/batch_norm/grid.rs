//! How tensors of several layouts are walked together.
//!
//! Whatever its layout, a tensor `[batch, channels, ...]` is seen as rows of channels of runs, where a run is contiguous
//! memory of one channel:
//!
//! | memory | rows | run |
//! |---|---|---|
//! | `[N, C, S]` | N | S |
//! | `[C, N, S]`, as a matrix product leaves it | 1 | N S |
//! | `[N, S, C]` | N S | 1 |
//! | `[N, C]` | N | 1 |

use crate::strided::Strided;

/// From this length on, a run is worth its own loop.
const LONG_RUN: usize = 64;

/// Below this length, a loop over a run is so slow that copying a tensor is faster.
const SHORTEST_RUN: usize = 16;

/// The extents that all operands of a kernel share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) rows: usize,
    pub(super) channels: usize,
    pub(super) run: usize,
    pub(super) walk: Walk,
}

/// The order in which a kernel visits a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// One run after another: the vectors lie along the run.
    Runs,
    /// The runs of a row are too short for vectors, but they lie next to each other: the vectors lie along the row.
    Columns,
}

/// Where one operand has its runs, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) offset: usize,
    pub(super) row: usize,
    pub(super) channel: usize,
}

impl Grid {
    /// The grid over tensors of the same shape `[batch, channels, ...]`; `None` where one of them must be made contiguous
    /// first. Contiguous tensors always have one.
    pub(super) fn over(tensors: &[Strided<'_>]) -> Option<(Self, Vec<Steps>)> {
        let shape = tensors[0].shape;
        let (batch, channels) = (shape[0], shape[1]);
        let spatial: usize = shape[2..].iter().product();
        if tensors[0].shape.contains(&0) {
            let steps = vec![Steps { offset: 0, row: 0, channel: 0 }; tensors.len()];
            return Some((Self { rows: 0, channels, run: 1, walk: Walk::Columns }, steps));
        }
        let folded: Vec<Folded> = tensors.iter().map(Folded::of).collect::<Option<_>>()?;
        let all = |test: &dyn Fn(&Folded) -> bool| folded.iter().all(test);
        let fits = |size: usize, stride: usize, expected: usize| size == 1 || stride == expected;

        let runs = all(&|f| fits(spatial, f.spatial, 1));
        let (rows, run) = if runs && all(&|f| fits(batch, f.batch, spatial)) {
            (1, batch * spatial)
        } else if runs {
            (batch, spatial)
        } else if all(&|f| fits(channels, f.channel, 1))
            && all(&|f| batch == 1 || f.batch == spatial * f.spatial)
        {
            (batch * spatial, 1)
        } else {
            return None;
        };
        let adjacent = all(&|f| fits(channels, f.channel, run));
        let walk = match run {
            ..LONG_RUN if adjacent => Walk::Columns,
            SHORTEST_RUN.. => Walk::Runs,
            _ => return None,
        };
        let steps = folded
            .iter()
            .map(|f| Steps {
                offset: f.offset,
                row: if runs { f.batch } else { f.spatial },
                channel: f.channel,
            })
            .collect();
        Some((Self { rows, channels, run, walk }, steps))
    }
}

/// The strides of a tensor whose spatial dimensions are folded into one.
#[derive(Clone, Copy)]
struct Folded {
    offset: usize,
    batch: usize,
    channel: usize,
    spatial: usize,
}

impl Folded {
    /// `None` if the spatial dimensions do not lie in one line.
    fn of(tensor: &Strided<'_>) -> Option<Self> {
        let dims = tensor.shape[2..].iter().zip(&tensor.strides[2..]).filter(|(size, _)| **size != 1);
        let mut spatial = None;
        for (&size, &stride) in dims.rev() {
            spatial = match spatial {
                None => Some((stride, stride * size)),
                Some((inner, next)) if stride == next => Some((inner, next * size)),
                Some(_) => return None,
            };
        }
        Some(Self {
            offset: tensor.offset,
            batch: tensor.strides[0],
            channel: tensor.strides[1],
            spatial: spatial.map_or(1, |(inner, _)| inner),
        })
    }
}

/// A tensor's memory, and where its runs lie in it.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a, T> {
    data: &'a [T],
    steps: Steps,
}

impl<'a, T> Operand<'a, T> {
    pub(super) fn new(data: &'a [T], steps: Steps) -> Self {
        Self { data, steps }
    }

    /// `len` elements from position `at` of the run of `channel` in `row`.
    #[inline(always)]
    pub(super) fn slice(&self, row: usize, channel: usize, at: usize, len: usize) -> &'a [T] {
        let start = self.steps.offset + row * self.steps.row + channel * self.steps.channel + at;
        &self.data[start..start + len]
    }
}
