//! Checkpoints that someone made to do harm: their manifests are in order and their contents are not.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use burn::store::burn_pack::{Bytes, DType, Reader, Scalar, Tensor, Writer};
use burn_nccl_records::checkpoint::{Checkpoint, CheckpointConfig, find};
use burn_nccl_records::{Error, Manifest};

use super::training::{adam, at, net, open, saved, sgd, state, train, values};

const FILES: [&str; 3] = ["model.bpk", "optimizer.bpk", "state.json"];

fn seal(folder: &Path) {
    Manifest::describe(folder, &FILES).unwrap().write(folder).unwrap();
}

/// An optimizer's file in parts that a test changes.
struct Parts {
    tensors: Vec<Tensor>,
    scalars: Vec<(String, Scalar)>,
    paths: Vec<(String, String)>,
}

impl Parts {
    fn read(path: &Path) -> Self {
        let reader = Reader::from_file(path).unwrap();
        let scalars = reader.scalars().clone().into_iter().collect();
        let paths = reader.metadata().clone().into_iter().collect();
        Self { tensors: reader.into_tensors().unwrap(), scalars, paths }
    }

    fn write(self, path: &Path) {
        let mut writer = Writer::new(self.tensors);
        for (name, value) in &self.scalars {
            writer = writer.with_scalar(name, *value);
        }
        for (id, path) in &self.paths {
            writer = writer.with_metadata(id, path);
        }
        writer.write_to_file(path).unwrap();
    }

    fn scalar(&mut self, field: &str) -> &mut (String, Scalar) {
        self.scalars.iter_mut().find(|(name, _)| name.ends_with(field)).unwrap()
    }

    fn remove(&mut self, field: &str) {
        let index = self.tensors.iter().position(|tensor| tensor.name.ends_with(field)).unwrap();
        self.tensors.remove(index);
    }

    fn reshape(&mut self, index: usize, shape: &[usize], dtype: DType) {
        let Tensor { name, param_id, .. } = self.tensors[index].clone();
        let bytes = Bytes::from_bytes_vec(vec![0; shape.iter().product::<usize>() * dtype.size()]);
        self.tensors[index] = Tensor::new(name, dtype, shape.to_vec(), param_id, bytes);
    }
}

/// A checkpoint of Adam, its folder and its parts.
fn checkpoint() -> (tempfile::TempDir, Vec<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut optimizer = adam();
    let model = train(net(1), &mut optimizer, 0..2);
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&model, &optimizer, state(2)).unwrap();
    checkpointer.finish().unwrap();
    (folder, values(&model))
}

#[test]
fn a_state_that_fits_no_parameter_is_refused_before_it_is_used() {
    let (folder, _) = checkpoint();
    let folder = at(folder.path(), 2);
    let path = folder.join("optimizer.bpk");
    let sound = fs::read(&path).unwrap();
    type Damage<'a> = &'a dyn Fn(&mut Parts);
    let damages: [(&str, Damage<'_>, &str); 14] = [
        ("another's id", &|parts| parts.tensors[0].param_id = Some(1), "carries another parameter's id"),
        ("no id", &|parts| parts.tensors[0].param_id = None, "carries another parameter's id"),
        ("no owner", &|parts| parts.tensors[0].name = "7.moment".into(), "belongs to no parameter"),
        ("no number", &|parts| parts.tensors[0].name = "moment".into(), "belongs to no parameter"),
        ("other shape", &|parts| parts.reshape(0, &[7; 4], DType::F32), "has the shape"),
        ("other rank", &|parts| parts.reshape(0, &[7; 9], DType::F32), "has the shape"),
        ("integers", &|parts| parts.reshape(0, &[1], DType::I64), "which is no type of a state"),
        ("one less", &|parts| parts.remove("moment_1"), "another kind of optimizer"),
        ("rank", &|parts| parts.scalar("__rank").1 = Scalar::UInt(8), "dimensions"),
        ("huge rank", &|parts| parts.scalar("__rank").1 = Scalar::UInt(u64::MAX), "is the most"),
        ("huge counter", &|parts| parts.scalar("time").1 = Scalar::UInt(u64::MAX), "is the most"),
        ("negative counter", &|parts| parts.scalar("time").1 = Scalar::Int(-1), "is the most"),
        (
            "a truth for a counter",
            &|parts| parts.scalar("time").1 = Scalar::Bool(true),
            "another kind of optimizer",
        ),
        ("other path", &|parts| parts.paths[0].1 = "elsewhere".into(), "where the model has"),
    ];
    for (what, damage, why) in damages {
        fs::write(&path, &sound).unwrap();
        let mut parts = Parts::read(&path);
        damage(&mut parts);
        parts.write(&path);
        seal(&folder);
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let model = checkpoint.load_model(&net(2)).unwrap();
        let error = checkpoint.load_optimizer(adam(), &model).err().unwrap_or_else(|| panic!("{what}"));
        assert!(matches!(error, Error::CheckpointOptimizer { .. }), "{what}: {error}");
        assert!(error.to_string().contains(why), "{what}: {error}");
    }
}

/// A list of Burn's states is read into a vector of the length that the file claims.
#[test]
fn a_list_cannot_claim_more_than_there_is() {
    let (folder, _) = checkpoint();
    let folder = at(folder.path(), 2);
    let path = folder.join("optimizer.bpk");
    let mut parts = Parts::read(&path);
    let name = parts.scalar("time").0.replace("time", "history.len");
    parts.scalars.push((name, Scalar::UInt(1 << 30)));
    parts.write(&path);
    seal(&folder);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let error = checkpoint.load_optimizer(adam(), &checkpoint.load_model(&net(2)).unwrap()).err().unwrap();
    assert!(error.to_string().contains("is the most"), "{error}");
}

// C17
#[test]
fn a_pickle_is_no_state() {
    // What `pickle.dumps({})` and a call of `os.system` look like.
    for pickle in [&b"\x80\x04}\x94."[..], b"cos\nsystem\n(S'touch pwned'\ntR."] {
        for name in ["state.json", "optimizer.bpk"] {
            let (folder, _) = checkpoint();
            let step = at(folder.path(), 2);
            fs::write(step.join(name), pickle).unwrap();
            seal(&step);
            match Checkpoint::open(&step) {
                Err(error) => assert!(matches!(error, Error::CheckpointBroken { .. }), "{error}"),
                Ok(checkpoint) => {
                    let model = checkpoint.load_model(&net(2)).unwrap();
                    let error = checkpoint.load_optimizer(adam(), &model).err().unwrap();
                    assert!(matches!(error, Error::CheckpointOptimizer { .. }), "{error}");
                }
            }
        }
    }
}

// C17
#[test]
fn the_code_of_checkpoints_reads_no_pickle() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checkpoint");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let source = fs::read_to_string(&path).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap();
        assert!(!code.contains("pickle") && !code.contains("pytorch"), "{}", path.display());
    }
}

#[test]
fn a_state_of_a_gigabyte_of_spaces_is_refused_without_reading_it() {
    let (folder, _) = checkpoint();
    let step = at(folder.path(), 2);
    let mut file = File::create(step.join("state.json")).unwrap();
    file.write_all(b"   ").unwrap();
    // The rest reads as zeros, and takes no room on the disk.
    file.set_len(1 << 30).unwrap();
    let mut manifest = Manifest::read(&step).unwrap();
    manifest.files.iter_mut().find(|file| file.name == "state.json").unwrap().bytes = 1 << 30;
    manifest.write(&step).unwrap();
    let found = find(folder.path()).unwrap();
    assert!(found.broken[0].why.contains("state.json is larger than 64 MiB"), "{found:?}");
}

#[test]
fn a_manifest_cannot_lead_out_of_its_folder() {
    let (folder, _) = checkpoint();
    let step = at(folder.path(), 2);
    for name in ["/etc/passwd", "../../secret", "a/../../b"] {
        let mut manifest = Manifest::read(&step).unwrap();
        let mut file = manifest.files[0].clone();
        file.name = name.into();
        manifest.files.push(file);
        fs::write(step.join("manifest.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
        let found = find(folder.path()).unwrap();
        assert_eq!(found.newest, None);
        assert!(found.broken[0].why.contains("manifest.json is not valid"), "{found:?}");
        manifest.files.pop();
        fs::write(step.join("manifest.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
    }
}

#[test]
fn a_model_of_another_shape_is_refused_and_changes_nothing() {
    let (folder, saved_values) = checkpoint();
    let step = at(folder.path(), 2);
    let path = step.join("model.bpk");
    let sound = fs::read(&path).unwrap();
    for index in 0..Parts::read(&path).tensors.len() {
        fs::write(&path, &sound).unwrap();
        let mut parts = Parts::read(&path);
        parts.reshape(index, &[7], DType::F32);
        parts.write(&path);
        seal(&step);
        let target = net(2);
        let before = values(&target);
        let error = Checkpoint::open(&step).unwrap().load_model(&target).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(values(&target), before);
    }
    fs::write(&path, &sound).unwrap();
    seal(&step);
    let loaded = Checkpoint::open(&step).unwrap().load_model(&net(2)).unwrap();
    assert_eq!(values(&loaded), saved_values);
}

#[test]
fn files_of_noise_are_errors() {
    let folder = saved(&[(1, None)], CheckpointConfig::default());
    let step = at(folder.path(), 1);
    for name in ["model.bpk", "optimizer.bpk"] {
        let sound = fs::read(step.join(name)).unwrap();
        for length in [0, 1, 9, 10, 11, sound.len() / 2, sound.len() - 1] {
            fs::write(step.join(name), &sound[..length]).unwrap();
            seal(&step);
            let checkpoint = Checkpoint::open(&step).unwrap();
            let loaded = checkpoint.load_model(&net(2));
            let loaded = loaded.and_then(|model| checkpoint.load_optimizer(sgd(), &model).map(drop));
            assert!(loaded.is_err(), "{name} of {length} bytes");
        }
        fs::write(step.join(name), sound).unwrap();
    }
}
