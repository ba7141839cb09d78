//! Walks over the wire format before anything is decoded.
//!
//! Two bytes can stand for an empty message that takes hundreds when decoded, so that a small file could take all
//! memory. The walk adds up what decoding will take, and refuses what this crate has no use for, graphs within graphs
//! above all: without them the depth of messages is fixed.

use tract_onnx::pb;

use super::{COPY, EXPORT, format};
use crate::Result;

const DECODED_PER_BYTE: usize = 8;
const DECODED_FLOOR_BYTES: usize = 64 << 20;

/// A kind of message of ONNX.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Segment,
    ValueInfo,
    Type,
    TypeTensor,
    Shape,
    Dimension,
    Opset,
    Entry,
    Annotation,
}

/// What a field holds.
enum Field {
    Message(Kind),
    /// A repeated number, packed or not, of so many bytes each when decoded.
    Varints(usize),
    /// The same with a fixed width on the wire.
    Fixed(usize),
    /// Text or bytes.
    Bytes,
    /// One number, or what decoding skips.
    Other,
    Refused(&'static str, &'static str),
}

/// Why the walk ended early.
enum Broken {
    /// A field ends behind its message.
    Short {
        at: usize,
        needed: usize,
    },
    Damaged {
        at: usize,
        why: &'static str,
    },
    Refused(&'static str, &'static str),
    Expanding,
}

impl Kind {
    const fn decoded_bytes(self) -> usize {
        match self {
            Self::Model => size_of::<pb::ModelProto>(),
            Self::Graph => size_of::<pb::GraphProto>(),
            Self::Node => size_of::<pb::NodeProto>(),
            Self::Attribute => size_of::<pb::AttributeProto>(),
            Self::Tensor => size_of::<pb::TensorProto>(),
            Self::Segment => size_of::<pb::tensor_proto::Segment>(),
            Self::ValueInfo => size_of::<pb::ValueInfoProto>(),
            Self::Type => size_of::<pb::TypeProto>(),
            Self::TypeTensor => size_of::<pb::type_proto::Tensor>(),
            Self::Shape => size_of::<pb::TensorShapeProto>(),
            Self::Dimension => size_of::<pb::tensor_shape_proto::Dimension>(),
            Self::Opset => size_of::<pb::OperatorSetIdProto>(),
            Self::Entry => size_of::<pb::StringStringEntryProto>(),
            Self::Annotation => size_of::<pb::TensorAnnotation>(),
        }
    }

    /// The field of a number, as onnx.proto has it.
    fn field(self, number: u64) -> Field {
        use Field::{Bytes, Fixed, Message, Other, Refused, Varints};
        match (self, number) {
            (Self::Model, 2 | 3 | 4 | 6) => Bytes,
            (Self::Model, 7) => Message(Self::Graph),
            (Self::Model, 8) => Message(Self::Opset),
            (Self::Model, 14) => Message(Self::Entry),
            (Self::Model, 20) => Refused("it describes training", EXPORT),
            (Self::Model, 25) => {
                Refused("it has functions", "inline them with onnx.inliner.inline_local_functions")
            }
            (Self::Graph, 1) => Message(Self::Node),
            (Self::Graph, 2 | 10) => Bytes,
            (Self::Graph, 5) => Message(Self::Tensor),
            (Self::Graph, 11..=13) => Message(Self::ValueInfo),
            (Self::Graph, 14) => Message(Self::Annotation),
            (Self::Graph, 15) => Refused("it has sparse tensors", "export dense ones"),
            (Self::Node, 1..=4 | 6 | 7) => Bytes,
            (Self::Node, 5) => Message(Self::Attribute),
            (Self::Attribute, 1 | 4 | 9 | 13 | 21) => Bytes,
            (Self::Attribute, 5 | 10) => Message(Self::Tensor),
            (Self::Attribute, 6 | 11) => Refused(
                "it has graphs within its graph, as If and Loop have",
                "export it without control flow",
            ),
            (Self::Attribute, 7) => Fixed(4),
            (Self::Attribute, 8) => Varints(8),
            (Self::Attribute, 15) => Message(Self::Type),
            (Self::Attribute, 22 | 23) => Refused("it has sparse tensors", "export dense ones"),
            (Self::Tensor, 1 | 7 | 11) => Varints(8),
            (Self::Tensor, 3) => Message(Self::Segment),
            (Self::Tensor, 4) => Fixed(4),
            (Self::Tensor, 5) => Varints(4),
            (Self::Tensor, 6 | 8 | 9 | 12) => Bytes,
            (Self::Tensor, 10) => Fixed(8),
            (Self::Tensor, 13) => Message(Self::Entry),
            (Self::ValueInfo, 1 | 3) | (Self::Type, 6) | (Self::Dimension, 2 | 3) => Bytes,
            (Self::ValueInfo, 2) => Message(Self::Type),
            (Self::Type, 1) => Message(Self::TypeTensor),
            (Self::TypeTensor, 2) => Message(Self::Shape),
            (Self::Shape, 1) => Message(Self::Dimension),
            (Self::Opset | Self::Annotation, 1) | (Self::Entry, 1 | 2) => Bytes,
            (Self::Annotation, 2) => Message(Self::Entry),
            _ => Other,
        }
    }
}

/// A place in the file, and what decoding may still take.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    budget: usize,
}

/// Checks that the bytes are a message of ONNX whose decoding takes a bounded multiple of them.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let budget = bytes.len().saturating_mul(DECODED_PER_BYTE).saturating_add(DECODED_FLOOR_BYTES);
    let mut walk = Walk { bytes, at: 0, budget };
    // Nearly every exporter writes the small number of the format's version first.
    let looks_right = matches!(bytes, [0x08, 1..=0x20, ..]);
    walk.message(Kind::Model, bytes.len()).map_err(|broken| match broken {
        Broken::Refused(reason, remedy) => format(reason, remedy),
        Broken::Expanding => {
            format("its many empty parts would take far more memory than the file has", EXPORT)
        }
        _ if !looks_right => format("the bytes are those of another kind of file", EXPORT),
        Broken::Short { at, needed } => {
            let left = bytes.len().saturating_sub(at);
            let reason = format!(
                "it is truncated or damaged: at byte {at} there should be {needed} more, and {left} are left"
            );
            format(reason, COPY)
        }
        Broken::Damaged { at, why } => format(format!("it is damaged: {why} at byte {at}"), COPY),
    })
}

impl Walk<'_> {
    fn message(&mut self, kind: Kind, end: usize) -> Result<(), Broken> {
        self.spend(kind.decoded_bytes())?;
        while self.at < end {
            let key_at = self.at;
            let key = self.varint(end)?;
            let field = match key >> 3 {
                0 => return Err(Broken::Damaged { at: key_at, why: "a field has no number" }),
                number => kind.field(number),
            };
            match key & 7 {
                0 => {
                    self.varint(end)?;
                    self.spend_number(&field)?;
                }
                1 => self.skip_number(8, end, &field)?,
                5 => self.skip_number(4, end, &field)?,
                2 => {
                    let length = usize::try_from(self.varint(end)?).unwrap_or(usize::MAX);
                    let to = self.after(length, end)?;
                    self.content(&field, to)?;
                }
                _ => return Err(Broken::Damaged { at: key_at, why: "a field has an unknown type" }),
            }
        }
        Ok(())
    }

    /// Walks over what a length came before.
    fn content(&mut self, field: &Field, end: usize) -> Result<(), Broken> {
        let length = end - self.at;
        match *field {
            Field::Message(kind) => return self.message(kind, end),
            Field::Refused(reason, remedy) => return Err(Broken::Refused(reason, remedy)),
            Field::Bytes => self.spend(length + size_of::<Vec<u8>>())?,
            Field::Fixed(_) => self.spend(length)?,
            Field::Varints(bytes) => {
                // The last byte of each number has its highest bit clear.
                let numbers = self.bytes[self.at..end].iter().filter(|byte| **byte < 0x80).count();
                self.spend(numbers.saturating_mul(bytes))?;
            }
            Field::Other => {}
        }
        self.at = end;
        Ok(())
    }

    fn skip_number(&mut self, bytes: usize, end: usize, field: &Field) -> Result<(), Broken> {
        self.at = self.after(bytes, end)?;
        self.spend_number(field)
    }

    fn spend_number(&mut self, field: &Field) -> Result<(), Broken> {
        match *field {
            Field::Varints(bytes) | Field::Fixed(bytes) => self.spend(bytes),
            _ => Ok(()),
        }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Broken> {
        self.budget = self.budget.checked_sub(bytes).ok_or(Broken::Expanding)?;
        Ok(())
    }

    fn after(&self, length: usize, end: usize) -> Result<usize, Broken> {
        let to = self.at.checked_add(length).filter(|to| *to <= end);
        to.ok_or(Broken::Short { at: self.at, needed: length })
    }

    fn varint(&mut self, end: usize) -> Result<u64, Broken> {
        let start = self.at;
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let next = self.after(1, end)?;
            let byte = self.bytes[self.at];
            self.at = next;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Broken::Damaged { at: start, why: "a number is too long" })
    }
}
