use std::fmt;
use std::str::FromStr;

/// How the weights of convolutions and matrix products are stored. Engines compute in f32 whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// As trained.
    #[default]
    F32,
    /// Half the size: a `Cast` widens them when the network is loaded.
    F16,
    /// A quarter of the size: signed, symmetric, with one scale for each output channel; `DequantizeLinear` widens them.
    Int8,
}

impl WeightType {
    /// Every type.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Int8];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for WeightType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|weights| weights.name() == text)
            .ok_or_else(|| format!("unknown type of weights `{text}`: use f32, f16, int8"))
    }
}
