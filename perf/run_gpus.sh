#!/usr/bin/env bash
# Conformance and speed on a machine with GPUs: what was run, how many results, how many of them wrong.
#
#   perf/run_gpus.sh LIB REFERENCE_LIB OUT
#
# LIB and REFERENCE_LIB are files libnccl.so.2; OUT is a folder, which gets summary.txt with a line `stage: rows R, wrong W` per stage, the
# log of every command, and slower.txt with the rows in which LIB is slower than REFERENCE_LIB. Exit code 0: every stage that could run is right.
#
# Any number of GPUs from one on. Ranks share GPUs where there are too few; a stage that needs more says so and is left out. Each command
# has a time limit; one that hangs counts as failed and does not stop the rest.
#
# Settings, by environment:
#   STAGES="..."       only these of: check nccl-tests seeds torch frameworks paths sanitizer perf
#   QUICK=1            fewer sizes and layouts: minutes instead of an hour
#   LIMIT=300          seconds that one command may take; four times as long for oxccl-check and a PyTorch script
#   NCCL_TESTS=DIR     nccl-tests' binaries; NCCL_TESTS_MPI=DIR the same built with MPI=1. Both built against REFERENCE_LIB's headers
#   BINARIES="..."     only these of nccl-tests (all_reduce all_gather ...)
#   REGISTER="0 1 2"   nccl-tests' -R
#   SEEDS=DIR          programs of users: allreduce_vs_rs_ag.py, test_dp_sampling_comm.py (PYTHONPATH has tokenspeed)
#   MSCCLPP_TEST=FILE  test_mscclpp.py inside its package
#   PYTHON=python3     with PyTorch, and where possible CuPy and JAX; its torch.distributed.run starts ranks
#   OXCCL_PERF, OXCCL_CHECK   the programs, when they are not beside LIB
#   MPIRUN=mpirun      and its options
#
# Rank layouts of nccl-tests on G GPUs. A process takes -t x -g GPUs of its own from its local rank on, or from NCCL_TESTS_DEVICE on, and
# never two ranks on one GPU; only processes can share, when NCCL_TESTS_DEVICE is set for each. So:
#   G = 1:  one rank (-g 1); 2 and 4 MPI processes on the one GPU
#   G > 1:  -g G; -t G -g 1; G MPI processes on a GPU each; 2 G MPI processes, two to a GPU
# shellcheck disable=SC2329 # the stages are called by name
set -u

if [ $# -ne 3 ]; then
    sed -n '2,/^# shellcheck/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
fi
lib=$(readlink -f "$1") reference=$(readlink -f "$2")
mkdir -p "$3" && out=$(cd "$3" && pwd) || exit 2
for file in "$lib" "$reference"; do
    [ -f "$file" ] || { echo "there is no library $file"; exit 2; }
done
here=$(cd "$(dirname "$0")/.." && pwd)
scripts=$here/ctests/gpu
beside=$(dirname "$lib")
perf=${OXCCL_PERF:-$beside/oxccl-perf}
check=${OXCCL_CHECK:-$beside/oxccl-check}
python=${PYTHON:-python3}
mpirun=${MPIRUN:-mpirun --allow-run-as-root --oversubscribe}
limit=${LIMIT:-300}
quick=${QUICK:-}
stages=${STAGES:-check nccl-tests seeds torch frameworks paths sanitizer perf}

# No NVLink multicast in anything that runs here.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export NCCL_MULTI_RANK_GPU_ENABLE=1
# Ranks that share a GPU: a kernel that is first launched while another spins would wait for it.
export CUDA_MODULE_LOADING=EAGER
passed=(NCCL_NVLS_ENABLE TORCH_SYMM_MEM_DISABLE_MULTICAST NVSHMEM_DISABLE_NVLS NCCL_MULTI_RANK_GPU_ENABLE CUDA_MODULE_LOADING)

# The loader finds a library by its soname: a folder with that name serves programs that search, LD_PRELOAD those with a path of their own.
names=$out/lib
mkdir -p "$names" && ln -sf "$lib" "$names/libnccl.so.2" || exit 2

# The shell waits for what it starts, so a temporary folder can go at the end.
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT

if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
else
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
fi
[ "$gpus" -ge 1 ] || { echo "no GPU here"; exit 2; }
# Ranks for what runs once.
ranks=$((gpus > 1 ? gpus : 2))

summary=$out/summary.txt
bad=0

say() {
    echo "$*" | tee -a "$summary"
}

# A stage's sums.
begin() {
    stage=$1 rows=0 wrong=0 runs=0 failed=()
}

finish() {
    local more=", runs $runs"
    [ ${#failed[@]} -gt 0 ] && more+=", failed ${#failed[@]}: ${failed[*]}"
    say "$stage: rows $rows, wrong $wrong$more"
    if [ "$wrong" -ne 0 ] || [ ${#failed[@]} -gt 0 ]; then bad=1; fi
}

left_out() {
    say "    $stage: left out: $*"
}

# attempt NAME COMMAND...: output to OUT/STAGE/NAME.txt, errors to NAME.err. Exit code as the command's.
attempt() {
    local name=$1 code
    shift
    mkdir -p "$out/$stage"
    log=$out/$stage/$name.txt
    echo "$*" >"$out/$stage/$name.command"
    timeout -k 20 "$limit" "$@" >"$log" 2>"${log%.txt}.err" </dev/null
    code=$?
    runs=$((runs + 1))
    if [ "$code" -ne 0 ]; then
        failed+=("$name($code)")
        echo "$stage $name: exit code $code$([ "$code" -eq 124 ] || [ "$code" -eq 137 ] && echo ' (time limit)')"
    fi
    return "$code"
}

add() {
    rows=$((rows + ${1:-0})) wrong=$((wrong + ${2:-0}))
}

# Rows of nccl-tests' tables: five columns of description, then twice time, bandwidths and number of wrong elements. Wrong is a row with
# any wrong element, and one that ends early. "N/A" is what the program itself does not check (in place, where that means nothing).
count_nccl_tests() {
    awk '
        function off(cell) { return cell != "N/A" && cell + 0 != 0 || cell !~ /^(N\/A|[0-9.e+-]+)$/ }
        $1 ~ /^[0-9]+$/ && $2 ~ /^[0-9]+$/ && NF >= 5 {
            rows++
            if (NF < 13 || off($9) || off($13)) wrong++
        }
        /Out of bounds values/ { bounds += $(NF - 1) }
        END { if (bounds > wrong) wrong = bounds; print rows + 0, wrong + 0 }' "$1"
}

# The total that the Python checks print: "... N checks, W wrong".
count_checks() {
    awk '/^total: .* checks, .* wrong/ || /^[0-9]+ ranks, .* checks, / || (parts && /^[a-z_]+: .* checks, /) {
             for (i = 2; i <= NF; i++) { if ($i ~ /^checks/) rows += $(i - 1); if ($i ~ /^wrong/) wrong += $(i - 1) } }
         END { print rows + 0, wrong + 0 }' parts="${2:-}" "$1"
}

count_perf() {
    awk '/^# [0-9]+ rows, / { rows += $2; wrong += $6 } END { print rows + 0, wrong + 0 }' "$1"
}

stage_check() {
    [ -x "$check" ] || { left_out "no $check"; return; }
    local limit=$((limit * 4))
    OXCCL_TEST_DRIVER=real OXCCL_LIBRARY=$lib attempt all "$check" run --all
    add "$(grep -c '^ok \|^FAILED ' "$log")" "$(grep -c '^FAILED ' "$log")"
}

nccl_tests_layouts() {
    if [ "$gpus" -eq 1 ]; then
        echo "one_rank:1:1:"
    else
        echo "gpus:$gpus:1:-g $gpus"
        [ -n "$quick" ] || echo "threads:$gpus:1:-t $gpus -g 1"
    fi
    if [ -n "${NCCL_TESTS_MPI:-}" ]; then
        echo "mpi:$ranks:$ranks:-g 1"
        [ -n "$quick" ] || echo "mpi_shared:$((2 * ranks)):$((2 * ranks)):-g 1"
    fi
}

# Which options: name, then arguments. Few iterations, since shared GPUs change between processes in milliseconds.
nccl_tests_options() {
    local unaligned
    echo "all -d all -o all -b 4 -e 4M -f $([ -n "$quick" ] && echo 64 || echo 8) -r -1"
    echo "odd -d all -o sum -b 13 -e 70013 -i $([ -n "$quick" ] && echo 30011 || echo 10007) -r -1"
    echo "graph -d half -o all -b 8 -e 16M -f $([ -n "$quick" ] && echo 256 || echo 16) -G 3"
    echo "aggregated -d float -o sum -b 8 -e 1M -f 16 -m 8"
    for unaligned in $([ "$1" = yes ] && { [ -n "$quick" ] && echo 3 || echo 1 3 7; }); do
        echo "unaligned$unaligned -d all -o sum -b 4 -e 1M -f 32 -u $unaligned"
    done
    for register in ${REGISTER:-0 1 2}; do
        echo "register$register -d float -o sum -b 8 -e 64M -f 32 -R $register"
    done
    [ -n "$quick" ] || echo "large -d bfloat16 -o sum -b 64M -e 1G -f 4"
}

stage_nccl_tests() {
    local binaries=${BINARIES:-all_reduce all_gather broadcast reduce_scatter reduce alltoall alltoallv scatter gather sendrecv hypercube}
    local layout total processes arguments binary folder program options name unalign
    if [ -z "${NCCL_TESTS:-}${NCCL_TESTS_MPI:-}" ]; then
        left_out "NCCL_TESTS is not set. To build, with REFERENCE_LIB's folder as NCCL_HOME (include/ and lib/libnccl.so):
        make -C nccl-tests -j CUDA_HOME=/usr/local/cuda NCCL_HOME=... NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90
        make -C nccl-tests -j ... MPI=1 MPI_HOME=... BUILDDIR=build_mpi"
        return
    fi
    while IFS=: read -r layout total processes arguments; do
        folder=${NCCL_TESTS:-}
        [ "$processes" -gt 1 ] && folder=$NCCL_TESTS_MPI
        [ -n "$folder" ] || continue
        for binary in $binaries; do
            program=$folder/${binary}_perf
            [ -x "$program" ] || { left_out "no $program"; continue; }
            unalign=no
            LD_LIBRARY_PATH=$names${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 60 "$program" -h 2>/dev/null </dev/null | grep -q unalign && unalign=yes
            while read -r name options; do
                [ "$binary" = hypercube ] && [ $((total & (total - 1))) -ne 0 ] && continue
                local counted
                # shellcheck disable=SC2086 # the options are words
                if [ "$processes" -gt 1 ]; then
                    over_mpi "$layout-$binary-$name" "$processes" "$program" $arguments -n 2 -w 1 -c 1 $options
                else
                    attempt "$layout-$binary-$name" env LD_PRELOAD="$lib" "$program" $arguments -n 2 -w 1 -c 1 $options
                fi
                counted=$(count_nccl_tests "$log")
                # shellcheck disable=SC2086
                add $counted
                echo "$layout $binary $name: rows ${counted% *}, wrong ${counted#* }" >>"$out/$stage/by_binary.txt"
                if [ "${counted% *}" -eq 0 ] && [[ " ${failed[*]} " != *" $layout-$binary-$name("* ]]; then
                    failed+=("$layout-$binary-$name(no rows)")
                fi
            done < <(nccl_tests_options "$unalign")
        done
    done < <(nccl_tests_layouts)
}

# over_mpi NAME PROCESSES COMMAND...: local rank r on GPU r modulo their number.
over_mpi() {
    local name=$1 processes=$2 variable arguments=()
    shift 2
    for variable in "${passed[@]}"; do
        arguments+=(-x "$variable")
    done
    [ -n "${LD_LIBRARY_PATH:-}" ] && arguments+=(-x LD_LIBRARY_PATH)
    # shellcheck disable=SC2016,SC2086 # for the ranks' shells; mpirun comes with options
    attempt "$name" $mpirun -np "$processes" "${arguments[@]}" bash -c '
        rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_RANK:-0}}}
        export NCCL_TESTS_DEVICE=$((rank % $1)) LD_PRELOAD=$2
        shift 2
        exec "$@"' bash "$gpus" "$lib" "$@"
}

# with_torch NAME SCRIPT...: on LIB.
with_torch() {
    local name=$1
    shift
    attempt "$name" env LD_PRELOAD="$lib" "$python" "$@"
}

stage_torch() {
    # Some hundred calls of milliseconds each, where ranks share a GPU; the chapters have limits of their own.
    local n script limit=$((limit * 4))
    "$python" -c 'import torch' 2>/dev/null || { left_out "$python has no torch"; return; }
    for n in $ranks $([ -n "$quick" ] || echo $((2 * ranks))); do
        for script in torch_collectives torch_ddp torch_distributed torch_training; do
            with_torch "$script-$n" "$scripts/$script.py" --ranks "$n"
            # shellcheck disable=SC2046
            add $(count_checks "$log")
            [ "$script" = torch_ddp ] && add "$(grep -c ': ok$\|: WRONG$' "$log")" "$(grep -c ': WRONG$' "$log")"
        done
    done
    attempt memory "$python" "$scripts/memory.py" --lib "$lib" --ranks "$ranks"
    attempt memory-reference "$python" "$scripts/memory.py" --lib "$reference" --ranks "$ranks"
}

stage_frameworks() {
    with_torch frameworks "$scripts/frameworks.py" --ranks "$ranks"
    # shellcheck disable=SC2046
    add $(count_checks "$log" 1)
    grep -h 'not run\|are needed' "$log" | while read -r line; do left_out "$line"; done
}

# The first seed asks for 4 ranks; with 2 its constants follow: the sums of 100 r and of r + 1.
seed_all_reduce() {
    local n=$1 program=$SEEDS/allreduce_vs_rs_ag.py folder=$out/seeds/allreduce-$1
    if [ "$n" -ne 4 ]; then
        sed "s/world != 4/world != $n/; s/\* world + 600/* world + $((100 * n * (n - 1) / 2))/; s/, 10\.0)/, $((n * (n + 1) / 2)).0)/" \
            "$program" >"$scratch/seed.py"
        program=$scratch/seed.py
    fi
    attempt "allreduce-$n" env LD_PRELOAD="$lib" "$python" -m torch.distributed.run --standalone --nproc-per-node "$n" \
        "$scripts/on_shared_gpus.py" "$program" --output-dir "$folder"
    # Contracts that hold and timings that are right, of all.
    cat "$folder"/rank*_*.csv 2>/dev/null | awk -F, '/,True/ { r++ } /,False/ { r++; w++ } END { print r + 0, w + 0 }' >"$scratch/count"
    # shellcheck disable=SC2046
    add $(cat "$scratch/count")
}

pytest_counts() {
    # shellcheck disable=SC2046
    add $(grep -E '(passed|failed|error)' "$log" | tail -1 | awk '{
        for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p = $(i - 1); if ($i ~ /^(failed|errors?)/) w += $(i - 1) } print p + w + 0, w + 0 }')
}

stage_seeds() {
    if [ -n "${SEEDS:-}" ] && [ -f "$SEEDS/allreduce_vs_rs_ag.py" ]; then
        seed_all_reduce 4
        seed_all_reduce 2
    else
        left_out "SEEDS has no allreduce_vs_rs_ag.py"
    fi
    if [ -n "${SEEDS:-}" ] && [ -f "$SEEDS/test_dp_sampling_comm.py" ] && [ "$gpus" -ge 2 ] && "$python" -c 'import tokenspeed' 2>/dev/null; then
        attempt sampling env LD_PRELOAD="$lib" "$python" -m pytest -q "$SEEDS/test_dp_sampling_comm.py"
        pytest_counts
    else
        left_out "test_dp_sampling_comm.py needs SEEDS, two GPUs and tokenspeed"
    fi
    if [ -n "${MSCCLPP_TEST:-}" ] && [ "$gpus" -ge 2 ] && "$python" -c 'import mscclpp' 2>/dev/null; then
        over_mpi mscclpp 2 "$python" -m pytest -q "$MSCCLPP_TEST"
        pytest_counts
    else
        left_out "test_mscclpp.py needs MSCCLPP_TEST, two GPUs and mscclpp"
    fi
}

with_perf() {
    local name=$1
    shift
    attempt "$name" "$@"
    # shellcheck disable=SC2046
    add $(count_perf "$log")
}

# The ways from one GPU to another, each taken away in turn.
stage_paths() {
    [ -x "$perf" ] || { left_out "no $perf"; return; }
    local way
    for way in "" NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"; do
        # shellcheck disable=SC2086
        with_perf "$(sed 's/NCCL_//g; s/=1//g; s/ /-/' <<<"${way:-ALL}")" \
            env $way "$perf" --lib "$lib" --processes --ranks "$ranks" -b 8 -e 16M -f 16 -d float
    done
}

stage_sanitizer() {
    [ -x "$perf" ] || { left_out "no $perf"; return; }
    command -v compute-sanitizer >/dev/null || { left_out "no compute-sanitizer"; return; }
    with_perf memcheck compute-sanitizer --tool memcheck --target-processes all --error-exitcode 9 \
        "$perf" --lib "$lib" --ranks "$ranks" -b 8 -e 4M -f 32 -n 2 -w 1
    add 0 "$(grep -h 'ERROR SUMMARY' "$log" "${log%.txt}.err" | awk '{ n += $(NF - 1) } END { print n + 0 }')"
}

# Both libraries by turns in one run.
stage_perf() {
    [ -x "$perf" ] || { left_out "no $perf"; return; }
    local most collective graph
    if [ -n "$quick" ] || [ "$gpus" -eq 1 ]; then most=64M; else most=4G; fi
    for collective in all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv exchange; do
        for graph in 0 3; do
            with_perf "$collective-graph$graph" "$perf" --lib "$lib" --vs "$reference" --ranks "$ranks" -b 8 -e "$most" -f 8 -G "$graph" \
                -J "$out/perf/$collective-graph$graph.json" "$collective"
            # Two cells of each library, then the ratio and whether in place.
            awk -v name="$collective-graph$graph" 'NF == 15 && $1 ~ /^[0-9]+$/ && $14 ~ /^[0-9.]+$/ && $14 < 1 {
                print name, "bytes", $1, $3, "in place", $15, "us", $6, "against", $10, "ratio", $14 }' "$log" >>"$out/slower.txt"
        done
    done
    [ -s "$out/slower.txt" ] && say "    perf: $(wc -l <"$out/slower.txt") rows slower than the reference, in slower.txt"
}

{
    echo "date: $(date -u +%Y-%m-%dT%H:%MZ)"
    echo "GPUs: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | tr -s ' ' | paste -sd';')"
    echo "library: $lib $(sha256sum "$lib" | cut -c1-16), reference: $reference"
    echo "ranks: $ranks on $gpus GPUs, multicast off${quick:+, quick}"
} | tee "$summary"
rm -f "$out/slower.txt"

for stage in $stages; do
    function=stage_${stage//-/_}
    declare -F "$function" >/dev/null || { echo "there is no stage $stage"; exit 2; }
    begin "$stage"
    "$function"
    finish
done
exit $bad
