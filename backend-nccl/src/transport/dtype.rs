//! The element types and reductions that a collective knows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of the elements in a byte buffer, in the machine's byte order.
///
/// All ranks must have the same byte order; the rendezvous refuses a rank that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum DType {
    F32,
    F64,
    F16,
    BF16,
    I32,
    I64,
    U8,
}

impl DType {
    /// Every type, in the order of its number on the wire.
    pub const ALL: [Self; 7] = [Self::F32, Self::F64, Self::F16, Self::BF16, Self::I32, Self::I64, Self::U8];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 => 1,
        }
    }

    /// The name in messages: `f32`, `bf16`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the ranks' values of one element become one value.
///
/// Values are combined in rank order, `((v0 ∘ v1) ∘ v2) ∘ …`, so the result does not depend on how a buffer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// The sum. Integers wrap.
    Sum,
    /// The sum divided by the world size, for floats only.
    Mean,
    /// The least value; NaN if any rank has NaN.
    Min,
    /// The greatest value; NaN if any rank has NaN.
    Max,
    /// The product. Integers wrap.
    Product,
}

impl ReduceOp {
    /// Every reduction, in the order of its number on the wire.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    /// The name in messages: `sum`, `mean`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        }
    }

    /// Whether it is defined for the type: the mean of integers is not.
    pub const fn supports(self, dtype: DType) -> bool {
        dtype.is_float() || !matches!(self, Self::Mean)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
