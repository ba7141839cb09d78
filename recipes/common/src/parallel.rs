//! One rank alone, or one of several: the only place where the training loop differs.

use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn_nccl::accumulation::GradientAverage;
use burn_nccl::amp::LossScale;
use burn_nccl::ddp::BucketStorage;
use burn_nccl::{DType, DdpConfig, DistributedDataParallel, ProcessGroup, ReduceOp};

use crate::error::{RecipeError, Result};

const TRAIN: &str = "cannot train together with the other ranks";

/// How gradients and counts of this rank meet those of the others.
pub enum Parallel {
    /// There are no others.
    Alone(GradientAverage),
    /// A group whose ranks train one model.
    Group(Box<DistributedDataParallel>),
}

/// Gradients and where the time of their backward pass went.
pub struct Backward {
    /// The gradients, averaged over ranks and over the batches of the window; none before its last batch.
    pub gradients: Option<GradientsParams>,
    /// Seconds of the backward pass, with the communication that it hides.
    pub seconds: f64,
    /// Seconds of waiting for the other ranks after it.
    pub exposed_seconds: f64,
}

impl Parallel {
    /// A rank without others.
    pub fn alone() -> Self {
        Self::Alone(GradientAverage::new())
    }

    /// Joins a group: checks that all ranks hold the same model, and returns rank 0's.
    ///
    /// # Errors
    /// Where the models differ, or a rank is lost.
    pub fn join<M: Module>(group: &ProcessGroup, model: M, config: &DdpConfig) -> Result<(Self, M)> {
        let (ddp, model) = DistributedDataParallel::new(model, group, config)
            .map_err(|error| RecipeError::group("the ranks cannot train one model", error))?;
        Ok((Self::Group(Box::new(ddp)), model))
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        match self {
            Self::Alone(_) => 0,
            Self::Group(ddp) => ddp.group().rank(),
        }
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        match self {
            Self::Alone(_) => 1,
            Self::Group(ddp) => ddp.group().world_size(),
        }
    }

    /// The group of the ranks.
    pub fn group(&self) -> Option<&ProcessGroup> {
        match self {
            Self::Alone(_) => None,
            Self::Group(ddp) => Some(ddp.group()),
        }
    }

    /// Where gradients are averaged over ranks, where there are others: on the `device`, or in `host` memory.
    pub fn bucket_storage(&self) -> Option<&'static str> {
        match self {
            Self::Alone(_) => None,
            Self::Group(ddp) => match ddp.bucket_storage() {
                BucketStorage::Device => Some("device"),
                BucketStorage::Host => Some("host"),
                // What it was asked for, and not what it has chosen.
                BucketStorage::Auto => None,
            },
        }
    }

    /// Tells how losses are scaled, where they are.
    pub fn set_loss_scale(&mut self, loss_scale: Option<LossScale>) {
        if let (Self::Group(ddp), Some(loss_scale)) = (self, loss_scale) {
            ddp.set_loss_scale(loss_scale);
        }
    }

    /// The model to run one forward pass on.
    ///
    /// # Errors
    /// Where the model is not the one of [`join`](Self::join).
    pub fn forward_model<M: Module>(&self, model: &M) -> Result<M> {
        match self {
            Self::Alone(_) => Ok(model.clone()),
            Self::Group(ddp) => ddp.hook(model).map_err(|error| RecipeError::group(TRAIN, error)),
        }
    }

    /// Runs the backward pass of a batch that is not the last of its window, and keeps its gradients.
    ///
    /// # Errors
    /// Where a gradient cannot be read.
    pub fn accumulate<M: Module>(&mut self, loss: &Tensor<1>, model: &M) -> Result<Backward> {
        let started = Instant::now();
        match self {
            Self::Alone(average) => average.add(model, GradientsParams::from_grads(loss.backward(), model)),
            Self::Group(ddp) => ddp.no_sync(loss).map_err(|error| RecipeError::group(TRAIN, error))?,
        }
        Ok(Backward { gradients: None, seconds: started.elapsed().as_secs_f64(), exposed_seconds: 0.0 })
    }

    /// Runs the backward pass of a window's last batch and returns the gradients, averaged over ranks and over the
    /// batches of the window.
    ///
    /// # Errors
    /// Where a rank is lost, or does not use all parameters.
    pub fn backward<M: Module>(&mut self, loss: &Tensor<1>, model: &M) -> Result<Backward> {
        let started = Instant::now();
        let (gradients, exposed_seconds) = match self {
            Self::Alone(average) => {
                let gradients = GradientsParams::from_grads(loss.backward(), model);
                (whole_window(average, model, gradients)?, 0.0)
            }
            Self::Group(ddp) => {
                let gradients =
                    ddp.backward(loss, model).map_err(|error| RecipeError::group(TRAIN, error))?;
                (gradients, ddp.last_exposed_seconds())
            }
        };
        let seconds = (started.elapsed().as_secs_f64() - exposed_seconds).max(0.0);
        Ok(Backward { gradients: Some(gradients), seconds, exposed_seconds })
    }

    /// Gives every rank rank 0's running statistics.
    ///
    /// # Errors
    /// Where a rank is lost.
    pub fn sync_buffers<M: Module>(&self, model: M) -> Result<M> {
        match self {
            Self::Alone(_) => Ok(model),
            Self::Group(ddp) => ddp.sync_buffers(model).map_err(|error| RecipeError::group(TRAIN, error)),
        }
    }

    /// Sums each value over the ranks.
    ///
    /// # Errors
    /// Where a rank is lost.
    pub fn sum_f64(&self, values: &mut [f64]) -> Result<()> {
        self.sum(bytemuck::cast_slice_mut(values), DType::F64)
    }

    /// Sums each value over the ranks.
    ///
    /// # Errors
    /// Where a rank is lost.
    pub fn sum_i64(&self, values: &mut [i64]) -> Result<()> {
        self.sum(bytemuck::cast_slice_mut(values), DType::I64)
    }

    fn sum(&self, bytes: &mut [u8], dtype: DType) -> Result<()> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Group(ddp) => ddp
                .group()
                .all_reduce(bytes, dtype, ReduceOp::Sum)
                .map_err(|error| RecipeError::group(TRAIN, error)),
        }
    }
}

/// The average over a window of which `last` are the gradients of the last batch.
fn whole_window<M: Module>(
    average: &mut GradientAverage,
    model: &M,
    last: GradientsParams,
) -> Result<GradientsParams> {
    if average.passes() == 0 {
        return Ok(last);
    }
    average.add(model, last);
    average.take(model).map_err(|error| RecipeError::group("cannot average gradients", error))
}
