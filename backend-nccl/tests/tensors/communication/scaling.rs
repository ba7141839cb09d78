//! PowerSGD under loss scaling.

use burn::tensor::Device;
use burn_nccl::amp::GradScalerConfig;
use burn_nccl::ddp::{Communication, DdpConfig, DistributedDataParallel, PowerSgdConfig};
use burn_nccl::{ProcessGroup, amp::GradScaler};

use crate::model::{Net, optimizer, parameters, rows};
use crate::on_ranks;

const PER_RANK: usize = 3;

fn device() -> Device {
    Device::flex().autodiff()
}

fn config() -> DdpConfig {
    let power_sgd = PowerSgdConfig::new().with_rank(1).with_start_step(0).with_min_compression_rate(1.0);
    DdpConfig::new()
        .with_first_bucket_bytes(64)
        .with_bucket_bytes(128)
        .with_communication(Communication::PowerSgd(power_sgd))
}

/// Trains on the given batches; the loss of rank 1 is infinite in those that are `None`.
fn train(group: &ProcessGroup, batches: &[Option<usize>], mut scaler: Option<GradScaler>) -> (Vec<f32>, u64) {
    let (mut ddp, mut net) = DistributedDataParallel::new(Net::new(&device()), group, &config()).unwrap();
    if let Some(scaler) = &scaler {
        ddp.set_loss_scale(scaler.loss_scale());
    }
    let mut optimizer = optimizer();
    for batch in batches {
        let start = (batch.unwrap_or(17) * 2 + group.rank()) * PER_RANK;
        let mut loss = ddp.hook(&net).unwrap().loss(rows(start, start + PER_RANK, &device()));
        if batch.is_none() && group.rank() == 1 {
            loss = loss * f32::INFINITY;
        }
        net = match &mut scaler {
            Some(scaler) => {
                let gradients = ddp.backward(&scaler.scale(loss), &net).unwrap();
                let net = scaler.step(&mut optimizer, 0.1, net, gradients).unwrap();
                scaler.update().unwrap();
                net
            }
            None => {
                let gradients = ddp.backward(&loss, &net).unwrap();
                optimizer.step(0.1, net, gradients)
            }
        };
    }
    (parameters(&net), scaler.map_or(0, |scaler| scaler.skipped_steps()))
}

#[test]
fn skipped_steps_and_changes_of_the_scale_leave_training_as_if_they_had_not_been() {
    let batches = [Some(0), Some(1), None, Some(2), None, None, Some(3), Some(4)];
    let scaled = on_ranks(2, |group| {
        // The scale halves in each skipped step and doubles after every second good one.
        let scaler = GradScalerConfig::new().with_growth_interval(2).init().unwrap().with_group(&group);
        train(&group, &batches, Some(scaler))
    });
    let good: Vec<_> = batches.iter().copied().filter(Option::is_some).collect();
    let plain = on_ranks(2, |group| train(&group, &good, None));
    assert_eq!(scaled[0], scaled[1]);
    assert_eq!(scaled[0].1, 3);
    // Scales are powers of two, so that nothing is rounded differently.
    assert_eq!(scaled[0].0, plain[0].0);
}
