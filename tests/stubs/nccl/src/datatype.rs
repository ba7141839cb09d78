//! NCCL's codes of element types and of reductions.

/// The types that can be reduced, as `ncclDataType_t` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataType {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
}

/// The reductions, as `ncclRedOp_t` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
}

impl DataType {
    pub(crate) fn of(code: i32) -> Option<Self> {
        let all = [
            Self::I8,
            Self::U8,
            Self::I32,
            Self::U32,
            Self::I64,
            Self::U64,
            Self::F16,
            Self::F32,
            Self::F64,
            Self::Bf16,
        ];
        usize::try_from(code).ok().and_then(|code| all.get(code).copied())
    }

    pub(crate) const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

impl Reduction {
    pub(crate) fn of(code: i32) -> Option<Self> {
        let all = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];
        usize::try_from(code).ok().and_then(|code| all.get(code).copied())
    }
}
