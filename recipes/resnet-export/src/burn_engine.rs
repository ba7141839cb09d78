//! Burn as an engine: what the others are compared with.

use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_nccl_inference::{Engine, Error};
use burn_nccl_models::{ResNet, ResNetConfig};
use burn_nccl_records::{Architecture, BURN_VERSION, LoadDType, LoadOptions, Source, load_source};
use recipe_common::device::DeviceChoice;
use recipe_common::{RecipeError, Result};

/// The network of a self-describing file on Burn's CPU backend, in f32.
pub(crate) struct BurnEngine {
    network: ResNet,
    input: [usize; 3],
    device: Device,
    backend: &'static str,
}

impl BurnEngine {
    /// Loads the file, for images of `input`, `[channels, height, width]`: residual networks take any height and width.
    ///
    /// # Errors
    /// Where it does not describe a residual network, or its weights are not those of the one it describes.
    pub(crate) fn open(file: &Path, input: [usize; 3]) -> Result<Self> {
        let refused = |error| RecipeError::records(format!("cannot load {}", file.display()), error);
        let cpu = DeviceChoice::Cpu.select(0, 1)?;
        let options = LoadOptions::default().with_dtype(LoadDType::To(DType::F32));
        let source = Source::open(file, &options.open).map_err(refused)?;
        let config = source.architecture::<ResNetConfig>().map_err(refused)?;
        if config.input_channels != input[0] {
            return Err(RecipeError::failure(
                format!("cannot run {}", file.display()),
                format!("it takes images of {} channels, not of {}", config.input_channels, input[0]),
                "export the network again",
            ));
        }
        let network = Architecture::init(&config, &cpu.device);
        let (network, _) = load_source(&network, &source, &options).map_err(refused)?;
        Ok(Self { network, input, device: cpu.device, backend: cpu.backend })
    }

    fn logits(&self, batch: usize, images: &[f32]) -> Result<Vec<f32>, String> {
        let [channels, height, width] = self.input;
        let shape = [batch, channels, height, width];
        let images = Tensor::<4>::from_data(TensorData::new(images.to_vec(), shape), &self.device);
        let data = self.network.forward(images).try_into_data().map_err(|error| error.to_string())?;
        data.try_into_vec::<f32>().map_err(|error| format!("{error:?}"))
    }
}

impl Engine for BurnEngine {
    fn name(&self) -> String {
        format!("burn {BURN_VERSION} ({})", self.backend)
    }

    fn run(
        &mut self,
        batch: usize,
        images: &[f32],
        logits: &mut Vec<f32>,
    ) -> burn_nccl_inference::Result<()> {
        let image = self.input.iter().product();
        if batch == 0 || batch.checked_mul(image) != Some(images.len()) {
            return Err(Error::Shape { values: images.len(), batch, image });
        }
        let failed = |reason| Error::Foreign { engine: self.name(), action: "compute logits", reason };
        *logits = self.logits(batch, images).map_err(failed)?;
        Ok(())
    }
}
