#!/usr/bin/env bash
# Mixed precision on a GPU: trains a ResNet in f32, bf16 and f16, with PyTorch on the same GPU in between, and prints
# images per second and the gain over f32. One JSON object a line on stdout, a table on stderr.
#
#   tests/gpu/check.sh [--peer-python PYTHON] [--recipe PROGRAM] [--model NAME] [--batch-size N] [--image-size N]
#                      [--steps N] [--rounds N] [--out DIR] [--device cuda|cpu]
#
# Without --recipe it builds recipe-resnet-amp with the feature `cuda`, which downloads LLVM once. --device cpu tries the
# script itself on a machine without a GPU; its figures mean nothing. Takes under 10 minutes on one GPU, the build aside.
set -euo pipefail
cd "$(dirname "$0")/../.."

peer_python='' recipe='' model=resnet50 batch_size=128 image_size=224 steps=60 rounds=2 out='' device=cuda
while (($#)); do
    case $1 in
    --peer-python) peer_python=$2 ;;
    --recipe) recipe=$2 ;;
    --model) model=$2 ;;
    --batch-size) batch_size=$2 ;;
    --image-size) image_size=$2 ;;
    --steps) steps=$2 ;;
    --rounds) rounds=$2 ;;
    --out) out=$2 ;;
    --device) device=$2 ;;
    *) echo "check.sh: unknown option $1; see the top of the script" >&2 && exit 2 ;;
    esac
    shift 2
done
out=${out:-$(mktemp -d)}
mkdir -p "$out"

skip() { printf '{"skipped": "%s", "why": "%s"}\n' "$1" "$2" && echo "skipped: $1: $2" >&2; }

if [[ $device == cuda ]]; then
    if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null; then
        skip "mixed precision on a GPU" "nvidia-smi finds no GPU"
        exit 0
    fi
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/gpu" >&2
fi
if [[ -z $recipe ]]; then
    cargo build --release -p recipe-resnet-amp --no-default-features --features cuda
    recipe=${CARGO_TARGET_DIR:-target}/release/recipe-resnet-amp
fi

# The same shapes on both sides; our images come from the bundled digits, enlarged, by worker threads.
ours() {
    local folder=$out/$1-$round log
    log=$folder.log
    if ! timeout 300 "$recipe" --precision "$1" --model "$model" --device "$device" --nproc-per-node 1 --image-size "$image_size" \
        --stem imagenet --batch-size "$batch_size" --max-steps "$steps" --epochs 1000 --workers 8 --lr 0.05 \
        --progress plain --out "$folder" >"$log" 2>&1; then
        printf '{"side": "burn-nccl", "precision": "%s", "failed": true}\n' "$1"
        tail -n 5 "$log" >&2
        return
    fi
    python3 - "$folder/summary.json" <<'PYTHON'
import json, sys
summary = json.load(open(sys.argv[1]))
seconds, parts = summary["step_seconds_median"], summary["step_breakdown"]
print(json.dumps({
    "side": "burn-nccl", "precision": summary["precision"],
    "images_per_second": summary["global_batch_size"] / seconds, "step_seconds_median": seconds,
    "data_wait_share": parts["data"] / seconds, "loss": summary["train_loss_final"],
    "loss_scale_final": summary.get("loss_scale_final"), "skipped_steps": summary.get("skipped_steps"),
}))
PYTHON
}
theirs() {
    [[ -n $peer_python ]] || return 0
    timeout 300 "$peer_python" tests/gpu/peer_train.py "$1" "$model" "$device" "$batch_size" "$image_size" "$steps" ||
        printf '{"side": "torch", "precision": "%s", "failed": true}\n' "$1"
}

[[ -n $peer_python ]] || skip "PyTorch on the same GPU" "no --peer-python"
for ((round = 1; round <= rounds; round++)); do
    for precision in f32 bf16 f16; do
        ours $precision
        theirs $precision
    done
done | tee "$out/results.jsonl"

python3 - "$out/results.jsonl" >&2 <<'PYTHON'
import json, statistics, sys
rates = {}
for line in open(sys.argv[1]):
    result = json.loads(line)
    if "images_per_second" in result:
        rates.setdefault((result["side"], result["precision"]), []).append(result["images_per_second"])
        if result.get("data_wait_share", 0) > 0.05:
            share = result["data_wait_share"] * 100
            print(f"{result['precision']}: {share:.0f}% of the step waits for images, so the GPU could be faster")
print("\n| | f32 images/s | bf16 | f16 |\n|---|---|---|---|")
for side in dict.fromkeys(side for side, _ in rates):
    found = {precision: statistics.median(values) for (who, precision), values in rates.items() if who == side}
    cells = [f"{found[p]:.0f} ({found[p] / found['f32']:.2f}x)" if p in found and "f32" in found else "-"
             for p in ("f32", "bf16", "f16")]
    print(f"| {side} | " + " | ".join(cells) + " |")
PYTHON
echo "results in $out" >&2
if grep -q '"failed"' "$out/results.jsonl"; then
    echo "check.sh: a run failed; its log is in $out" >&2
    exit 1
fi
