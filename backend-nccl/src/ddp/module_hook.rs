//! The hooked copy of a module: same values, but every trainable parameter reports its gradient.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;

use super::bucket::BucketPlan;
use super::lift::Lifts;
use crate::error::{Error, Result};
use crate::hook::{GradientHook, GradientSink, gradient_hook};

/// Maps `module` to its hooked copy, whose gradients go to `sink` under their place in the plan.
///
/// # Errors
/// [`Error::ModelChanged`] where the trainable parameters are not those of the plan.
pub(crate) fn hooked<M: Module>(
    module: M,
    plan: &BucketPlan,
    lifts: &Lifts,
    sink: &Arc<impl GradientSink + 'static>,
) -> Result<M> {
    let mut mapper =
        HookMapper { plan, lifts, sink: sink.clone(), tied: HashMap::new(), next: 0, mismatch: None };
    let hooked = module.map(&mut mapper);
    let (found, expected) = (mapper.next, plan.slots.len());
    match mapper.mismatch {
        Some(error) => Err(error),
        None if found != expected => Err(Error::ModelChanged {
            cause: format!("it has {found} trainable parameters, {expected} when it was wrapped"),
        }),
        None => Ok(hooked),
    }
}

struct HookMapper<'a, S> {
    plan: &'a BucketPlan,
    lifts: &'a Lifts,
    sink: Arc<S>,
    /// The hooked tensor of every parameter so far. Tied weights must share one: a second hook would report a part
    /// of the gradient as if it were the whole.
    tied: HashMap<ParamId, Box<dyn Any>>,
    /// Position among the distinct trainable parameters. Positions, not ids, link to the plan, because loading a
    /// record may bring new ids.
    next: usize,
    mismatch: Option<Error>,
}

impl<S: GradientSink + 'static> HookMapper<'_, S> {
    fn hook<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let index = self.next;
        self.next += 1;
        let Some(slot) = self.plan.slots.get(index) else { return tensor };
        let len_bytes = tensor.shape().num_elements() * tensor.dtype().size();
        if len_bytes != slot.len_bytes {
            let cause =
                format!("trainable parameter {index} has {len_bytes} bytes, {} before", slot.len_bytes);
            self.mismatch.get_or_insert(Error::ModelChanged { cause });
            return tensor;
        }
        let Some(lift) = self.lifts.get(slot.bucket, &tensor.device()) else {
            let cause = format!("trainable parameter {index} is on {:?} now", tensor.device());
            self.mismatch.get_or_insert(Error::ModelChanged { cause });
            return tensor;
        };
        let hook = GradientHook::ending(self.sink.clone(), index);
        gradient_hook(tensor, lift, hook)
    }
}

impl<S: GradientSink + 'static> ModuleMapper for HookMapper<'_, S> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let tensor = param.base();
        if !tensor.is_require_grad() {
            return param;
        }
        let id = param.id;
        let known = self.tied.get(&id).and_then(|tensor| tensor.downcast_ref::<Tensor<D>>());
        let hooked = match known {
            Some(hooked) => hooked.clone(),
            None => {
                let hooked = self.hook(tensor);
                self.tied.insert(id, Box::new(hooked.clone()));
                hooked
            }
        };
        Param::initialized(id, hooked)
    }
}
