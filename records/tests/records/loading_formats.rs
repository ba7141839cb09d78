//! Every format, from files that PyTorch, safetensors and Burn wrote.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use burn::module::Module;
use burn::tensor::{DType, Device};
use burn_nccl_records::checkpoint::Checkpoint;
use burn_nccl_records::{Error, Format, LoadOptions, LoadReport, Manifest, Names, OpenOptions, Source, load};

use crate::fixtures::{Net, assert_computes_as_pytorch, assert_is_golden, assert_is_scaled, fixture};

fn load_net(path: &Path) -> (Net, LoadReport) {
    load(&Net::new(&Device::flex()), path, &LoadOptions::default()).unwrap()
}

fn open(path: &Path) -> Source {
    Source::open(path, &OpenOptions::default()).unwrap()
}

/// Burn's own record of the network, with what it holds.
fn burnpack(folder: &Path) -> std::path::PathBuf {
    let (net, _) = load_net(&fixture("net.pth"));
    let path = folder.join("net.bpk");
    net.into_record().save(&path).unwrap();
    path
}

fn compress(from: &Path, to: &Path) {
    zstd::stream::copy_encode(File::open(from).unwrap(), File::create(to).unwrap(), 3).unwrap();
}

// C1: all six tensors of the batch norm, of which four have values of their own.
#[test]
fn every_container_of_pytorch_loads_to_the_values_that_pytorch_has() {
    for name in ["net.pth", "net-legacy.pth", "net-whole.pth"] {
        let source = open(&fixture(name));
        assert_eq!((source.format(), source.is_compressed()), (Format::Pytorch, false), "{name}");
        let (net, report) = load_net(&fixture(name));
        assert_eq!((report.loaded.len(), report.names, report.prefix), (8, Names::Torch, None), "{name}");
        assert_is_golden(&net);
        assert_computes_as_pytorch(&net, &Device::flex());
    }
}

// C3
#[test]
fn a_model_that_was_saved_whole_loads_as_its_state_dict() {
    assert_is_golden(&load_net(&fixture("net-whole.pth")).0);
    // Within a dictionary of other things, whose only one with tensors it is.
    let source = open(&fixture("net-whole-nested.pth"));
    assert_eq!(source.metadata()["key"], "body");
    assert_is_golden(&load_net(&fixture("net-whole-nested.pth")).0);
}

// C3
#[test]
fn what_is_no_dictionary_of_plain_tensors_is_named_with_the_way_out() {
    for (name, found) in
        [("program.pth", "Linear"), ("list.pth", "a list"), ("sparse.pth", "_rebuild_sparse_tensor")]
    {
        let error = Source::open(fixture(name), &OpenOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::NotStateDict { found: text, .. } if text.contains(found)), "{error}");
        assert!(error.to_string().contains("`model.state_dict()`"), "{error}");
    }
}

#[test]
fn the_weights_of_a_training_checkpoint_are_found_by_themselves() {
    for (name, key, prefix) in [
        ("checkpoint-state_dict.pth", "state_dict", "module."),
        ("checkpoint-model.pth", "model", "_orig_mod."),
    ] {
        assert_eq!(open(&fixture(name)).metadata()["key"], key);
        let (net, report) = load_net(&fixture(name));
        assert_eq!(report.prefix.as_deref(), Some(prefix));
        assert_is_golden(&net);
    }
}

/// The zip crate misreads an archive whose name makes the first entry of its directory as long as two of its end records.
#[test]
fn an_archive_with_a_name_of_21_characters_loads() {
    let path = fixture("checkpoint-state_dict.pth");
    assert_eq!(path.file_stem().unwrap().len(), 21);
    assert_is_golden(&load_net(&path).0);
    let folder = tempfile::tempdir().unwrap();
    let compressed = folder.path().join("compressed");
    compress(&path, &compressed);
    assert_is_golden(&load_net(&compressed).0);
}

#[test]
fn of_several_dictionaries_one_is_named() {
    let path = fixture("checkpoint-two.pth");
    let error = Source::open(&path, &OpenOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::Key { available, .. } if *available == ["average", "raw"]), "{error}");
    let with_key = |key| LoadOptions::default().with_open(OpenOptions::default().with_key(key));
    let net = Net::new(&Device::flex());
    assert_is_golden(&load(&net, &path, &with_key("raw")).unwrap().0);
    assert_is_scaled(&load(&net, &path, &with_key("average")).unwrap().0, 2.0);
    for key in ["model", "step", "raw.conv"] {
        let error = load(&net, &path, &with_key(key)).unwrap_err();
        assert!(error.to_string().contains(&format!("under the key `{key}`")), "{error}");
    }
    let error = Source::open(fixture("checkpoint-none.pth"), &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("holds no tensors"), "{error}");
}

#[test]
fn views_of_storages_read_as_pytorch_shows_them() {
    let source = open(&fixture("views.pth"));
    let floats = |name: &str| source.tensor(name).unwrap().data().unwrap().try_into_vec::<f32>().unwrap();
    assert_eq!(floats("turned"), [0., 4., 8., 1., 5., 9., 2., 6., 10., 3., 7., 11.]);
    assert_eq!(source.tensor("turned").unwrap().shape(), [4, 3]);
    assert_eq!(floats("part"), [3., 4., 5., 6.]);
    assert_eq!(floats("repeated"), [1.5; 6]);
    assert_eq!(source.tensor("flag").unwrap().data().unwrap().try_into_vec::<bool>().unwrap(), [true, false]);
}

#[test]
fn safetensors_load_with_and_without_a_note_of_their_writer() {
    for name in ["net.safetensors", "net-unlabelled.safetensors"] {
        assert_eq!(open(&fixture(name)).format(), Format::Safetensors);
        let (net, report) = load_net(&fixture(name));
        assert_eq!(report.names, Names::Torch);
        assert_is_golden(&net);
    }
}

#[test]
fn a_file_says_whose_names_it_has_and_what_wraps_them() {
    for (name, prefix) in [
        ("net.pth", ""),
        ("net-unlabelled.safetensors", ""),
        ("checkpoint-state_dict.pth", "module."),
        ("checkpoint-model.pth", "_orig_mod."),
    ] {
        let source = open(&fixture(name));
        assert_eq!((source.names(), source.wrapper_prefix().as_str()), (Names::Torch, prefix), "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(open(&burnpack(folder.path())).names(), Names::Burn);
    // Asked for the wrong ones, it does not look for those that fit.
    let options = LoadOptions::default().with_names(Names::Burn);
    let error = load(&Net::new(&Device::flex()), fixture("net.pth"), &options).unwrap_err();
    assert!(matches!(&error, Error::Mismatch { report, .. } if report.names == Names::Burn), "{error}");
}

#[test]
fn shards_load_through_their_index_and_through_their_folder() {
    let index = fixture("sharded/model.safetensors.index.json");
    for path in [index.as_path(), index.parent().unwrap()] {
        let source = open(path);
        assert_eq!((source.format(), source.files().len()), (Format::ShardedSafetensors, 3));
        assert!(source.bytes() > 0 && source.tensors().is_sorted_by_key(|tensor| tensor.name().to_string()));
        assert_is_golden(&load_net(path).0);
    }
}

#[test]
fn burnpack_loads_and_restores_the_identities_of_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let path = burnpack(folder.path());
    let source = open(&path);
    assert_eq!(source.format(), Format::Burnpack);
    let (net, report) = load_net(&path);
    assert_eq!(report.names, Names::Burn);
    assert_is_golden(&net);
    assert_eq!(source.tensor("conv.weight").unwrap().param_id(), Some(net.conv.weight.id.val()));
    assert_eq!(source.tensor("fc.weight").unwrap().param_id(), Some(net.fc.weight.id.val()));
}

#[test]
fn a_file_without_identities_leaves_the_models() {
    let net = Net::new(&Device::flex());
    let (loaded, _) = load(&net, fixture("net.pth"), &LoadOptions::default()).unwrap();
    assert_eq!(loaded.conv.weight.id, net.conv.weight.id);
}

#[test]
fn the_extension_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    for (from, format) in [
        (fixture("net.pth"), Format::Pytorch),
        (fixture("net-legacy.pth"), Format::Pytorch),
        (fixture("net.safetensors"), Format::Safetensors),
        (burnpack(folder.path()), Format::Burnpack),
    ] {
        let path = folder.path().join("weights.json");
        fs::copy(from, &path).unwrap();
        assert_eq!(Format::detect(&path).unwrap(), format);
        assert_is_golden(&load_net(&path).0);
    }
}

#[test]
fn any_format_may_be_compressed_with_zstd() {
    let folder = tempfile::tempdir().unwrap();
    for from in
        [fixture("net.pth"), fixture("net-legacy.pth"), fixture("net.safetensors"), burnpack(folder.path())]
    {
        let path = folder.path().join("weights.zst");
        compress(&from, &path);
        let source = open(&path);
        assert!(source.is_compressed());
        assert_eq!(source.format(), Format::detect(&from).unwrap());
        assert_eq!(source.bytes(), fs::metadata(&path).unwrap().len());
        assert_is_golden(&load_net(&path).0);
    }
    // In frames, each of which says its own size.
    let path = folder.path().join("frames.zst");
    let bytes = fs::read(fixture("net.safetensors")).unwrap();
    let frames: Vec<u8> = bytes.chunks(100).flat_map(|part| zstd::bulk::compress(part, 3).unwrap()).collect();
    fs::write(&path, frames).unwrap();
    assert_is_golden(&load_net(&path).0);
    // Shards one by one.
    for file in fs::read_dir(fixture("sharded")).unwrap().map(|entry| entry.unwrap().path()) {
        let to = folder.path().join(file.file_name().unwrap());
        match file.extension().unwrap().to_str() {
            Some("json") => drop(fs::copy(&file, &to).unwrap()),
            _ => compress(&file, &to),
        }
    }
    assert!(open(folder.path()).is_compressed());
    assert_is_golden(&load_net(folder.path()).0);
}

#[test]
fn of_a_run_the_newest_complete_checkpoint_loads() {
    let folder = tempfile::tempdir().unwrap();
    let record = burnpack(folder.path());
    let run = folder.path().join("run");
    let put = |name: &str, step: u64| {
        let checkpoint = run.join("checkpoints").join(name);
        fs::create_dir_all(&checkpoint).unwrap();
        fs::copy(&record, checkpoint.join("model.bpk")).unwrap();
        fs::copy(&record, checkpoint.join("optimizer.bpk")).unwrap();
        let state = format!(r#"{{"version":1,"state":{{"step":{step},"epoch":0}}}}"#);
        fs::write(checkpoint.join("state.json"), state).unwrap();
        let files = ["model.bpk", "optimizer.bpk", "state.json"];
        Manifest::describe(&checkpoint, &files).unwrap().write(&checkpoint).unwrap();
        checkpoint
    };
    put("step-9", 9);
    let newest = put("step-10", 10);
    // Neither what was never finished, nor what is short, of another step, no checkpoint's name or outside.
    fs::remove_file(put("step-11", 11).join("manifest.json")).unwrap();
    fs::write(put("step-12", 12).join("model.bpk"), "").unwrap();
    put("step-13", 7);
    put(".step-14.1-1.tmp", 14);
    put("step-015", 15);
    let outside = folder.path().join("outside");
    fs::rename(put("step-16", 16), &outside).unwrap();
    symlink(&outside, run.join("checkpoints/step-16")).unwrap();
    for path in [run.clone(), run.join("checkpoints"), newest.clone()] {
        let source = open(&path);
        assert_eq!((source.format(), source.files()), (Format::Checkpoint, &[newest.join("model.bpk")][..]));
        assert_is_golden(&load_net(&path).0);
    }
    assert_eq!(Checkpoint::open(&run).unwrap().path(), newest);
    // With none that is complete, the reason of the newest.
    for name in ["step-9", "step-10"] {
        fs::remove_dir_all(run.join("checkpoints").join(name)).unwrap();
    }
    let none = Source::open(&run, &OpenOptions::default()).unwrap_err().to_string();
    assert!(none.contains("step-13: its state is that of step 7"), "{none}");
    // Without checkpoints, the final model of the run.
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    fs::copy(&record, run.join("model.bpk")).unwrap();
    assert_eq!(open(&run).files(), [run.join("model.bpk")]);
}

#[test]
fn the_types_of_a_file_are_those_that_pytorch_wrote() {
    for (name, dtype) in [("f64", DType::F64), ("f16", DType::F16), ("bf16", DType::BF16)] {
        for extension in ["pth", "safetensors"] {
            let source = open(&fixture(&format!("net-{name}.{extension}")));
            assert_eq!(source.tensor("conv.weight").unwrap().dtype(), dtype);
            assert_eq!(source.tensor("bn.num_batches_tracked").unwrap().dtype(), DType::I64);
        }
    }
}

#[test]
fn what_is_no_weights_is_named_and_a_missing_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.pth");
    let refusal = |contents: &[u8]| {
        fs::write(&path, contents).unwrap();
        Source::open(&path, &OpenOptions::default()).unwrap_err().to_string()
    };
    assert!(refusal(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n").contains("git lfs pull"));
    assert!(refusal(b"").contains("it is empty"));
    assert!(refusal(b"weights").contains("expected PyTorch (.pth), safetensors, burnpack (.bpk)"));
    let missing = Source::open(folder.path().join("none"), &OpenOptions::default()).unwrap_err();
    assert!(matches!(missing, Error::File { .. }), "{missing}");
    let none = Source::open(tempfile::tempdir().unwrap().path(), &OpenOptions::default()).unwrap_err();
    assert!(none.to_string().contains("the folder has no checkpoint"), "{none}");
}
