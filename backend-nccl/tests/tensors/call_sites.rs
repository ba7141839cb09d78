//! Records of collectives that this crate makes for its user show the user's line and what they are for.

use burn::tensor::{Device, Tensor};
use burn_nccl::group::Operation;
use burn_nccl::{DdpConfig, DistributedDataParallel, ReduceOp, functions};

use crate::model::{Net, rows};
use crate::on_ranks;

/// Whether an operation was called on a line of this file.
fn is_of(operation: &Operation, line: u32) -> bool {
    operation.called_at.starts_with(&format!("{}:{line}:", file!()))
}

#[test]
fn buckets_are_of_the_line_that_called_backward() {
    let device = Device::flex().autodiff();
    let config = DdpConfig::new().with_first_bucket_bytes(64).with_bucket_bytes(128);
    for (record, wrapped, stepped) in on_ranks(2, |group| {
        let wrapped = line!() + 1;
        let (mut ddp, net) = DistributedDataParallel::new(Net::new(&device), &group, &config).unwrap();
        let loss = ddp.hook(&net).unwrap().loss(rows(0, 4, &device));
        let stepped = line!() + 1;
        let _ = ddp.backward(&loss, &net).unwrap();
        (group.flight_record(), wrapped, stepped)
    }) {
        let buckets: Vec<&Operation> = record
            .operations
            .iter()
            .filter(|it| it.purpose.as_deref().is_some_and(|purpose| purpose.starts_with("bucket ")))
            .collect();
        assert!(buckets.len() > 2, "{record:#?}");
        for (index, bucket) in buckets.iter().enumerate() {
            let purpose = format!("bucket {} of {}", index + 1, buckets.len());
            assert_eq!(bucket.purpose.as_deref(), Some(purpose.as_str()));
        }
        for operation in &record.operations {
            assert!(is_of(operation, wrapped) || is_of(operation, stepped), "{operation:?}");
            assert!(operation.purpose.is_some(), "{operation:?}");
        }
        assert!(buckets.iter().all(|bucket| is_of(bucket, stepped)), "{record:#?}");
    }
}

#[test]
fn a_function_on_tensors_and_its_adjoint_are_of_the_line_that_called_it() {
    let device = Device::flex().autodiff();
    for (record, line) in on_ranks(2, |group| {
        let input = Tensor::<1>::ones([4], &device).require_grad();
        let line = line!() + 1;
        let output = functions::all_reduce(input, ReduceOp::Sum, &group).unwrap();
        output.sum().backward();
        (group.flight_record(), line)
    }) {
        assert_eq!(record.operations.len(), 2, "{record:#?}");
        assert!(record.operations.iter().all(|operation| is_of(operation, line)), "{record:#?}");
        let purposes: Vec<_> = record.operations.iter().map(|it| it.purpose.as_deref()).collect();
        assert_eq!(purposes, [None, Some("its backward pass")]);
    }
}
