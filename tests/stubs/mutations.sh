#!/usr/bin/env bash
# Takes one wait at a time out of the NCCL transport and demands that its tests fail each time.
#
#   tests/stubs/mutations.sh [NAME...]
#
# Works on a copy of the source tree in a temporary folder and prints a table. Exits with 1 if any change goes unnoticed.
#
#   MUTATION_TEST  what is run in the copy; by default the unit tests of transport::nccl, in the whole workspace. Keep
#                  CARGO_TARGET_DIR set, so that only burn-nccl is built anew.
#   MUTATION_COPY  the folder for the copy; by default a temporary one.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
copy=${MUTATION_COPY:-$(mktemp -d)}
test=${MUTATION_TEST:-cargo test -q --workspace --lib -- transport::nccl}
log=$(mktemp)
mkdir -p "$copy"
cleanup() {
    rm -f "$log"
    if [ -z "${MUTATION_COPY:-}" ]; then rm -rf "$copy"; fi
}
trap cleanup EXIT

refresh() { python3 "$root/tests/stubs/mutations.py" --copy "$root" "$copy"; }

# Runs the tests until one fails. 0: all have passed.
passes() {
    : >"$log"
    (cd "$copy" && exec setsid timeout --kill-after=5 400 bash -c "$test") >"$log" 2>&1 &
    local run=$!
    while kill -0 "$run" 2>/dev/null; do
        if grep -q '\.\.\. FAILED\|panicked at\|^error' "$log"; then
            kill -- "-$run" 2>/dev/null || kill "$run" 2>/dev/null || true
            wait "$run" 2>/dev/null || true
            return 1
        fi
        sleep 0.5
    done
    wait "$run"
}

# What noticed the change: the first test that failed.
witness() {
    local name
    name=$(grep -o "transport::nccl::[a-z_:0-9]*' ([0-9]*) panicked\|transport::nccl::[a-z_:0-9]* \.\.\. FAILED" "$log" | head -1 | sed "s/[' ].*//")
    if grep -q '^error\(\[\|: could not compile\)' "$log"; then echo "DOES NOT BUILD"; return; fi
    echo "${name:-a rank of a test, or the limit}"
}

unnoticed=0
refresh
echo "| change | noticed by |"
echo "|---|---|"
if [ $# -eq 0 ]; then
    passes || { echo "| none | **FAILS WITHOUT A CHANGE**: $(witness) |"; exit 1; }
    echo "| none | nobody: all tests pass |"
fi
names=("$@")
if [ $# -eq 0 ]; then mapfile -t names < <(python3 "$root/tests/stubs/mutations.py" --list); fi
for name in "${names[@]}"; do
    refresh
    text=$(python3 "$root/tests/stubs/mutations.py" "$name" "$copy")
    if passes; then
        echo "| $text | **NOBODY** |"
        unnoticed=1
    else
        found=$(witness)
        if [ "$found" = "DOES NOT BUILD" ]; then unnoticed=1; fi
        echo "| $text | \`$found\` |"
    fi
done
exit $unnoticed
