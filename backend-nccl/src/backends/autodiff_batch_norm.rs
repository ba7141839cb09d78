//! Batch norm on the tape: one node with a handwritten adjoint.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;

use crate::batch_norm::{self, Batch, BatchNormGradients};
use crate::ops::{BatchNormSettings, CollectiveBackend};

/// A tensor of the autodiff backend over `B`.
type Tracked<B, C> = FloatTensor<Autodiff<B, C>>;
/// Output, mean, variance and values per channel.
type Outputs<T> = (T, T, T, u64);

/// Runs the forward pass and records its adjoint.
///
/// Compute-bound, so that gradient checkpointing never runs a collective a second time; input and gamma are
/// checkpointed, so that it may still compute them anew.
pub(super) fn record<B: CollectiveBackend, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    gamma: Tracked<B, C>,
    beta: Tracked<B, C>,
    settings: &BatchNormSettings,
) -> Outputs<Tracked<B, C>> {
    let node = BatchNorm.prepare::<C>([x.node(), gamma.node(), beta.node()]).compute_bound().stateful();
    let forward = |x: Tracked<B, C>, gamma: Tracked<B, C>| {
        batch_norm::forward::<B>(x.into_primitive(), gamma.into_primitive(), beta.into_primitive(), settings)
    };
    let (output, mean, variance, count) = match node {
        OpsKind::Tracked(mut prep) => {
            let (x_state, gamma_state) = (prep.checkpoint(&x), prep.checkpoint(&gamma));
            let result = forward(x, gamma);
            let count = result.batch.count;
            let output = prep.finish((x_state, gamma_state, result.batch), result.output);
            (output, result.mean, result.variance, count)
        }
        OpsKind::UnTracked(prep) => {
            let result = forward(x, gamma);
            (prep.finish(result.output), result.mean, result.variance, result.batch.count)
        }
    };
    (output, Tracked::<B, C>::new(mean), Tracked::<B, C>::new(variance), count)
}

#[derive(Debug)]
struct BatchNorm;

impl<B: CollectiveBackend> Backward<B, 3> for BatchNorm {
    /// Input and gamma, checkpointed, and the batch.
    type State = (NodeId, NodeId, Batch<B>);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x_node, gamma_node, beta_node] = ops.parents;
        let gradient = grads.consume::<B>(&ops.node);
        let (x, gamma, batch) = ops.state;
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let gamma = checkpointer.retrieve_node_output::<FloatTensor<B>>(gamma);
        let gradients: BatchNormGradients<B> = batch_norm::backward(x, gradient, gamma, batch);
        let by_node = [(x_node, gradients.x), (gamma_node, gradients.gamma), (beta_node, gradients.beta)];
        for (node, gradient) in by_node {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}
