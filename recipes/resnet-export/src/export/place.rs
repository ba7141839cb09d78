//! Where in a network an operation is.

use std::collections::{HashMap, HashSet};
use std::fmt;

use burn::backend::capture::TensorId;
use burn::backend::ir::OperationIr;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::onnx::{tensor_id, zeros};
use super::parameters::{Look, visit};

/// Where an operation is, told by the layers, which have names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It reads a parameter of this layer.
    In(String),
    /// It reads none: the layers whose output reaches it last and which its own output reaches first.
    Between {
        /// None for an operation on the input.
        after: Option<String>,
        /// None for one that leads to the output alone.
        before: Option<String>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(layer) => write!(f, "in `{layer}`"),
            Self::Between { after: Some(after), before: Some(before) } => {
                write!(f, "after `{after}` and before `{before}`")
            }
            Self::Between { after: Some(after), before: None } => write!(f, "after `{after}`"),
            Self::Between { after: None, before: Some(before) } => write!(f, "before `{before}`"),
            Self::Between { after: None, before: None } => f.write_str("outside of any layer"),
        }
    }
}

/// The operations of a forward pass, numbered as the exporter numbers them, and what their tensors are called.
pub(super) struct Recording {
    operations: Vec<OperationIr>,
    parameters: HashMap<TensorId, String>,
    input: TensorId,
}

impl Recording {
    /// Records the forward pass; none where that is not possible.
    pub(super) fn of<M: Module>(
        module: &M,
        shape: [usize; 4],
        forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
    ) -> Option<Self> {
        let device = Device::capture();
        let (mut parameters, mut boundary) = (Parameters::default(), None);
        let captured = device.capture_scope(|scope| {
            let module = module.clone().to_device(&device);
            visit(&module, &mut parameters);
            let images = zeros(shape).to_device(&device);
            let input = tensor_id(&images);
            let output = tensor_id(&forward(&module, images));
            boundary = input.zip(output);
            scope.complete(input, output)
        });
        let (mut operations, (input, output)) = (captured.ok()?.graph.operations, boundary?);
        // As the exporter, which numbers what is left.
        operations.retain(|operation| match operation {
            OperationIr::Init(init) => init.out.id == input || init.out.id == output,
            _ => true,
        });
        Some(Self { operations, parameters: parameters.names, input })
    }

    /// Burn's name of an operation, such as `Sin`.
    pub(super) fn operation(&self, index: usize) -> Option<String> {
        self.operations.get(index).map(|operation| name(&format!("{operation:?}")))
    }

    /// The operation that makes a tensor of another recording of the same forward pass, in which `input` is the input.
    pub(super) fn index_of(&self, tensor: TensorId, input: TensorId) -> Option<usize> {
        let from_input = tensor.value().checked_sub(input.value())?;
        let meant = TensorId::new(self.input.value().checked_add(from_input)?);
        self.operations.iter().position(|operation| operation.outputs().any(|output| output.id == meant))
    }

    /// Where an operation is.
    pub(super) fn place(&self, index: usize) -> Place {
        let operation = &self.operations[index];
        match self.layer(operation) {
            Some(layer) => Place::In(layer),
            None => Place::Between { after: self.last_before(index), before: self.first_after(index) },
        }
    }

    /// The layer that an operation belongs to: the path of a parameter that it reads, without the parameter's own name.
    fn layer(&self, operation: &OperationIr) -> Option<String> {
        let parameter = operation.inputs().find_map(|tensor| self.parameters.get(&tensor.id))?;
        Some(parameter.rsplit_once('.').map_or(parameter.as_str(), |(layer, _)| layer).to_owned())
    }

    /// The last layer on the way to an operation.
    fn last_before(&self, index: usize) -> Option<String> {
        let mut wanted = HashSet::new();
        wanted.extend(self.operations[index].inputs().map(|tensor| tensor.id));
        self.operations[..index].iter().rev().find_map(|operation| {
            if !operation.outputs().any(|output| wanted.contains(&output.id)) {
                return None;
            }
            wanted.extend(operation.inputs().map(|tensor| tensor.id));
            self.layer(operation)
        })
    }

    /// The first layer on the way from an operation.
    fn first_after(&self, index: usize) -> Option<String> {
        let mut reached = HashSet::new();
        reached.extend(self.operations[index].outputs().map(|tensor| tensor.id));
        self.operations[index + 1..].iter().find_map(|operation| {
            if !operation.inputs().any(|input| reached.contains(&input.id)) {
                return None;
            }
            reached.extend(operation.outputs().map(|tensor| tensor.id));
            self.layer(operation)
        })
    }
}

/// The variant's name in the Debug text of an operation: `Sin` of `Float(F32, Sin(UnaryOpIr { .. }))`.
fn name(debug: &str) -> String {
    let head = debug.split('{').next().unwrap_or(debug);
    let mut words = head.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.rfind(|word| !word.ends_with("Ir"));
    name.unwrap_or("an operation").to_owned()
}

/// What the tensors of a module's parameters are called.
#[derive(Default)]
struct Parameters {
    names: HashMap<TensorId, String>,
}

impl Look for Parameters {
    fn look<const D: usize>(&mut self, path: &str, param: &Param<Tensor<D>>) {
        if let Some(id) = tensor_id(&param.val()) {
            self.names.insert(id, path.to_owned());
        }
    }
}
