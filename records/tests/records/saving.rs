use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, Param, ParamId};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::store::ModuleRecord;
use burn::store::burn_pack::{Reader, Tensor as PackTensor};
use burn::tensor::{AllocationProperty, Bool, BoolStore, Bytes, DType, Device, Int, Tensor, bf16, f16};
use burn_nccl_records::{
    Error, Names, SaveDType, SaveFormat, SaveOptions, Zstd, save, save_tensors, snapshot,
};
use safetensors::SafeTensors;
use tempfile::tempdir;

/// One parameter of every kind, and no two layers alike.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) conv: Conv2d,
    pub(crate) norm: BatchNorm,
    pub(crate) fc: Linear,
    pub(crate) steps: Param<Tensor<1, Int>>,
    pub(crate) mask: Param<Tensor<2, Bool>>,
    pub(crate) empty: Param<Tensor<2>>,
}

/// A net whose values follow from `seed` by a formula.
pub(crate) fn net(seed: usize, device: &Device) -> Net {
    let values = move |of: usize, count: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + of * 31 + seed * 13) % 97) as f32 / 97.0 - 0.5).collect()
    };
    let matrix = |of, [rows, columns]: [usize; 2]| {
        Param::from_tensor(
            Tensor::<1>::from_floats(&values(of, rows * columns)[..], device).reshape([rows, columns]),
        )
    };
    let vector = |of, count| Param::from_tensor(Tensor::<1>::from_floats(&values(of, count)[..], device));
    let mut conv = Conv2dConfig::new([2, 5], [3, 3]).init(device);
    conv.weight =
        Param::from_tensor(Tensor::<1>::from_floats(&values(1, 90)[..], device).reshape([5, 2, 3, 3]));
    conv.bias = Some(vector(2, 5));
    let mut norm = BatchNormConfig::new(5).init(device);
    norm.gamma = vector(3, 5);
    norm.beta = vector(4, 5);
    let mut fc = LinearConfig::new(3, 4).init(device);
    fc.weight = matrix(5, [3, 4]);
    fc.bias = Some(vector(6, 4));
    let mask = Tensor::<2, Bool>::from_data([[true, false], [false, seed.is_multiple_of(2)]], device);
    Net {
        conv,
        norm,
        fc,
        steps: Param::initialized(
            ParamId::new(),
            Tensor::from_data([1_i64 << 40, -3, seed as i64], (device, DType::I64)),
        ),
        mask: Param::initialized(ParamId::new(), mask),
        empty: Param::from_tensor(Tensor::zeros([0, 3], device)),
    }
}

/// Saves that are only read again by the same test.
pub(crate) fn quick() -> SaveOptions {
    SaveOptions::default().with_durable(false)
}

fn safetensors() -> SaveOptions {
    quick().with_format(SaveFormat::Safetensors)
}

/// The tensors of a burnpack file, read by Burn's own reader.
fn read(path: &Path) -> BTreeMap<String, PackTensor> {
    let tensors = Reader::from_file_exact(path).unwrap().into_tensors().unwrap();
    tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn tensor(name: &str, shape: &[usize], values: &[f32]) -> PackTensor {
    PackTensor::new(name.into(), DType::F32, shape.to_vec(), None, Bytes::from_elems(values.to_vec()))
}

fn files(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn a_burnpack_file_holds_every_parameter_with_its_type_and_identity() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("net.bpk");
    let net = net(1, &Device::flex());
    let report = save(&net, &path, &quick().with_metadata("epoch", "3")).unwrap();
    assert_eq!(report.tensors, 11);
    assert_eq!(report.bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(report.files, std::slice::from_ref(&path));
    assert_eq!(report.largest_error, 0.0);

    assert_eq!(Reader::from_file_exact(&path).unwrap().metadata()["epoch"], "3");
    let read = read(&path);
    assert_eq!(
        read.keys().map(String::as_str).collect::<Vec<_>>(),
        [
            "conv.bias",
            "conv.weight",
            "empty",
            "fc.bias",
            "fc.weight",
            "mask",
            "norm.beta",
            "norm.gamma",
            "norm.running_mean",
            "norm.running_var",
            "steps"
        ]
    );
    let weight = &read["conv.weight"];
    assert_eq!(weight.param_id, Some(net.conv.weight.id.val()));
    assert_eq!(weight.shape.to_vec(), [5, 2, 3, 3]);
    assert_eq!(
        floats(&weight.to_bytes().unwrap()),
        net.conv.weight.val().into_data().try_into_vec::<f32>().unwrap()
    );
    assert_eq!(read["fc.weight"].shape.to_vec(), [3, 4]);
    assert_eq!(read["empty"].shape.to_vec(), [0, 3]);
    assert_eq!(read["empty"].byte_len(), 0);
    assert_eq!(read["steps"].dtype, net.steps.val().dtype());
    assert_eq!(&read["mask"].to_bytes().unwrap()[..], [1, 0, 0, 0]);
}

#[test]
fn burn_loads_a_saved_file_as_a_record_of_its_own() {
    let folder = tempdir().unwrap();
    let [path, before, after] = ["net.bpk", "before", "after"].map(|name| folder.path().join(name));
    let device = Device::flex();
    let saved = net(1, &device);
    save(&saved, &path, &quick()).unwrap();
    save(&saved, &before, &safetensors()).unwrap();
    let loaded = net(2, &device).load_record(ModuleRecord::load(&path).unwrap());
    assert_eq!(loaded.fc.weight.id, saved.fc.weight.id);
    save(&loaded, &after, &safetensors()).unwrap();
    assert!(fs::read(&before).unwrap() == fs::read(&after).unwrap());
}

#[test]
fn a_model_on_an_autodiff_device_saves_the_same_bytes() {
    let folder = tempdir().unwrap();
    let [plain, tracked] = ["plain.st", "tracked.st"].map(|name| folder.path().join(name));
    save(&net(1, &Device::flex()), &plain, &safetensors()).unwrap();
    save(&net(1, &Device::flex().autodiff()), &tracked, &safetensors()).unwrap();
    assert!(fs::read(&plain).unwrap() == fs::read(&tracked).unwrap());
}

#[test]
fn a_backend_whose_storage_cannot_be_borrowed_saves_the_same_bytes() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("net.st");
    save(&net(1, &Device::flex()), &path, &safetensors()).unwrap();
    let deferred = snapshot(&net(1, &Device::flex()))
        .into_iter()
        .map(|t| {
            let (name, dtype, shape, id, bytes) = t.into_parts().unwrap();
            PackTensor::deferred(name, dtype, shape, id, bytes.len(), move || Ok(bytes.clone()))
        })
        .collect();
    let other = folder.path().join("deferred.st");
    save_tensors(deferred, &other, &safetensors()).unwrap();
    assert!(fs::read(&path).unwrap() == fs::read(&other).unwrap());
}

#[test]
fn torch_names_rename_norms_and_transpose_linear_weights() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let net = net(1, &Device::flex());
    save(&net, &path, &safetensors().with_names(Names::Torch)).unwrap();

    let bytes = fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    assert_eq!((metadata["format"].as_str(), metadata["burn-nccl.names"].as_str()), ("pt", "torch"));
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = read.names();
    names.sort();
    assert_eq!(
        names,
        [
            "conv.bias",
            "conv.weight",
            "empty",
            "fc.bias",
            "fc.weight",
            "mask",
            "norm.bias",
            "norm.running_mean",
            "norm.running_var",
            "norm.weight",
            "steps"
        ]
    );
    let weight = read.tensor("fc.weight").unwrap();
    assert_eq!(weight.shape(), [4, 3]);
    let ours: Vec<f32> = net.fc.weight.val().into_data().try_into_vec().unwrap();
    let transposed: Vec<f32> =
        (0..4).flat_map(|out| (0..3).map(move |i| i * 4 + out)).map(|i| ours[i]).collect();
    assert_eq!(floats(weight.data()), transposed);
    assert_eq!(
        floats(read.tensor("norm.weight").unwrap().data()),
        net.norm.gamma.val().into_data().try_into_vec::<f32>().unwrap()
    );
}

#[test]
fn every_tensor_of_a_safetensors_file_is_aligned_to_its_type() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    save(&net(1, &Device::flex()), &path, &safetensors().with_dtype(SaveDType::F16)).unwrap();
    let bytes = fs::read(&path).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    for (name, view) in read.tensors() {
        let at = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(at % (view.dtype().bitsize() / 8), 0, "{name} lies at {at}");
    }
}

#[test]
fn half_precision_rounds_weights_and_keeps_norms_and_biases() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("net.bpk");
    let net = net(1, &Device::flex());
    let weights: Vec<f32> = net.conv.weight.val().into_data().try_into_vec().unwrap();
    type Round = fn(f32) -> f32;
    let rounds: [(SaveDType, DType, Round); 2] = [
        (SaveDType::F16, DType::F16, |value| f16::from_f32(value).to_f32()),
        (SaveDType::BF16, DType::BF16, |value| bf16::from_f32(value).to_f32()),
    ];
    for (stored, dtype, round) in rounds {
        let report = save(&net, &path, &quick().with_dtype(stored)).unwrap();
        let read = read(&path);
        let kept =
            ["conv.bias", "fc.bias", "norm.beta", "norm.gamma", "norm.running_mean", "norm.running_var"];
        for (name, tensor) in &read {
            let float = !["steps", "mask"].contains(&name.as_str());
            let expected = if kept.contains(&name.as_str()) { DType::F32 } else { dtype };
            assert!(!float || tensor.dtype == expected, "{name} is stored as {:?}", tensor.dtype);
        }
        let bytes = read["conv.weight"].to_bytes().unwrap();
        let stored: Vec<f32> = match dtype {
            DType::F16 => {
                bytemuck::pod_collect_to_vec::<u8, f16>(&bytes).iter().map(|v| v.to_f32()).collect()
            }
            _ => bytemuck::pod_collect_to_vec::<u8, bf16>(&bytes).iter().map(|v| v.to_f32()).collect(),
        };
        assert_eq!(stored, weights.iter().map(|&value| round(value)).collect::<Vec<_>>());
        let matrix: Vec<f32> = net.fc.weight.val().into_data().try_into_vec().unwrap();
        let error = |value: &f32| f64::from((value - round(*value)).abs());
        let largest = weights.iter().chain(&matrix).map(error).fold(0.0, f64::max);
        assert_eq!(report.largest_error, largest);
    }
}

#[test]
fn other_float_types_round_from_their_own_precision() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.bpk");
    let double =
        PackTensor::new("d".into(), DType::F64, [1, 1], None, Bytes::from_elems(vec![1.0 / 3.0_f64]));
    let half = PackTensor::new(
        "h".into(),
        DType::F16,
        [1, 2],
        None,
        Bytes::from_elems(vec![f16::MAX, f16::from_f32(-0.1)]),
    );
    save_tensors(vec![double, half.clone()], &path, &quick().with_dtype(SaveDType::F16)).unwrap();
    let read_back = read(&path);
    let stored: Vec<f16> = bytemuck::pod_collect_to_vec(&read_back["d"].to_bytes().unwrap());
    assert_eq!(stored, [f16::from_f64(1.0 / 3.0)]);
    assert_eq!(read_back["h"].to_bytes().unwrap(), half.to_bytes().unwrap(), "f16 as f16 changes nothing");

    save_tensors(vec![half], &path, &quick().with_dtype(SaveDType::BF16)).unwrap();
    let stored: Vec<bf16> = bytemuck::pod_collect_to_vec(&read(&path)["h"].to_bytes().unwrap());
    assert_eq!(stored, [bf16::from_f32(65504.0), bf16::from_f32(f16::from_f32(-0.1).to_f32())]);
}

#[test]
fn a_value_beyond_f16_is_an_error_that_names_its_tensor_and_leaves_the_old_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.bpk");
    let mut values = vec![0.25_f32; 100_000];
    save_tensors(vec![tensor("a", &[100_000, 1], &values)], &path, &quick()).unwrap();
    let before = fs::read(&path).unwrap();
    values[77_777] = -65_520.0;
    let large = || vec![tensor("a", &[1, 1], &[1.0]), tensor("blocks.2.weight", &[100, 1000], &values)];
    let error = save_tensors(large(), &path, &quick().with_dtype(SaveDType::F16)).unwrap_err();
    assert!(
        matches!(&error, Error::Overflow { tensor, value, dtype: "f16" } if tensor == "blocks.2.weight" && *value == -65_520.0)
    );
    assert_eq!(
        error.to_string(),
        "`blocks.2.weight` holds -6.552e4, which f16 cannot; store it as bf16 or keep its type"
    );
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(files(folder.path()), ["t.bpk"]);
    save_tensors(large(), &path, &quick().with_dtype(SaveDType::BF16)).unwrap();
}

#[test]
fn nan_and_infinities_are_kept() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.bpk");
    let odd = [f32::from_bits(0x7FC0_1234), f32::INFINITY, f32::NEG_INFINITY, -0.0];
    save_tensors(vec![tensor("t", &[2, 2], &odd)], &path, &quick()).unwrap();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&floats(&read(&path)["t"].to_bytes().unwrap())), bits(&odd));

    let report =
        save_tensors(vec![tensor("t", &[2, 2], &odd)], &path, &quick().with_dtype(SaveDType::F16)).unwrap();
    let stored: Vec<f16> = bytemuck::pod_collect_to_vec(&read(&path)["t"].to_bytes().unwrap());
    assert!(stored[0].is_nan());
    assert_eq!(stored[1..3], [f16::INFINITY, f16::NEG_INFINITY]);
    assert!(stored[3].is_sign_negative());
    assert_eq!(report.largest_error, 0.0);
}

#[test]
fn zstd_unpacks_to_the_very_file_and_says_its_size_beforehand() {
    let folder = tempdir().unwrap();
    let [plain, packed] = ["plain.bpk", "packed.bpk"].map(|name| folder.path().join(name));
    let net = net(1, &Device::flex());
    for options in [quick(), safetensors().with_dtype(SaveDType::F16)] {
        for (level, threads) in [(1, 1), (3, 2), (-5, 0)] {
            save(&net, &plain, &options).unwrap();
            let report =
                save(&net, &packed, &options.clone().with_compression(Zstd { level, threads })).unwrap();
            let compressed = fs::read(&packed).unwrap();
            assert_eq!(report.bytes, compressed.len() as u64);
            assert_eq!(compressed[..4], [0x28, 0xB5, 0x2F, 0xFD]);
            let expected = fs::read(&plain).unwrap();
            let size = zstd::zstd_safe::get_frame_content_size(&compressed).unwrap();
            assert_eq!(size, Some(expected.len() as u64));
            assert!(zstd::decode_all(&compressed[..]).unwrap() == expected);
        }
    }
}

#[test]
fn shards_stay_below_their_size_and_together_hold_the_model() {
    let folder = tempdir().unwrap();
    let net = net(1, &Device::flex());
    let out = folder.path().join("model");
    let report = save(&net, &out, &safetensors().with_max_shard_bytes(100)).unwrap();
    // In the order of names: 20 + [360] + [0 16 48 4 20] + [20 20 20 24], with 100 a shard and 360 alone.
    let shards = ["00001", "00002", "00003", "00004"].map(|i| format!("model-{i}-of-00004.safetensors"));
    let mut expected = shards.to_vec();
    expected.push("model.safetensors.index.json".into());
    assert_eq!(files(&out), expected);
    assert_eq!(report.files, expected.iter().map(|name| out.join(name)).collect::<Vec<_>>());
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert_eq!(report.bytes, report.files.iter().map(|path| size(path)).sum::<u64>());

    let index: serde_json::Value = serde_json::from_slice(&fs::read(&report.files[4]).unwrap()).unwrap();
    let steps = net.steps.val().dtype().size() as u64 * 3;
    assert_eq!(index["metadata"]["total_size"], 528 + steps);
    let whole = folder.path().join("whole.safetensors");
    save(&net, &whole, &safetensors()).unwrap();
    let whole = fs::read(whole).unwrap();
    let mut read = 0;
    for (name, view) in SafeTensors::deserialize(&whole).unwrap().tensors() {
        let bytes = fs::read(out.join(index["weight_map"][&name].as_str().unwrap())).unwrap();
        let shard = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(shard.tensor(&name).unwrap(), view, "{name}");
        read += 1;
    }
    assert_eq!(read, 11);
}

#[test]
fn new_shards_replace_old_ones_only_once_the_index_is_theirs() {
    let folder = tempdir().unwrap();
    let (out, device) = (folder.path(), Device::flex());
    fs::write(out.join("config.json"), "{}").unwrap();
    let sharded = |bytes| safetensors().with_max_shard_bytes(bytes);
    save(&net(1, &device), out, &sharded(100)).unwrap();
    let weight = |out: &Path| {
        let index: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("model.safetensors.index.json")).unwrap()).unwrap();
        let bytes = fs::read(out.join(index["weight_map"]["fc.weight"].as_str().unwrap())).unwrap();
        floats(SafeTensors::deserialize(&bytes).unwrap().tensor("fc.weight").unwrap().data())
    };
    let [first, second] =
        [1, 2].map(|seed| net(seed, &device).fc.weight.val().into_data().try_into_vec::<f32>().unwrap());
    assert_eq!(weight(out), first);

    let refused = save(&net(2, &device), out, &sharded(100).with_overwrite(false)).unwrap_err();
    assert!(matches!(refused, Error::Exists { .. }));
    // An error in the middle: the third tensor does not fit f16.
    let broken = vec![tensor("a", &[30, 1], &[0.5; 30]), tensor("b", &[30, 1], &[1e6; 30])];
    save_tensors(broken, out, &sharded(100).with_dtype(SaveDType::F16)).unwrap_err();
    assert_eq!(weight(out), first);
    assert_eq!(files(out).len(), 6, "{:?}", files(out));

    save(&net(2, &device), out, &sharded(100)).unwrap();
    assert_eq!(weight(out), second);
    assert_eq!(files(out).len(), 6, "the old shards are gone: {:?}", files(out));
    save(&net(1, &device), out, &sharded(1 << 20)).unwrap();
    assert_eq!(weight(out), first);
    assert_eq!(
        files(out),
        ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    );
}

#[test]
fn views_are_saved_as_they_look() {
    #[derive(Module, Debug)]
    struct Views {
        transposed: Param<Tensor<2>>,
        narrow: Param<Tensor<2>>,
        column: Param<Tensor<2>>,
        flipped: Param<Tensor<1>>,
    }
    let folder = tempdir().unwrap();
    let path = folder.path().join("views.bpk");
    let grid = Tensor::<1, Int>::arange(0..12, &Device::flex()).float().reshape([3, 4]);
    let views = Views {
        transposed: Param::from_tensor(grid.clone().transpose()),
        narrow: Param::from_tensor(grid.clone().narrow(0, 1, 2)),
        column: Param::from_tensor(grid.clone().narrow(1, 2, 1)),
        flipped: Param::from_tensor(grid.narrow(0, 0, 1).flatten::<1>(0, 1).flip([0])),
    };
    save(&views, &path, &quick()).unwrap();
    let read = read(&path);
    let values = |name: &str| floats(&read[name].to_bytes().unwrap());
    assert_eq!(values("transposed"), [0.0, 4.0, 8.0, 1.0, 5.0, 9.0, 2.0, 6.0, 10.0, 3.0, 7.0, 11.0]);
    assert_eq!(values("narrow"), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    assert_eq!(values("column"), [2.0, 6.0, 10.0]);
    assert_eq!(values("flipped"), [3.0, 2.0, 1.0, 0.0]);
}

#[test]
fn a_snapshot_shares_memory_and_keeps_its_values_when_the_model_moves_on() {
    let mut net = net(1, &Device::flex());
    let [first, second] = [snapshot(&net), snapshot(&net)];
    let address = |tensors: &[PackTensor]| tensors[0].to_bytes().unwrap().as_ptr();
    assert_eq!(address(&first), address(&second), "nothing was copied");
    let before = first[0].to_bytes().unwrap().to_vec();
    net.conv.weight = net.conv.weight.map(|weight| weight.mul_scalar(3.0));
    assert_eq!(first[0].to_bytes().unwrap()[..], before);
    assert_ne!(snapshot(&net)[0].to_bytes().unwrap()[..], before);
}

#[test]
fn one_deferred_tensor_at_a_time_is_in_memory() {
    /// Counts itself for as long as it lives.
    struct Counted(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let folder = tempdir().unwrap();
    let (alive, most, reads) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let deferred = |i: usize| {
        let (alive, most, reads) = (alive.clone(), most.clone(), reads.clone());
        PackTensor::deferred(format!("t{i}"), DType::F32, [16, 16], None, 1024, move || {
            reads.fetch_add(1, Ordering::SeqCst);
            most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let bytes = bytes::Bytes::from_owner(Counted(vec![0; 1024], alive.clone()));
            Ok(Bytes::from_shared(bytes, AllocationProperty::Native))
        })
    };
    for options in [
        quick(),
        safetensors(),
        quick().with_compression(Zstd::default()),
        quick().with_dtype(SaveDType::F16),
    ] {
        reads.store(0, Ordering::SeqCst);
        save_tensors((0..8).map(deferred).collect(), folder.path().join("t"), &options).unwrap();
        assert_eq!((most.load(Ordering::SeqCst), reads.load(Ordering::SeqCst)), (1, 8));
    }
}

#[test]
fn a_bool_of_four_bytes_becomes_one_of_one_byte_in_safetensors() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.safetensors");
    let mask = PackTensor::new(
        "mask".into(),
        DType::Bool(BoolStore::U32),
        [3],
        None,
        Bytes::from_elems(vec![1_u32, 0, 1]),
    );
    save_tensors(vec![mask], &path, &safetensors()).unwrap();
    let bytes = fs::read(&path).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.tensor("mask").unwrap().data(), [1, 0, 1]);
}

#[test]
fn options_and_tensors_that_cannot_be_had_are_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t");
    let one = || vec![tensor("t", &[1], &[1.0])];
    let combinations = [
        quick().with_names(Names::Torch),
        quick().with_max_shard_bytes(10),
        safetensors().with_max_shard_bytes(0),
    ];
    for options in combinations {
        let error = save_tensors(one(), &path, &options).unwrap_err();
        assert!(matches!(error, Error::SaveOptions { .. }), "{error}");
    }
    let level = quick().with_compression(Zstd { level: 23, threads: 1 });
    let error = save_tensors(one(), &path, &level).unwrap_err();
    assert!(matches!(error, Error::CompressionLevel { level: 23, highest: 22, .. }), "{error}");

    for options in [quick(), safetensors()] {
        let twice = [one(), one()].concat();
        let error = save_tensors(twice, &path, &options).unwrap_err();
        assert!(matches!(&error, Error::DuplicateTensor { tensor } if tensor == "t"), "{error}");
    }
    let reserved =
        save_tensors(vec![tensor("__metadata__", &[1], &[1.0])], &path, &safetensors()).unwrap_err();
    assert!(matches!(reserved, Error::Unstorable { .. }));
    let huge =
        PackTensor::deferred("big".into(), DType::U8, [1_usize << 35], None, 1 << 35, || unreachable!());
    let error = save_tensors(vec![huge], &path, &quick()).unwrap_err();
    assert!(matches!(error, Error::Limit { limit, .. } if limit == 10 << 30), "{error}");
    // What this crate would not read back.
    let many: Vec<_> = (0..100_001).map(|i| tensor(&i.to_string(), &[1], &[1.0])).collect();
    for options in [quick(), safetensors(), safetensors().with_max_shard_bytes(1 << 10)] {
        let error = save_tensors(many.clone(), &path, &options).unwrap_err();
        assert!(matches!(error, Error::Limit { size: 100_001, limit: 100_000, .. }), "{error}");
    }
    assert!(files(folder.path()).is_empty());
}

#[test]
fn saving_twice_gives_the_same_bytes() {
    let folder = tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let net = net(1, &Device::flex());
    for options in [quick(), safetensors(), quick().with_compression(Zstd { level: 3, threads: 2 })] {
        save(&net, &a, &options).unwrap();
        save(&net, &b, &options).unwrap();
        assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap());
    }
}

#[test]
fn what_the_last_forward_pass_added_to_running_statistics_is_saved() {
    let norm: BatchNorm = BatchNormConfig::new(2).init(&Device::flex().autodiff());
    norm.forward(Tensor::<4>::full([4, 2, 3, 3], 5.0, &Device::flex().autodiff()));
    let folder = tempdir().unwrap();
    let file = folder.path().join("norm");
    save(&norm, &file, &SaveOptions::default()).unwrap();
    // Momentum 0.1: 0.9 * 0 + 0.1 * 5, and 0.9 * 1 + 0.1 * 0.
    let saved = |name: &str| floats(&read(&file)[name].to_bytes().unwrap());
    assert_eq!((saved("running_mean"), saved("running_var")), (vec![0.5; 2], vec![0.9; 2]));
}
