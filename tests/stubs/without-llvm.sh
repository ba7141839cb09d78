#!/usr/bin/env bash
# Runs cargo for code with the feature `cuda` on a machine where LLVM is not to be had. For test machines only.
#
#   tests/stubs/without-llvm.sh cargo test --profile quick -p burn-nccl --features cuda,train,flex --test on_doubles
#
# cubecl-cuda compiles kernels with LLVM, which its build downloads: some hundred megabytes, and not from everywhere. The tests
# on the doubles run no kernel, so nothing of LLVM is ever called. This makes cargo find an "LLVM" that consists of empty
# headers, lets the linker leave its functions open, and starts what cargo runs (tests, `cargo run`) with a library in which
# each of these functions says its name and aborts. What is built so is good for nothing else: a program that computes on a GPU
# needs the real LLVM and this script has no part in that.
#
# The stand-in lies in $CARGO_TARGET_DIR/without-llvm (target/without-llvm). Another target folder than that of ordinary builds
# keeps what is linked so from being taken for something else.
set -euo pipefail

# The version and place that the build of cubecl-llvm 0.11.3 looks for before it downloads anything.
llvm_version=23.1.0
bundle_name=tracel-llvm-$llvm_version-4

make_stand_in() {
    local folder=$1 bundle=$1/data/tracel/$bundle_name
    mkdir -p "$bundle"/bin "$bundle"/lib "$bundle"/include/llvm-c
    touch "$bundle/.tracel-llvm-installed"

    # What build scripts ask of LLVM.
    cat >"$bundle/bin/llvm-config" <<CONFIG
#!/bin/sh
for question; do
    case \$question in
    --version) echo $llvm_version ;;
    --libdir) echo "$bundle/lib" ;;
    --includedir) echo "$bundle/include" ;;
    --cflags | --cxxflags) echo "-I$bundle/include" ;;
    esac
done
CONFIG

    # The one C header that a build script compiles against: initialisers, which in LLVM are inline functions too.
    local header=$bundle/include/llvm-c/Target.h part
    echo 'typedef int LLVMBool;' >"$header"
    for part in AllTargetInfos AllTargets AllTargetMCs AllAsmPrinters AllAsmParsers AllDisassemblers; do
        echo "static inline void LLVMInitialize$part(void) {}" >>"$header"
    done
    for part in NativeTarget NativeAsmPrinter NativeAsmParser NativeDisassembler; do
        echo "static inline LLVMBool LLVMInitialize$part(void) { return 0; }" >>"$header"
    done

    # A C++ compiler that takes an empty file for the glue which includes LLVM's C++ headers.
    : >"$folder/empty.cpp"
    cat >"$folder/c++" <<COMPILER
#!/usr/bin/env bash
arguments=()
for argument; do
    case \$argument in
    *cpp_shims*.cpp) arguments+=("$folder/empty.cpp") ;;
    *) arguments+=("\$argument") ;;
    esac
done
exec c++ "\${arguments[@]}"
COMPILER
    chmod +x "$bundle/bin/llvm-config" "$folder/c++"
}

# A library of all functions that a program lacks; one per program, and made anew only where the program is newer.
stand_in_for() {
    local program=$1 library=$1.without-llvm.so name
    if [[ ! $library -nt $program ]]; then
        {
            printf '#include <stdio.h>\n#include <stdlib.h>\n'
            nm -D --undefined-only "$program" | awk '$2 ~ /^(LLVM|cubecl_)/ { sub(/@.*/, "", $2); print $2 }' | sort -u |
                while read -r name; do
                    printf 'void %s(void) { fprintf(stderr, "there is no LLVM here, and %s was called\\n"); abort(); }\n' \
                        "$name" "$name"
                done
        } | cc -shared -fPIC -w -x c -o "$library.$$" -
        # Another process may do the same.
        mv "$library.$$" "$library"
    fi
    echo "$library"
}

case ${1:-} in
cargo)
    shift
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    folder=$target/without-llvm
    [[ -x $folder/c++ ]] || make_stand_in "$folder"
    host=$(rustc -vV | sed -n 's/^host: //p')
    runner=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER
    env "XDG_DATA_HOME=$folder/data" "CXX=$folder/c++" "CARGO_TARGET_DIR=$target" \
        "RUSTFLAGS=${RUSTFLAGS:-} -C link-arg=-Wl,--unresolved-symbols=ignore-all" \
        "$runner=$(realpath "$0") run" cargo "$@"
    ;;
run)
    shift
    program=$1
    LD_PRELOAD="$(stand_in_for "$program")${LD_PRELOAD:+:$LD_PRELOAD}" exec "$@"
    ;;
*)
    sed -n '2,14s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
