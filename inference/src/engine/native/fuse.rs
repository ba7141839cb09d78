//! Joins what follows a convolution with it, so that an image is written once: normalisation, sum and bounds.

use super::graph::{Affine, Conv, Graph, INPUT, Node, Op};
use super::kernel::Activation;

/// Joins nodes where what lies between them is read by nothing else.
pub(super) fn fuse(graph: &mut Graph<'_>) {
    let mut uses = vec![0_usize; graph.values.len()];
    for &input in graph.nodes.iter().flat_map(|node| &node.inputs).chain([&graph.output]) {
        uses[input] += 1;
    }
    let mut fused =
        Fused { nodes: Vec::with_capacity(graph.nodes.len()), makers: vec![None; uses.len()], uses };
    for node in std::mem::take(&mut graph.nodes) {
        fused.push(node);
    }
    graph.nodes = fused.nodes;
}

struct Fused<'a> {
    nodes: Vec<Node<'a>>,
    /// Which node makes a value.
    makers: Vec<Option<usize>>,
    uses: Vec<usize>,
}

impl<'a> Fused<'a> {
    fn push(&mut self, mut node: Node<'a>) {
        let joined = match &mut node.op {
            Op::Affine(affine) => self.join_affine(node.inputs[0], affine),
            Op::Bound(bounds) => self.join_bounds(node.inputs[0], *bounds),
            Op::Add(None) => self.join_sum(node.inputs[0], node.inputs[1]),
            _ => None,
        };
        let at = joined.unwrap_or(self.nodes.len());
        self.makers[node.output] = Some(at);
        match joined {
            Some(at) => self.nodes[at].output = node.output,
            None => self.nodes.push(node),
        }
    }

    /// The node that makes a value which is read once.
    fn sole(&self, value: usize) -> Option<usize> {
        self.makers[value].filter(|_| self.uses[value] == 1)
    }

    /// A convolution that makes a value which is read once, and does nothing more yet.
    fn conv(&mut self, value: usize) -> Option<(usize, &mut Conv<'a>)> {
        let at = self.sole(value)?;
        let node = &mut self.nodes[at];
        match &mut node.op {
            Op::Conv(conv) if conv.activation.is_none() && node.inputs.len() == 1 => Some((at, conv)),
            _ => None,
        }
    }

    fn join_affine(&mut self, input: usize, affine: &Affine) -> Option<usize> {
        let (at, conv) = self.conv(input)?;
        for (channel, (scale, shift)) in affine.scale.iter().zip(&affine.shift).enumerate() {
            conv.scale[channel] *= scale;
            conv.bias[channel] = conv.bias[channel] * scale + shift;
        }
        Some(at)
    }

    fn join_bounds(&mut self, input: usize, bounds: Activation) -> Option<usize> {
        let at = self.sole(input)?;
        let activation = match &mut self.nodes[at].op {
            Op::Conv(Conv { activation, .. })
            | Op::Affine(Affine { activation, .. })
            | Op::Add(activation) => activation,
            _ => return None,
        };
        activation.is_none().then(|| *activation = Some(bounds)).map(|()| at)
    }

    /// The sum joins the convolution that is computed last, when the other value is there.
    fn join_sum(&mut self, a: usize, b: usize) -> Option<usize> {
        let (last, other) = if self.makers[a] > self.makers[b] { (a, b) } else { (b, a) };
        if a == b || other == INPUT {
            return None;
        }
        let (at, _) = self.conv(last)?;
        self.nodes[at].inputs.push(other);
        Some(at)
    }
}
