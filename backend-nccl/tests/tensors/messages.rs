//! Tensors between single ranks, and to and from one root.

use burn::tensor::{DType, Device, Tensor};
use burn_nccl::functions::{gather, recv, scatter, send};
use burn_nccl::{Error, ProcessGroup};

use crate::{devices, on_ranks, values};

const WORLD_SIZE: usize = 3;

/// Rank r holds rows [10 r, 10 r + 1], seen through a transposed view.
fn rows(rank: usize, device: &Device) -> Tensor<2> {
    let r = 10.0 * rank as f32;
    Tensor::<2>::from_floats([[r], [r + 1.0]], device).transpose()
}

#[test]
fn a_root_gathers_the_rows_of_all_ranks_in_their_order_and_scatters_them_back() {
    for device in devices() {
        on_ranks(WORLD_SIZE, |group| {
            let own = rows(group.rank(), &device);
            let all = gather(own.clone(), 1, &group).unwrap();
            assert_eq!(all.is_some(), group.rank() == 1);
            if let Some(all) = &all {
                assert_eq!(all.dims(), [3, 2]);
                assert_eq!(values(all.clone()), [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
            }
            let back = scatter(all.unwrap_or_else(|| own.zeros_like()), 1, &group).unwrap();
            assert_eq!((back.dims(), values(back)), (own.dims(), values(own)));
        });
    }
}

#[test]
fn a_tensor_arrives_with_its_values_and_its_type() {
    for device in devices() {
        on_ranks(2, |group| {
            let tensor = rows(3, &device).cast(DType::F64);
            if group.rank() == 0 {
                send(tensor, 1, &group).unwrap();
            } else {
                let received = recv(tensor.zeros_like(), 0, &group).unwrap();
                assert_eq!(received.dtype(), DType::F64);
                assert_eq!(received.into_data(), tensor.into_data());
            }
        });
    }
}

#[test]
fn a_tensor_that_requires_gradients_is_refused_before_anything_is_sent() {
    let device = Device::flex().autodiff();
    let group = ProcessGroup::single();
    let tensor = rows(0, &device).require_grad();
    let refused = [
        gather(tensor.clone(), 0, &group).map(drop).unwrap_err(),
        scatter(tensor.clone(), 0, &group).map(drop).unwrap_err(),
        send(tensor, 0, &group).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::CutsGraph { .. }), "{error}");
    }
}
