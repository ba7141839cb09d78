//! The options of PowerSGD.

use burn::config::Config;

/// Options of [`PowerSgd`](super::PowerSgd), with PyTorch's defaults. They must be equal on all ranks, which is checked.
#[derive(Config, Debug, PartialEq)]
pub struct PowerSgdConfig {
    /// Columns of the thin matrices: 1 to 4, rarely more. Higher is closer to the gradient and costs more.
    /// PyTorch: `matrix_approximation_rank`.
    #[config(default = 1)]
    pub rank: usize,
    /// Steps that are averaged whole before compression begins: a tenth of the training, and no less than its warm-up,
    /// since early gradients are the most sensitive. PyTorch: `start_powerSGD_iter`, of which it demands at least 2 because it
    /// plans its buckets anew after the first step; here they stay, and 0 is allowed.
    #[config(default = 1000)]
    pub start_step: usize,
    /// A matrix is compressed where `(rows + columns) * rank * min_compression_rate < rows * columns`.
    #[config(default = 2.0)]
    pub min_compression_rate: f64,
    /// Whether what a step leaves out is added to the next one. Without it training stalls on what never gets through.
    /// PyTorch: `use_error_feedback`.
    #[config(default = true)]
    pub error_feedback: bool,
    /// Whether a step begins with the directions of the one before instead of random ones, which makes of the one power
    /// iteration in each step one that converges over the steps.
    #[config(default = true)]
    pub warm_start: bool,
    /// Added to the norm of each column before the division by it.
    #[config(default = 0.0)]
    pub orthogonalization_epsilon: f32,
    /// Seed of the random directions.
    #[config(default = 0)]
    pub seed: u64,
}

impl PowerSgdConfig {
    /// Refuses values that cannot be meant.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.rank == 0 {
            return Err("its rank is 0, so that nothing would be sent; set a rank of at least 1".into());
        }
        let rate = self.min_compression_rate;
        if !(rate.is_finite() && rate > 0.0) {
            return Err(format!("min_compression_rate is {rate}; set a number above 0"));
        }
        let epsilon = self.orthogonalization_epsilon;
        if !(epsilon.is_finite() && epsilon >= 0.0) {
            return Err(format!("orthogonalization_epsilon is {epsilon}; set 0 or a small number above it"));
        }
        Ok(())
    }
}
