#!/usr/bin/env bash
# Fills the corpora with sound files and with the tests' hostile ones, from which fuzzing starts.
# Usage: seeds.sh PYTHON RECIPE_RECORDS, with safetensors in PYTHON and the built recipe.
set -euo pipefail
cd "$(dirname "$0")"
python=$1 records=$2 fixtures=../tests/fixtures
mkdir -p corpus/{burnpack,index,manifest,pickle,pytorch,safetensors,state,zstd}

cp "$fixtures"/*.pth corpus/pytorch/
cp "$fixtures"/*.safetensors corpus/safetensors/
"$python" - "$fixtures" <<'PYTHON'
import glob, os, sys, zipfile
from safetensors.numpy import save_file
import numpy as np
for path in glob.glob(os.path.join(sys.argv[1], "*.pth")):
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            pickle = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with open(os.path.join("corpus/pickle", os.path.basename(path)), "wb") as file:
                file.write(archive.read(pickle))
tensors = {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "layer.steps": np.array([3], dtype=np.int64)}
save_file(tensors, "corpus/burn.safetensors", metadata={"burn-nccl.names": "burn", "note": "a seed"})
PYTHON

"$records" convert corpus/burn.safetensors corpus/burnpack/small.bpk --overwrite
"$records" convert corpus/burn.safetensors corpus/burnpack/half.bpk --dtype f16 --overwrite
for file in burnpack/small.bpk burn.safetensors pytorch/net.pth; do
    cp "corpus/$file" "corpus/zstd/$(basename "$file")"
done
"$records" convert corpus/burn.safetensors corpus/zstd/small.bpk.zst --to bpk --compress zstd --overwrite
mv corpus/burn.safetensors corpus/safetensors/

shards='{"metadata":{"total_size":16},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}'
printf %s "$shards" > corpus/index/sound.json
printf %s "${shards/a.safetensors/../../../etc/passwd}" > corpus/index/outside.json
printf %s "${shards/a.safetensors//etc/passwd}" > corpus/index/absolute.json
printf %s "${shards/a.safetensors/model.safetensors.index.json}" > corpus/index/itself.json
printf %s '{"weight_map":{"x":"b.safetensors","z":"c.safetensors"}}' > corpus/index/missing.json

sha256=$(printf weights | sha256sum | cut -d ' ' -f 1)
described='{"name":"model.bpk","bytes":7,"sha256":"'$sha256'"}'
manifest() { printf '{"files":[%s],"versions":{"manifest":"1"},"created":1}' "$1" > "corpus/manifest/$2.json"; }
manifest "$described" sound
manifest "$described,$described" twice
manifest "${described/model.bpk/../outside}" outside
manifest "${described/model.bpk//etc/passwd}" absolute
manifest "${described/:7/:18446744073709551615}" size

cat > corpus/state/sound.json <<'JSON'
{"version":1,"state":{"step":12,"epoch":1,"sampler":{"epoch":1,"images":96,"seed":7,"dataset_len":1498,"world_size":2,
"batch_size":8,"accumulate":1},"scaler":null,"metric":0.30000000000000004,
"config":{"model":"resnet18","lr":1e-3},"history":[1.5,-2e300,"\u0000"],"extra":{"a \" 1.5 \\":["\\",null,true]}}}
JSON
printf %s '{"version":18446744073709551615,"state":{}}' > corpus/state/version.json
printf %s '{"version":1,"state":{"metric":1e999,"step":-1}}' > corpus/state/numbers.json
printf '%.0s[' {1..500} > corpus/state/nesting.json
