//! The local parts of batch normalisation, each in one pass over memory.
//!
//! Composed of tensor operations, the forward pass reads and writes the tensor nine times and the backward pass thirteen.
//! Here the forward pass reads the input twice and writes the output once, and the backward pass reads input and gradient
//! twice and writes once.
//!
//! This file takes tensors apart and puts results together; the arithmetic below knows slices and strides only.

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};
use bytemuck::cast_slice;
use half::{bf16, f16};

use crate::strided::Strided;
use element::Element;
use grid::{Grid, Operand, Steps};
use map::{InputGradient, Normalize};
use sums::Pair;

mod element;
mod gradient_sums;
mod grid;
mod map;
mod parallel;
mod statistics;
mod sums;
#[cfg(test)]
mod tests;
mod vectors;

/// Evaluates `$body` with `$element` as the element type that `$dtype` names.
macro_rules! for_dtype {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            DType::F32 => for_dtype!(@ f32, $element, $body),
            DType::F64 => for_dtype!(@ f64, $element, $body),
            DType::F16 => for_dtype!(@ f16, $element, $body),
            DType::BF16 => for_dtype!(@ bf16, $element, $body),
            other => unreachable!("batch normalisation of {other:?}: Burn has no such float tensor on flex"),
        }
    };
    (@ $type:ty, $element:ident, $body:expr) => {{
        type $element = $type;
        $body
    }};
}

/// The mean and the sum of squares around it, per channel.
pub(super) fn statistics(input: FlexTensor) -> (FlexTensor, FlexTensor) {
    let dtype = input.dtype();
    let walk = Walkable::new(vec![input], false);
    for_dtype!(dtype, E => {
        pair_of_vectors::<E>(dtype, statistics::statistics(walk.operand::<E>(0), walk.grid))
    })
}

/// `(x - mean) scale + shift`, with coefficients per channel.
pub(super) fn normalize(
    input: FlexTensor,
    mean: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
) -> FlexTensor {
    let dtype = input.dtype();
    let walk = Walkable::new(vec![input], true);
    let [mean, scale, shift] = [mean, scale, shift].map(|vector| vector.to_contiguous());
    for_dtype!(dtype, E => {
        let formula = Normalize::<E> {
            input: walk.operand(0),
            mean: cast_slice(mean.bytes()),
            scale: cast_slice(scale.bytes()),
            shift: cast_slice(shift.bytes()),
        };
        tensor(map::map(formula, walk.grid, walk.result()), walk.layout, dtype)
    })
}

/// `Σ dy` and `Σ dy (x - mean)`, per channel.
pub(super) fn gradient_sums(
    input: FlexTensor,
    gradient: FlexTensor,
    mean: FlexTensor,
) -> (FlexTensor, FlexTensor) {
    let dtype = input.dtype();
    let walk = Walkable::new(vec![input, gradient], false);
    let mean = mean.to_contiguous();
    for_dtype!(dtype, E => {
        let mean = cast_slice(mean.bytes());
        let sums = gradient_sums::gradient_sums(walk.operand::<E>(0), walk.operand(1), mean, walk.grid);
        pair_of_vectors::<E>(dtype, sums)
    })
}

/// `scale (dy - mean_gradient - (x - mean) slope)`, with coefficients per channel.
///
/// Overwrites the gradient where nobody else has it and the result belongs in the same order: fresh memory costs more
/// than the arithmetic.
pub(super) fn input_gradient(
    input: FlexTensor,
    gradient: FlexTensor,
    coefficients: [FlexTensor; 4],
) -> FlexTensor {
    let dtype = input.dtype();
    let mut walk = Walkable::new(vec![input, gradient], true);
    let coefficients = coefficients.map(|vector| vector.to_contiguous());
    let overwritten = walk.tensors.pop_if(|gradient| may_become(gradient, &walk.layout));
    for_dtype!(dtype, E => match overwritten {
        Some(mut gradient) => {
            let formula = gradient_formula::<E>(walk.operand(0), None, &coefficients);
            map::update(formula, walk.grid, walk.result(), gradient.storage_mut());
            gradient
        }
        None => {
            let formula = gradient_formula::<E>(walk.operand(0), Some(walk.operand(1)), &coefficients);
            tensor(map::map(formula, walk.grid, walk.result()), walk.layout, dtype)
        }
    })
}

fn gradient_formula<'a, E: Element>(
    input: Operand<'a, E>,
    gradient: Option<Operand<'a, E>>,
    [mean, scale, mean_gradient, slope]: &'a [FlexTensor; 4],
) -> InputGradient<'a, E> {
    InputGradient {
        input,
        gradient,
        mean: cast_slice(mean.bytes()),
        scale: cast_slice(scale.bytes()),
        mean_gradient: cast_slice(mean_gradient.bytes()),
        slope: cast_slice(slope.bytes()),
    }
}

/// Whether a result of this layout may take the place of `tensor`.
fn may_become(tensor: &FlexTensor, layout: &Layout) -> bool {
    let bytes = layout.num_elements() * tensor.dtype().size();
    tensor.is_unique() && tensor.layout() == layout && tensor.bytes().len() == bytes
}

/// Tensors of one shape, some of them copied to another order in memory, and the way to walk them together.
struct Walkable {
    tensors: Vec<FlexTensor>,
    /// Of a result: the order of the first tensor in memory, without gaps.
    ///
    /// What follows and what went before then works as it would without the layer: a matrix product, whose output has the
    /// channels outermost, wants its gradient in that order too.
    layout: Layout,
    grid: Grid,
    /// Of the tensors, and then of the result.
    steps: Vec<Steps>,
}

impl Walkable {
    fn new(tensors: Vec<FlexTensor>, with_result: bool) -> Self {
        let order = memory_order(tensors[0].layout());
        let layout = dense(tensors[0].layout().shape(), &order);
        let result = with_result.then_some(&layout);
        if let Some((grid, steps)) = grid(&tensors, result) {
            return Self { tensors, layout, grid, steps };
        }
        let tensors: Vec<_> = tensors.into_iter().map(|tensor| in_order(tensor, &layout, &order)).collect();
        let (grid, steps) = grid(&tensors, result).expect("dense tensors of one order have a common grid");
        Self { tensors, layout, grid, steps }
    }

    fn operand<E: Element>(&self, index: usize) -> Operand<'_, E> {
        Operand::new(cast_slice(self.tensors[index].bytes()), self.steps[index])
    }

    fn result(&self) -> Steps {
        self.steps[self.steps.len() - 1]
    }
}

/// The grid over the tensors and the result; `None` where some of them must be copied first.
fn grid(tensors: &[FlexTensor], result: Option<&Layout>) -> Option<(Grid, Vec<Steps>)> {
    let layouts: Vec<&Layout> = tensors.iter().map(|tensor| tensor.layout()).chain(result).collect();
    let strides: Vec<Vec<usize>> = layouts
        .iter()
        // Only a flipped view has negative strides.
        .map(|layout| layout.strides().iter().map(|&stride| usize::try_from(stride).ok()).collect())
        .collect::<Option<_>>()?;
    let views: Vec<Strided<'_>> = layouts
        .iter()
        .zip(&strides)
        .map(|(layout, strides)| Strided { shape: layout.shape(), strides, offset: layout.start_offset() })
        .collect();
    Grid::over(&views)
}

/// The order of the dimensions in memory, outermost first, if it is one of those that layers make; else as in the shape.
fn memory_order(layout: &Layout) -> Vec<usize> {
    let rank = layout.num_dims();
    let channels_outermost: Vec<usize> = [1, 0].into_iter().chain(2..rank).collect();
    let channels_innermost: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    [channels_outermost, channels_innermost]
        .into_iter()
        .find(|order| dense(layout.shape(), order).strides() == layout.strides())
        .unwrap_or_else(|| (0..rank).collect())
}

/// The layout without gaps whose dimensions lie in `order`, outermost first.
fn dense(shape: &Shape, order: &[usize]) -> Layout {
    let mut strides = vec![0; order.len()];
    let mut next = 1;
    for &dim in order.iter().rev() {
        strides[dim] = next as isize;
        next *= shape[dim];
    }
    Layout::new(shape.clone(), strides, 0)
}

/// The tensor in the dense `layout` that has its dimensions in `order`.
fn in_order(tensor: FlexTensor, layout: &Layout, order: &[usize]) -> FlexTensor {
    if tensor.layout().strides() == layout.strides() {
        return tensor;
    }
    let permuted = tensor.layout().permute(order);
    tensor.with_layout(permuted).to_contiguous().with_layout(layout.clone())
}

/// Two vectors over the channels, in the type of the statistics.
fn pair_of_vectors<E: Element>(dtype: DType, pairs: Vec<Pair>) -> (FlexTensor, FlexTensor) {
    use element::Wide;
    let dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let vector = |which: usize| {
        let values: Vec<E::Wide> = pairs.iter().map(|pair| E::Wide::from_f64(pair[which])).collect();
        tensor(values, Layout::contiguous(Shape::from([pairs.len()])), dtype)
    };
    (vector(0), vector(1))
}

fn tensor<T: bytemuck::Pod + Send + Sync>(values: Vec<T>, layout: Layout, dtype: DType) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), layout, dtype)
}
