use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use prost::Message;
use tract_onnx::pb::ModelProto;

use super::{COPY, Signature, WeightType, foreign, format, graph, rewrite, wire};
use crate::{Error, Result, memory};

/// An image classifier in ONNX whose structure has been checked.
#[derive(Clone, Debug)]
pub struct Onnx {
    pub(super) proto: ModelProto,
    pub(super) signature: Signature,
}

/// Protobuf tells lengths in 31 bits.
const MAX_FILE_BYTES: usize = i32::MAX as usize;

impl Onnx {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// [`Error::Read`]; those of [`from_bytes`](Self::from_bytes).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if !metadata.is_file() {
            // A pipe would block for ever, and a folder says so only in the system's words.
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
        }
        let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        check_length(length)?;
        let mut bytes = Vec::with_capacity(length);
        // One byte more than is allowed tells a file that grows while it is read.
        File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes))
            .map_err(failed)?;
        Self::from_bytes(&bytes)
    }

    /// Checks the bytes of a file.
    ///
    /// Takes as much memory as the bytes and the largest tensor where most of the bytes are those of weights, and never
    /// more than 24 times the bytes and 64 MiB. Constants that are listed as inputs too, as old exporters do, are taken
    /// for constants, and those of nodes are moved to the others.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] for what is no ONNX file, is truncated, has data outside it, subgraphs or functions, tensors of
    /// more than 8 axes or whose data does not fit their shape, names that are used before they are made or made twice, another opset than 7 to 25,
    /// more than 20,000 nodes, or a normalisation in training mode. [`Error::Signature`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        check_length(bytes.len())?;
        if let Some(error) = foreign::recognise(bytes) {
            return Err(error);
        }
        wire::check(bytes)?;
        let proto = ModelProto::decode(bytes).map_err(|error| format(error.to_string(), COPY))?;
        Self::from_proto(proto)
    }

    fn from_proto(mut proto: ModelProto) -> Result<Self> {
        let signature = Signature::of(graph::check(&proto)?)?;
        constants_are_no_inputs(&mut proto);
        if let Some(graph) = &mut proto.graph {
            rewrite::hoist_constants(graph);
        }
        Ok(Self { proto, signature })
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.proto.encode_to_vec()
    }

    /// What the network takes and gives.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The whole file, for the engines.
    pub(crate) fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// The same with f32 weights where they are stored in fewer bits.
    pub(crate) fn widened(&self) -> Cow<'_, ModelProto> {
        rewrite::widened(&self.proto)
    }

    /// Folds each batch normalisation into the convolution before it where that one feeds nothing else, and says how many.
    ///
    /// `BN(conv(x, W) + b) = conv(x, W s) + (b - mean) s + beta` with `s = gamma / sqrt(var + epsilon)`, per output
    /// channel. Source: torch.nn.utils.fusion.fuse_conv_bn_weights.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] for a normalisation behind such a convolution whose statistics are no constants of its channels.
    /// The network is then as before.
    pub fn fold_batch_norms(&mut self) -> Result<usize> {
        match &mut self.proto.graph {
            Some(graph) => rewrite::fold_batch_norms(graph),
            None => Ok(0),
        }
    }

    /// Gives each constant that the graph only reshapes its new shape instead, removes what the output does not need where
    /// there was one, and says how many: exporters write such a node before they add the bias of a classifier.
    pub fn fold_reshapes(&mut self) -> usize {
        self.proto.graph.as_mut().map_or(0, rewrite::fold_reshapes)
    }

    /// Stores the weights of convolutions and matrix products in another type; biases stay f32.
    ///
    /// [`WeightType::F32`] leaves the file as it is. Int8 is symmetric with one scale for each output channel,
    /// `scale = max |w| / 127`. Fold normalisations first: weights that are narrow no longer take them in.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] for a weight that is not finite, beyond the range of f16, or stored in another narrow type
    /// already; for int8 before opset 13, which has no scales per channel. The network is then as before.
    pub fn set_weights(&mut self, weights: WeightType) -> Result<()> {
        rewrite::narrow(&mut self.proto, weights)
    }
}

impl Drop for Onnx {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.proto));
        memory::give_back();
    }
}

/// The fourth version of the format ended that constants are listed as inputs too. Engines take one that is listed for a
/// default that a caller may replace, and compute nothing with it in advance.
fn constants_are_no_inputs(proto: &mut ModelProto) {
    const SEPARATE: i64 = 4;
    let Some(graph) = &mut proto.graph else { return };
    let constants: HashSet<_> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    graph.input.retain(|input| !constants.contains(input.name.as_str()));
    proto.ir_version = proto.ir_version.max(SEPARATE);
}

fn check_length(bytes: usize) -> Result<()> {
    if bytes > MAX_FILE_BYTES {
        let reason = format!("it is {bytes} bytes long, and a protobuf message ends at {MAX_FILE_BYTES}");
        return Err(format(reason, "export a smaller network, or narrow its weights"));
    }
    Ok(())
}
