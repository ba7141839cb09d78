#!/usr/bin/env bash
# Fills the corpora with sound files and with the tests' hostile ones, from which fuzzing starts.
# Usage: seeds.sh PYTHON RECIPE_RECORDS, with safetensors in PYTHON and the built recipe.
set -euo pipefail
cd "$(dirname "$0")"
python=$1 records=$2 fixtures=../tests/fixtures
mkdir -p corpus/{burnpack,index,manifest,pickle,pytorch,safetensors,zstd}

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

# `printf weights | sha256sum`
sha256=$(printf weights | sha256sum | cut -d ' ' -f 1)
described='{"files":[{"name":"model.bpk","bytes":7,"sha256":"'$sha256'"}],"versions":{"manifest":"1"},"created":1}'
printf %s "$described" > corpus/manifest/sound.json
printf %s "${described/model.bpk/../outside}" > corpus/manifest/outside.json
printf %s "${described/model.bpk//etc/passwd}" > corpus/manifest/absolute.json
printf %s "${described/:7/:18446744073709551615}" > corpus/manifest/size.json
printf %s "${described/\"files\":[/\"files\":[{\"name\":\"model.bpk\",\"bytes\":7,\"sha256\":\"\"},}" > corpus/manifest/twice.json
