#!/usr/bin/env bash
# What only a GPU can show: that collectives on it are right, ordered, refused where they must be and survive the death of a
# rank; that memory stays flat; and how fast training is in f32, bf16 and f16, with PyTorch on the same GPU in between.
# One JSON object a line on stdout, a table and what failed on stderr. Exit code 1 if anything failed. What cannot run here is
# skipped with its reason, in both. README.md beside this says what each check is.
#
#   tests/gpu/check.sh [--programs DIR] [--peer-python PYTHON] [--only CHECK,..] [--budget SECONDS] [--out DIR]
#                      [--model NAME] [--batch-size N] [--image-size N] [--steps N] [--rounds N] [--soak-steps N]
#                      [--device cuda|cpu]
#
# DIR has the programs gpu-check and recipe-resnet-amp, both built with the feature `cuda`; without it they are built here,
# which downloads LLVM once. Takes under --budget seconds (570), the build aside: what does not fit in any more is skipped.
# --device cpu tries the script itself on a machine without a GPU; its figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

programs='' peer_python='' only='' budget=570 out='' model=resnet50 batch_size=128 image_size=224 steps=60 rounds=1
soak_steps=1000 device=cuda
while (($#)); do
    case $1 in
    --programs) programs=$2 ;;
    --peer-python) peer_python=$2 ;;
    --only) only=$2 ;;
    --budget) budget=$2 ;;
    --out) out=$2 ;;
    --model) model=$2 ;;
    --batch-size) batch_size=$2 ;;
    --image-size) image_size=$2 ;;
    --steps) steps=$2 ;;
    --rounds) rounds=$2 ;;
    --soak-steps) soak_steps=$2 ;;
    --device) device=$2 ;;
    *) echo "check.sh: unknown option $1; see the top of the script" >&2 && exit 2 ;;
    esac
    shift 2
done
out=${out:-$(mktemp -d)}
mkdir -p "$out"
results=$out/results.jsonl
: >"$results"

# A line of the result that no program writes. Reasons are plain words, without quotes.
line() {
    printf '{"check": "%s", "device": "%s", "result": "%s", "why": "%s", "seconds": null, "figures": null}\n' \
        "$1" "$device" "$2" "$3" | tee -a "$results"
}
skip() { line "$1" skipped "$2" && echo "skipped: $1: $2" >&2; }

if [[ $device == cuda ]]; then
    if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >"$out/gpus" 2>&1; then
        skip "everything" "nvidia-smi finds no GPU, so nothing here has run"
        exit 0
    fi
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/gpu" >&2
fi
if [[ -z $programs ]]; then
    features=recipe-resnet-amp/cuda,burn-nccl-gpu-check/cuda,burn-nccl-gpu-check/fusion
    [[ $device == cuda ]] || features=recipe-resnet-amp/flex
    # One command, so that Burn is built once for both.
    cargo build --release -p burn-nccl-gpu-check -p recipe-resnet-amp --no-default-features --features "$features" >&2
    programs=${CARGO_TARGET_DIR:-target}/release
fi
started=$SECONDS
left() { echo $((budget - SECONDS + started)); }
wanted() { [[ -z $only || ",$only," == *",$1,"* ]]; }

# Runs one check within its limit and what is left; one that fails or hangs does not stop the others.
check() {
    local name=$1 limit=$2 status=0
    if (($(left) < 10)); then
        skip "$name" "no time left of $budget s"
        return
    fi
    ((limit < $(left))) || limit=$(left)
    timeout --kill-after=5 "$limit" "$programs/gpu-check" --device "$device" --model "$model" \
        --batch-size "$batch_size" --image-size "$image_size" --steps "$((steps / 3 + 1))" --soak-steps "$soak_steps" \
        ${matrix:+--matrix "$matrix"} "$name" >"$out/$name.json" 2>"$out/$name.log" || status=$?
    if [[ -s $out/$name.json ]]; then
        tee -a "$results" <"$out/$name.json"
    elif ((status == 124 || status == 137)); then
        line "$name" failed "it did not end within $limit s"
    else
        line "$name" failed "it ended with code $status and no result"
    fi
    if grep -q '"result":"skipped"' "$out/$name.json"; then
        echo "skipped: $name: $(sed -n 's/.*"why":"\([^"]*\)".*/\1/p' "$out/$name.json")" >&2
    elif ((status != 0)); then
        echo "failed: $name; the end of $out/$name.log:" >&2
        tail -n 5 "$out/$name.log" >&2
    fi
}

# Matrices that take a GPU long take a CPU too long.
matrix=''
[[ $device == cuda ]] || matrix=64
while read -r name limit; do
    wanted "$name" && check "$name" "$limit"
done < <("$programs/gpu-check" --list)

# Training speed. The same shapes on both sides; our images come from the bundled digits, enlarged, by worker threads.
ours() {
    local folder=$out/$1-$round log=$out/$1-$round.log limit
    limit=$(($(left) < 150 ? $(left) : 150))
    if ! timeout --kill-after=5 "$limit" "$programs/recipe-resnet-amp" --precision "$1" --model "$model" \
        --device "$device" --nproc-per-node 1 --image-size "$image_size" --stem imagenet --batch-size "$batch_size" \
        --max-steps "$steps" --epochs 1000 --workers 8 --lr 0.05 --progress plain --out "$folder" >"$log" 2>&1; then
        line "training-$1" failed "see $log" && tail -n 5 "$log" >&2
        return
    fi
    python3 - "$folder/summary.json" "$device" <<'PYTHON' | tee -a "$results"
import json, sys
summary = json.load(open(sys.argv[1]))
seconds, parts = summary["step_seconds_median"], summary["step_breakdown"]
figures = {
    "side": "burn-nccl", "precision": summary["precision"],
    "images_per_second": summary["global_batch_size"] / seconds, "step_seconds_median": seconds,
    "data_wait_share": parts["data"] / seconds, "loss": summary["train_loss_final"],
    "loss_scale_final": summary.get("loss_scale_final"), "skipped_steps": summary.get("skipped_steps"),
}
print(json.dumps({
    "check": "training-" + figures["precision"], "device": sys.argv[2], "result": "passed", "why": None, "seconds": None,
    "figures": figures,
}))
PYTHON
}
theirs() {
    [[ -n $peer_python ]] || return 0
    local limit=$(($(left) < 100 ? $(left) : 100))
    timeout --kill-after=5 "$limit" "$peer_python" tests/gpu/peer_train.py "$1" "$model" "$device" "$batch_size" \
        "$image_size" "$steps" 2>"$out/torch-$1.log" | tee -a "$results" ||
        line "torch-training-$1" failed "see $out/torch-$1.log"
}

if wanted training; then
    [[ -n $peer_python ]] || skip "PyTorch on the same device" "no --peer-python"
    for ((round = 1; round <= rounds; round++)); do
        for precision in f32 bf16 f16; do
            if (($(left) < 30)); then
                skip "training-$precision" "no time left of $budget s"
            else
                ours $precision
                (($(left) < 20)) || theirs $precision
            fi
        done
    done
fi

python3 - "$results" >&2 <<'PYTHON'
import json, statistics, sys
lines, rates = [json.loads(line) for line in open(sys.argv[1])], {}
print("\n| check | result | seconds | |\n|---|---|---|---|")
for line in lines:
    figures = line["figures"] or {}
    if "images_per_second" in figures:
        rates.setdefault((figures["side"], figures["precision"]), []).append(figures["images_per_second"])
        if figures.get("data_wait_share", 0) > 0.05:
            share = figures["data_wait_share"] * 100
            print(f"{figures['precision']}: {share:.0f}% of the step waits for images, so the GPU could be faster")
    else:
        seconds = f"{line['seconds']:.1f}" if line["seconds"] else ""
        numbers = ", ".join(f"{key} {value}" for key, value in figures.items() if isinstance(value, (int, float, str)))
        print(f"| {line['check']} | {line['result']} | {seconds} | {(line['why'] or numbers)[:300]} |")
if rates:
    print("\n| | f32 images/s | bf16 | f16 |\n|---|---|---|---|")
for side in dict.fromkeys(side for side, _ in rates):
    found = {precision: statistics.median(values) for (who, precision), values in rates.items() if who == side}
    cells = [f"{found[p]:.0f} ({found[p] / found['f32']:.2f}x)" if p in found and "f32" in found else "-"
             for p in ("f32", "bf16", "f16")]
    print(f"| {side} | " + " | ".join(cells) + " |")
PYTHON
echo "$SECONDS s in all; results in $out" >&2
if grep -Eq '"result": ?"failed"' "$results"; then
    echo "check.sh: something failed; the logs are in $out" >&2
    exit 1
fi
