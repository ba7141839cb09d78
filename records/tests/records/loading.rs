//! Which tensor becomes which parameter, and what is said of the rest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::store::PathFilter;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use burn_nccl_records::{Error, LoadOptions, LoadReport, Names, load};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::fixtures::{Net, assert_is_golden, fixture, golden};

fn device() -> Device {
    Device::flex()
}

/// A safetensors file of f32 tensors, written by the safetensors crate.
fn write(path: &Path, tensors: &[(&str, Vec<usize>, Vec<f32>)], metadata: &[(&str, &str)]) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (name.to_string(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let metadata = metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    safetensors::serialize_to_file(views, Some(metadata), path).unwrap();
}

/// The golden network as a safetensors file, each name changed by `rename`.
fn renamed(folder: &Path, rename: impl Fn(&str) -> String) -> PathBuf {
    let shapes: BTreeMap<_, Vec<usize>> = BTreeMap::from([
        ("conv.weight", vec![3, 2, 2, 2]),
        ("conv.bias", vec![3]),
        ("bn.weight", vec![3]),
        ("bn.bias", vec![3]),
        ("bn.running_mean", vec![3]),
        ("bn.running_var", vec![3]),
        ("fc.weight", vec![2, 3]),
        ("fc.bias", vec![2]),
    ]);
    let golden = golden().state;
    let names: Vec<(String, _)> = shapes.iter().map(|(name, shape)| (rename(name), (name, shape))).collect();
    let tensors: Vec<_> = names
        .iter()
        .map(|(new, (name, shape))| (new.as_str(), shape.to_vec(), golden[**name].clone()))
        .collect();
    let path = folder.join("renamed.safetensors");
    write(&path, &tensors, &[("format", "pt")]);
    path
}

fn mismatch(error: Error) -> LoadReport {
    match error {
        Error::Mismatch { report, .. } => *report,
        other => panic!("{other}"),
    }
}

// C6
#[test]
fn the_prefixes_of_wrappers_are_removed_when_every_name_has_them() {
    let folder = tempfile::tempdir().unwrap();
    for prefix in ["module.", "model.", "_orig_mod.", "module._orig_mod."] {
        let path = renamed(folder.path(), |name| format!("{prefix}{name}"));
        let (net, report) = load(&Net::new(&device()), path, &LoadOptions::default()).unwrap();
        assert_eq!(report.prefix.as_deref(), Some(prefix));
        assert_is_golden(&net);
    }
    let path =
        renamed(folder.path(), |name| if name == "fc.bias" { name.into() } else { format!("module.{name}") });
    let report = mismatch(load(&Net::new(&device()), path, &LoadOptions::default()).unwrap_err());
    assert_eq!((report.prefix, report.missing.len()), (None, 7));
}

// C6
#[test]
fn a_field_called_module_keeps_its_name() {
    #[derive(Module, Debug)]
    struct Wrapper {
        module: Linear,
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrapped.safetensors");
    for prefix in ["", "module.", "_orig_mod."] {
        let [weight, bias] = ["weight", "bias"].map(|name| format!("{prefix}module.{name}"));
        write(&path, &[(&weight, vec![1, 2], vec![1., 2.]), (&bias, vec![1], vec![3.])], &[]);
        let wrapper = Wrapper { module: LinearConfig::new(2, 1).init(&device()) };
        let (loaded, report) = load(&wrapper, &path, &LoadOptions::default()).unwrap();
        assert_eq!(report.loaded, ["module.weight", "module.bias"]);
        assert_eq!(report.prefix.unwrap_or_default(), prefix);
        assert_eq!(loaded.module.weight.val().into_data().try_into_vec::<f32>().unwrap(), [1., 2.]);
    }
}

#[test]
fn a_strict_load_names_what_is_missing_left_over_and_misshapen_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = renamed(folder.path(), |name| name.replace("conv.", "conv1."));
    let net = Net::with_classes(5, &device());
    let before = net.state();
    let error = load(&net, &path, &LoadOptions::default()).unwrap_err();
    let text = error.to_string();
    for line in [
        "does not fit the model: 4 of 8 parameters match (PyTorch names)",
        "conv.weight [3, 2, 2, 2]; nearest: conv1.weight",
        "conv1.bias; nearest: conv.bias",
        "fc.weight: the model needs [5, 3], the file has [2, 3]",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    let report = mismatch(error);
    assert_eq!(report.missing[0].name, "conv.weight");
    assert_eq!(report.unexpected, ["conv1.bias", "conv1.weight"]);
    assert_eq!(report.misshapen.len(), 2);
    assert_eq!(net.state(), before, "running statistics, which clones share, included");
}

#[test]
fn a_lenient_load_takes_what_fits() {
    let net = Net::with_classes(5, &device());
    let before = net.state();
    let (loaded, report) =
        load(&net, fixture("net.pth"), &LoadOptions::default().with_lenient(true)).unwrap();
    assert_eq!((report.loaded.len(), report.misshapen.len()), (6, 2));
    let (after, golden) = (loaded.state(), golden().state);
    assert_eq!(after["conv.weight"], golden["conv.weight"]);
    assert_eq!(after["fc.weight"], before["fc.weight"]);
    // Of another network altogether nothing fits, which is never meant.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    write(&path, &[("encoder.weight", vec![1], vec![1.])], &[]);
    let report = mismatch(load(&net, path, &LoadOptions::default().with_lenient(true)).unwrap_err());
    assert!(report.loaded.is_empty());
}

#[test]
fn a_backbone_loads_under_a_head_with_another_number_of_classes() {
    let net = Net::with_classes(5, &device());
    let head = net.fc.weight.val().into_data();
    let only = LoadOptions::default().with_only(PathFilter::new().with_regex("^(conv|bn)"));
    for file in ["net.pth", "net.safetensors"] {
        let (loaded, report) = load(&net, fixture(file), &only).unwrap();
        assert_eq!(report.skipped, ["fc.weight", "fc.bias"]);
        assert_eq!(loaded.state()["bn.weight"], golden().state["bn.weight"]);
        loaded.fc.weight.val().into_data().assert_eq(&head, true);
    }
    // A head of another name in the file is no surprise then, a norm of another name is.
    let folder = tempfile::tempdir().unwrap();
    let path = renamed(folder.path(), |name| name.replace("fc.", "head."));
    assert_eq!(load(&net, path, &only).unwrap().1.loaded.len(), 6);
    let path = renamed(folder.path(), |name| name.replace("bn.", "bn1."));
    assert_eq!(mismatch(load(&net, path, &only).unwrap_err()).missing.len(), 4);
    // A filter that matches nothing is a mistake.
    let none = LoadOptions::default().with_only(PathFilter::new().with_regex("^backbone"));
    let text = load(&net, fixture("net.pth"), &none).unwrap_err().to_string();
    assert!(text.contains("0 of 8 parameters match") && text.contains("8 left out by the filter"), "{text}");
}

#[test]
fn names_of_enum_variants_are_no_part_of_pytorchs() {
    #[derive(Module, Debug)]
    enum Layer {
        Dense(Linear),
    }
    #[derive(Module, Debug)]
    struct Model {
        layers: Vec<Layer>,
    }
    let folder = tempfile::tempdir().unwrap();
    let model = Model { layers: vec![Layer::Dense(LinearConfig::new(2, 1).init(&device()))] };
    let path = folder.path().join("enum.safetensors");
    write(&path, &[("layers.0.weight", vec![1, 2], vec![1., 2.]), ("layers.0.bias", vec![1], vec![3.])], &[]);
    let (loaded, report) = load(&model, &path, &LoadOptions::default()).unwrap();
    assert_eq!(report.loaded, ["layers.0.Dense.weight", "layers.0.Dense.bias"]);
    let Layer::Dense(layer) = &loaded.layers[0];
    assert_eq!(layer.weight.val().into_data().try_into_vec::<f32>().unwrap(), [1., 2.]);
    // Burn's records have them.
    let record = folder.path().join("enum.bpk");
    loaded.into_record().save(&record).unwrap();
    assert_eq!(load(&model, record, &LoadOptions::default()).unwrap().1.names, Names::Burn);
}

/// A square weight looks the same either way, so that only the file's names tell whether to turn it.
#[test]
fn a_square_linear_is_turned_for_pytorch_names_and_not_for_burns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("square.safetensors");
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        for (metadata, expected) in [
            (vec![("format", "pt")], [1., 3., 2., 4.]),
            (vec![], [1., 3., 2., 4.]),
            (vec![("burn-nccl.names", "torch")], [1., 3., 2., 4.]),
            (vec![("burn-nccl.names", "burn")], [1., 2., 3., 4.]),
            (vec![("producer", "burn")], [1., 2., 3., 4.]),
        ] {
            write(&path, &[("weight", vec![2, 2], vec![1., 2., 3., 4.])], &metadata);
            let linear = LinearConfig::new(2, 2).with_bias(false).with_layout(layout).init(&device());
            for initialized in [false, true] {
                if initialized {
                    linear.weight.val();
                }
                let (loaded, _) = load(&linear, &path, &LoadOptions::default()).unwrap();
                // What Burn saves of a column-major weight is laid out as PyTorch's.
                let expected = if matches!(layout, LinearLayout::Col) { [1., 3., 2., 4.] } else { expected };
                assert_eq!(
                    loaded.weight.val().into_data().try_into_vec::<f32>().unwrap(),
                    expected,
                    "{metadata:?}"
                );
            }
        }
    }
}

#[test]
fn a_column_major_linear_loads_from_pytorch_before_and_after_it_has_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linear.safetensors");
    write(&path, &[("weight", vec![2, 3], vec![1., 2., 3., 4., 5., 6.])], &[("format", "pt")]);
    let linear = LinearConfig::new(3, 2).with_bias(false).with_layout(LinearLayout::Col).init(&device());
    for _ in 0..2 {
        let (loaded, _) = load(&linear, &path, &LoadOptions::default()).unwrap();
        assert_eq!(loaded.weight.val().into_data().try_into_vec::<f32>().unwrap(), [1., 4., 2., 5., 3., 6.]);
        linear.weight.val();
    }
}

#[test]
fn integers_and_booleans_load_into_parameters_of_their_kind() {
    #[derive(Module, Debug)]
    struct Tables {
        positions: Param<Tensor<1, Int>>,
        mask: Param<Tensor<1, Bool>>,
    }
    let device = device();
    let tables = Tables {
        positions: Param::initialized(Default::default(), Tensor::from_data([0, 0], &device)),
        mask: Param::initialized(Default::default(), Tensor::from_data([false, false], &device)),
    };
    let positions = [7i64, -1].map(i64::to_le_bytes).concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tables.safetensors");
    let write = |mask: Dtype, bytes: &[u8]| {
        let tensors = [
            ("positions", TensorView::new(Dtype::I64, vec![2], &positions).unwrap()),
            ("mask", TensorView::new(mask, vec![2], bytes).unwrap()),
        ];
        safetensors::serialize_to_file(tensors, None, &path).unwrap();
    };
    // A byte of 2 would be no boolean at all.
    for (mask, bytes) in [(Dtype::BOOL, [1, 0]), (Dtype::BOOL, [2, 0]), (Dtype::U8, [1, 0])] {
        write(mask, &bytes);
        let (loaded, _) = load(&tables, &path, &LoadOptions::default()).unwrap();
        assert_eq!(
            loaded.positions.val().into_data().try_cast_as::<i64>().unwrap().try_into_vec::<i64>().unwrap(),
            [7, -1]
        );
        assert_eq!(loaded.positions.val().dtype(), tables.positions.val().dtype());
        assert_eq!(loaded.mask.val().into_data().try_into_vec::<bool>().unwrap(), [true, false]);
    }
    write(Dtype::BF16, &[0; 4]);
    let text = load(&tables, &path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(text.contains("mask: the model needs boolean values, the file has BF16"), "{text}");
}

/// Tensors are views of the mapped file only where they lie as the processor needs them.
#[test]
fn a_tensor_at_an_odd_address_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.safetensors");
    let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.push(5);
    bytes.extend([1.5f32, -2.0].map(f32::to_le_bytes).concat());
    fs::write(&path, bytes).unwrap();
    let source = burn_nccl_records::Source::open(&path, &Default::default()).unwrap();
    let data: TensorData = source.tensor("w").unwrap().data().unwrap();
    assert_eq!((data.dtype(), data.try_into_vec::<f32>().unwrap()), (DType::F32, vec![1.5, -2.0]));
}
