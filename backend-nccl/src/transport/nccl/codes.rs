//! NCCL's numbers for element types and reductions.

use crate::transport::{DType, ReduceOp};

/// `ncclDataType_t`.
pub(super) const fn dtype(dtype: DType) -> i32 {
    match dtype {
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

/// `ncclRedOp_t`.
pub(super) const fn reduction(op: ReduceOp) -> i32 {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_and_reduction_has_the_number_of_the_header() {
        // nccl.h: ncclUint8 1, ncclInt32 2, ncclInt64 4, ncclFloat16 6, ncclFloat32 7, ncclFloat64 8, ncclBfloat16 9.
        assert_eq!(DType::ALL.map(dtype), [7, 8, 6, 9, 2, 4, 1]);
        // nccl.h: ncclSum 0, ncclProd 1, ncclMax 2, ncclMin 3, ncclAvg 4.
        assert_eq!(ReduceOp::ALL.map(reduction), [0, 4, 3, 2, 1]);
    }
}
