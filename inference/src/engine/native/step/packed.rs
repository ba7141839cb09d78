//! Weights in the order in which the kernel reads them.

use std::ops::Range;

use super::super::graph::{Conv, WeightOrder};
use super::super::memory::Memory;
use super::super::simd::LANES;

/// One or two blocks of output channels that are computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    /// The first block.
    pub(super) block: usize,
    pub(super) blocks: usize,
    /// The channels of the input that they are computed from.
    pub(super) channels: Range<usize>,
    /// Where their weights begin.
    pub(super) weights: usize,
}

impl Set {
    /// Splits the output channels into sets of at most `most` blocks that read the same input channels.
    pub(super) fn split(conv: &Conv<'_>, most: usize) -> Vec<Self> {
        let (group_in, group_out) = (conv.in_channels / conv.groups, conv.out_channels / conv.groups);
        let channels = |block: usize| {
            let last = (block * LANES + LANES).min(conv.out_channels) - 1;
            block * LANES / group_out * group_in..(last / group_out + 1) * group_in
        };
        let mut sets: Vec<Self> = Vec::new();
        for block in 0..conv.out_channels.div_ceil(LANES) {
            match sets.last_mut() {
                Some(set) if set.blocks < most && set.channels == channels(block) => set.blocks += 1,
                _ => sets.push(Self { block, blocks: 1, channels: channels(block), weights: 0 }),
            }
        }
        sets
    }
}

/// The weights of a convolution, as the file has them.
pub(super) struct Weights {
    values: Vec<f32>,
    order: WeightOrder,
    out_channels: usize,
    group_in: usize,
    group_out: usize,
    kernel: [usize; 2],
    scale: Vec<f64>,
}

impl Weights {
    pub(super) fn of(conv: &Conv<'_>) -> Self {
        Self {
            values: conv.weight.values(),
            order: conv.order,
            out_channels: conv.out_channels,
            group_in: conv.in_channels / conv.groups,
            group_out: conv.out_channels / conv.groups,
            kernel: conv.window.kernel,
            scale: conv.scale.clone(),
        }
    }

    /// The weight between two channels; zero where they are of two groups, or beyond the last.
    pub(super) fn at(&self, out: usize, input: usize, y: usize, x: usize) -> f64 {
        if out >= self.out_channels || input / self.group_in != out / self.group_out {
            return 0.;
        }
        let [height, width] = self.kernel;
        let at = match self.order {
            WeightOrder::OutFirst => ((out * self.group_in + input % self.group_in) * height + y) * width + x,
            WeightOrder::InFirst => input * self.out_channels + out,
        };
        f64::from(self.values[at]) * self.scale[out]
    }
}

/// One number for each channel, and zeros up to whole blocks.
pub(in super::super) fn by_block(values: &[f64]) -> Vec<f32> {
    let mut padded: Vec<_> = values.iter().map(|&value| value as f32).collect();
    padded.resize(values.len().next_multiple_of(LANES), 0.);
    padded
}

/// What a tile asks for on its way: its part of the weights of the next set. Each of the first tiles of a set asks for half
/// a line for each input, so that as many tiles as this ask for all. Large sets are left out: the cache does not hold two.
pub(super) fn ahead(weights: *const f32, size: usize, tile: usize, blocks: usize) -> *const f32 {
    let tiles = 2 * blocks;
    if tile >= tiles || size > MAX_AHEAD { weights } else { weights.wrapping_add(size + tile * size / tiles) }
}

/// 384 KiB of the 1 MiB that a core's cache holds.
const MAX_AHEAD: usize = 96 << 10;

/// Room for `values` weights, or why there is none.
pub(super) fn room(values: Option<usize>) -> Result<Memory, String> {
    let room = values.filter(|&values| values <= MAX_VALUES).and_then(Memory::new);
    room.ok_or_else(|| "its weights take more memory than there is".to_owned())
}

/// Most weights of a convolution: 1 GiB.
const MAX_VALUES: usize = 1 << 28;
