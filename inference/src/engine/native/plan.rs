//! Compiles a graph: chooses steps, and where each value lies.

use super::arena::{Arena, Use};
use super::graph::{Affine, Conv, Graph, INPUT, Node, Op, Shape, Window, failed};
use super::kernel::Kernels;
use super::simd::{Isa, LANES};
use super::step::{
    AddStep, AffineStep, Block, BoundStep, Direct, Flatten, GlobalAverage, Io, Layout, Pad, Place, PoolStep,
    Step, Winograd, by_block,
};
use crate::Result;

/// Most values of packed weights: 2 GiB. A file may use the same tensor any number of times.
const MAX_WEIGHTS: usize = 1 << 29;

/// A compiled network.
pub(super) struct Program {
    pub(super) steps: Vec<Box<dyn Step>>,
    /// Where each value lies.
    pub(super) places: Vec<Place>,
    /// Values of memory for each image.
    pub(super) memory: usize,
    /// Values of memory for each thread.
    pub(super) scratch: usize,
    /// The value that is the logits.
    pub(super) output: usize,
    pub(super) isa: Isa,
    pub(super) kernels: &'static Kernels,
}

/// A network on its way to a program.
struct Plan {
    values: Vec<Shape>,
    arena: Arena,
    steps: Vec<Box<dyn Step>>,
    /// The input with blocked channels, where something asked for it.
    blocked: Option<usize>,
    kernels: &'static Kernels,
}

/// Refuses more weights than are allowed, before any is packed.
fn bounded(graph: &Graph<'_>) -> Result<()> {
    let mut total = 0_usize;
    for node in &graph.nodes {
        if let Op::Conv(conv) = &node.op {
            total = total.saturating_add(most_packed(conv));
        }
        if total > MAX_WEIGHTS {
            return Err(node.label.unsupported("the weights up to it take more memory than is allowed"));
        }
    }
    Ok(())
}

/// Most values that a convolution's weights can be once they are packed: a block of output channels reads up to as many
/// groups as it has channels, and patches of 6x6 take four values for one.
fn most_packed(conv: &Conv<'_>) -> usize {
    let inputs = (conv.in_channels / conv.groups * conv.groups.min(LANES)).next_multiple_of(LANES);
    let patch = if conv.window.kernel == [3, 3] && conv.groups == 1 { 4 } else { 1 };
    let [height, width] = conv.window.kernel;
    [conv.out_channels.next_multiple_of(LANES), inputs, height, width, patch]
        .into_iter()
        .fold(1, usize::saturating_mul)
}

/// Compiles a graph for an instruction set.
pub(super) fn compile(graph: Graph<'_>, isa: Isa) -> Result<Program> {
    bounded(&graph)?;
    let kernels = Kernels::of(isa);
    let mut arena = Arena::default();
    for (value, shape) in graph.values.iter().enumerate() {
        let input = shape.channels * shape.pixels();
        arena.add(if value == INPUT { input } else { shape.blocked_values() });
    }
    let output = graph.output;
    let mut plan = Plan { values: graph.values, arena, steps: Vec::new(), blocked: None, kernels };
    for node in graph.nodes {
        let label = node.label.clone();
        plan.node(node).map_err(|reason| label.unsupported(reason))?;
    }
    plan.arena.keep(output, plan.steps.len());
    let (places, memory) = plan.arena.lay_out().map_err(failed)?;
    let scratch = plan.steps.iter().map(|step| step.scratch()).max().unwrap_or(0);
    Ok(Program { steps: plan.steps, places, memory, scratch, output, isa, kernels })
}

impl Plan {
    fn push(&mut self, step: impl Step + 'static, uses: Use<'_>) {
        self.arena.step(self.steps.len(), uses);
        self.steps.push(Box::new(step));
    }

    fn node(&mut self, node: Node<'_>) -> Result<(), String> {
        let out = node.output;
        if let Op::Conv(conv) = &node.op {
            return self.conv(conv, node.inputs[0], node.inputs.get(1).copied(), out);
        }
        let inputs: Vec<_> = node.inputs.iter().map(|&input| self.blocked(input)).collect();
        let input = inputs[0];
        let shape = self.values[node.inputs[0]];
        let uses = |in_place| Use { reads: &inputs, writes: out, in_place };
        match node.op {
            Op::Conv(_) => {}
            Op::Affine(affine) => self.push(affine_step(&affine, [input, out], shape), uses(Some(input))),
            Op::Bound(activation) => self.push(BoundStep { input, out, activation }, uses(Some(input))),
            Op::Add(activation) => {
                let inputs = [inputs[0], inputs[1]];
                self.push(AddStep { inputs, out, activation }, uses(Some(input)));
            }
            Op::Pool(pool) => {
                let to = self.values[out];
                self.push(PoolStep { input, out, pool, from: shape, to }, uses(None));
            }
            Op::GlobalAverage => self.push(GlobalAverage { input, out, shape }, uses(None)),
            Op::Flatten => self.push(Flatten { input, out, shape }, uses(None)),
        }
        Ok(())
    }

    /// The value with blocked channels: all have them but the network's input.
    fn blocked(&mut self, value: usize) -> usize {
        if value != INPUT {
            return value;
        }
        if let Some(blocked) = self.blocked {
            return blocked;
        }
        let shape = self.values[INPUT];
        let out = self.arena.add(shape.blocked_values());
        self.push(Block { input: INPUT, out, shape }, Use { reads: &[INPUT], writes: out, in_place: None });
        self.blocked = Some(out);
        out
    }

    fn conv(
        &mut self,
        conv: &Conv<'_>,
        input: usize,
        residual: Option<usize>,
        out: usize,
    ) -> Result<(), String> {
        let (from, to) = (self.values[input], self.values[out]);
        let planar = input == INPUT;
        let side = Winograd::side(conv, to).filter(|_| !planar);
        let source = if side.is_some() { input } else { self.framed(conv, input)? };
        let io = Io { input: source, out, residual };
        let reads: Vec<_> = [source].into_iter().chain(residual).collect();
        let uses =
            Use { reads: &reads, writes: out, in_place: residual.filter(|residual| *residual != source) };
        if let Some(side) = side {
            let step = Winograd::new(conv, io, [from, to], side, self.kernels)?;
            self.push(step, uses);
            return Ok(());
        }
        let (layout, shape) = flattened(Layout { planar, size: frame(conv, from), window: conv.window }, to);
        let step = Direct::new(conv, io, &layout, shape, self.kernels)?;
        self.push(step, uses);
        Ok(())
    }

    /// The input in a frame of zeros, where the convolution reads beyond its edges.
    fn framed(&mut self, conv: &Conv<'_>, input: usize) -> Result<usize, String> {
        if !conv.window.is_padded() {
            return Ok(input);
        }
        let from = self.values[input];
        let framed = frame(conv, from);
        let shape = Shape::new(from.channels, framed[0], framed[1])?;
        let (planes, unit) = if input == INPUT { (from.channels, 1) } else { (from.blocks(), LANES) };
        let out = self.arena.add(planes * unit * shape.pixels());
        let size = [from.height, from.width];
        let step = Pad { input, out, planes, unit, size, before: conv.window.before, framed };
        self.push(step, Use { reads: &[input], writes: out, in_place: None });
        Ok(out)
    }
}

/// The size of the image with its padding.
fn frame(conv: &Conv<'_>, from: Shape) -> [usize; 2] {
    let Window { before, after, .. } = conv.window;
    [from.height + before[0] + after[0], from.width + before[1] + after[1]]
}

/// Makes an image one row where the window is one pixel that visits all, so that tiles need not end with its rows.
fn flattened(layout: Layout, to: Shape) -> (Layout, Shape) {
    if layout.window != Window::PIXEL || layout.planar {
        return (layout, to);
    }
    let pixels = layout.size[0] * layout.size[1];
    (Layout { size: [1, pixels], ..layout }, Shape { height: 1, width: pixels, ..to })
}

fn affine_step(affine: &Affine, [input, out]: [usize; 2], shape: Shape) -> AffineStep {
    let (scale, shift) = (by_block(&affine.scale), by_block(&affine.shift));
    AffineStep { input, out, shape, scale, shift, activation: affine.activation }
}
