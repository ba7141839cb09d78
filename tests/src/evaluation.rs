//! Evaluation that counts every sample once, whatever the number of ranks.

use burn::module::Module;
use burn_nccl::{DType, Error, ReduceOp};
use burn_nccl_datasets::{DistributedSampler, Sampling};

use crate::data::{ROWS, batch};
use crate::model::{Net, SmallNet};
use crate::report::Report;
use crate::training::{Backend, Precision, device, group};

const TIMEOUT_SECONDS: u64 = 60;

/// Counts the right answers of an untrained net on the first `samples` images, shared out among the ranks.
///
/// # Errors
/// What the group returns.
pub fn evaluate(samples: usize, sampling: Sampling) -> Result<Report, Error> {
    let device = device(Backend::Flex, Precision::Single);
    let group = group(TIMEOUT_SECONDS)?;
    let model = SmallNet::new(Net::Plain, 0, &device).valid();
    let device = device.inner();
    let sampler = DistributedSampler::new(samples, group.rank(), group.world_size(), sampling)
        .expect("the rank is one of the group");
    let mut counts = [0i64; 2];
    for index in sampler.indices(0) {
        let (images, labels) = batch(index / ROWS, 0, &device);
        let (image, label) = (images.narrow(0, index % ROWS, 1), labels.narrow(0, index % ROWS, 1));
        let answer = model.forward(image, false).argmax(1).into_data().iter::<i64>().next();
        counts[0] += i64::from(answer == label.into_data().iter::<i64>().next());
        counts[1] += 1;
    }
    let mut bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_ne_bytes()).collect();
    group.all_reduce(&mut bytes, DType::I64, ReduceOp::Sum)?;
    let count = |at: usize| i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    Ok(Report::Evaluated { correct: count(0), total: count(8) })
}
