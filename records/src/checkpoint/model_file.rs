//! `model.bpk`, checked against the model before any of it is changed.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::store::burn_pack::{Bytes, DType, Reader, Tensor as Stored};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Device, Int, Shape, Tensor, TensorData};
