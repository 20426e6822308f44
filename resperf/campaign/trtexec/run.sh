#!/bin/sh
# Measures the layers of campaign @NAME@ with TensorRT's trtexec. It needs sh and trtexec alone,
# changes no setting of the GPU and keeps no engine. Start it again to go on where it ended:
#
#   sh run.sh
#   TRTEXEC=/path/to/trtexec DEVICE=0 HOURS=8 sh run.sh
#
# What it measured is in results/, which resperf bench --runner trtexec --results reads.
set -u
cd "$(dirname "$0")" || exit 2
export LC_ALL=C CUDA_DEVICE_ORDER=PCI_BUS_ID

DEVICE=${DEVICE:-@DEVICE@}
HOURS=${HOURS:-@HOURS@} # 0: no limit
TIMEOUT_S=${TIMEOUT_S:-@TIMEOUT_S@}
PRECISION=@PRECISION@
REFERENCE_EVERY=50
FAILURES_IN_ROW=5

say() { printf '%s\n' "$*"; }
stop() {
    say "run.sh: $*" >&2
    exit 2
}

# --- trtexec, and the options that its version has -------------------------------------------
if [ -z "${TRTEXEC:-}" ]; then
    for each in trtexec /usr/src/tensorrt/bin/trtexec /opt/tensorrt/bin/trtexec; do
        if command -v "$each" >/dev/null 2>&1; then
            TRTEXEC=$each
            break
        fi
    done
fi
[ -n "${TRTEXEC:-}" ] || stop "trtexec was not found; name it: TRTEXEC=/path/to/trtexec sh run.sh"
HELP=$("$TRTEXEC" --help 2>&1 </dev/null) || true
VERSION=$(say "$HELP" | sed -n 's/.*\[TensorRT v\([0-9]*\)\].*/\1/p' | head -n 1)
[ -n "$VERSION" ] || stop "$TRTEXEC --help does not answer as TensorRT's trtexec; set TRTEXEC"

has() { say "$HELP" | grep -q -e "^ *$1[ =,]" -e "^ *$1\$"; }

FLAGS="--device=$DEVICE --profilingVerbosity=detailed --separateProfileRun --exposeDMA"
FLAGS="$FLAGS --warmUp=@WARMUP_MS@ --duration=0"
# One stream, so that copies do not overlap; launched as a network is, not from a CUDA graph.
for each in --maxAuxStreams=0 --builderOptimizationLevel=3 --noCudaGraph; do
    if has "${each%%=*}"; then FLAGS="$FLAGS $each"; fi
done
case $PRECISION in
tf32) ;;
*) FLAGS="$FLAGS --noTF32" ;;
esac
if has --stronglyTyped; then
    FLAGS="$FLAGS --stronglyTyped"
else
    case $PRECISION in
    fp16 | int8) FLAGS="$FLAGS --$PRECISION" ;;
    bf16) stop "TensorRT v$VERSION has no bfloat16; use a newer one, or another --precision" ;;
    esac
fi
# Copies between host and device, which TensorRT 11 leaves out unless it is asked.
if has --includeDataTransfers; then
    COPYING=--includeDataTransfers NOT_COPYING=
else
    COPYING='' NOT_COPYING=--noDataTransfers
fi

# --- one start at a time, on one machine --------------------------------------------------------
mkdir -p results work || stop "this folder cannot be written"
if [ -e work/pid ]; then
    if kill -0 "$(cat work/pid)" 2>/dev/null; then stop "another run.sh is running here"; fi
    # It was killed, perhaps while the timing cache was being written.
    rm -f work/timing.cache
    if [ -e work/timing.good ]; then cp work/timing.good work/timing.cache; fi
fi
say $$ >work/pid
trap 'rm -f work/pid' EXIT
trap 'exit 130' INT TERM

SMI=
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -i "$DEVICE" >/dev/null 2>&1; then SMI=1; fi
ask() { nvidia-smi -i "$DEVICE" --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null; }
REASONS=clocks_throttle_reasons.active
if [ -n "$SMI" ] && ask clocks_event_reasons.active >/dev/null; then
    REASONS=clocks_event_reasons.active
fi

machine() {
    say "digest=@DIGEST@"
    say "trtexec_version=$VERSION"
    say "system=$(uname -s)"
    say "cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null)"
    say "processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)"
    say "memory_kb=$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo 2>/dev/null)"
    if [ -n "$SMI" ]; then
        for each in name driver_version memory.total clocks.max.sm clocks.max.mem power.limit \
            compute_cap; do
            if answer=$(ask "$each"); then say "$each=$answer"; fi
        done
    fi
}
machine >work/machine.txt
if [ -e results/machine.txt ]; then
    cmp -s work/machine.txt results/machine.txt ||
        stop "results/ is of another machine, driver, TensorRT or campaign; move results/ away to start afresh"
else
    cp work/machine.txt results/machine.txt
fi
cp manifest.json results/manifest.json || stop "manifest.json is missing; copy the whole folder"

# --- weights: one block, repeated -------------------------------------------------------------
for each in @WEIGHTS@; do
    file=${each%%=*} count=${each##*=}
    size=$((count * 4194304)) found=0
    if [ -e "models/$file" ]; then found=$(wc -c <"models/$file"); fi
    if [ "$found" -ne "$size" ]; then
        i=0
        while [ "$i" -lt "$count" ]; do
            cat "models/block.$file" || exit 2
            i=$((i + 1))
        done >"models/$file" || stop "models/$file cannot be written: $size bytes are needed"
    fi
done

# --- measuring ----------------------------------------------------------------------------------
limited() {
    if command -v timeout >/dev/null 2>&1; then
        timeout "$TIMEOUT_S" "$@"
    else
        "$@"
    fi
}

# state FILE: clocks, heat, power and other processes, now
state() {
    [ -n "$SMI" ] || return 0
    others=$(nvidia-smi -i "$DEVICE" --query-compute-apps=pid --format=csv,noheader 2>/dev/null |
        grep -c '[0-9]')
    say "$(ask "clocks.sm,clocks.mem,temperature.gpu,power.draw,$REASONS"), $others" >>"$1"
}

# call NAME MODEL ITERATIONS [FLAG]: build an engine, run it, profile its layers
call() {
    out=work/$1
    case $1 in
    [0-9]*r[0-9]*) cache=--noBuilderCache ;; # repeated: which kernels are chosen is noise, too
    *) cache=--timingCacheFile=work/timing.cache ;;
    esac
    # shellcheck disable=SC2086
    limited "$TRTEXEC" --onnx="models/$2.onnx" $FLAGS $cache ${4:-} --iterations="$3" \
        --exportLayerInfo="$out.layers.json" --exportProfile="$out.profile.json" \
        --exportTimes="$out.times.json" >"$out.log" 2>&1 </dev/null
}

# measure NAME MODEL ITERATIONS_ONE ITERATIONS_MANY
measure() {
    rm -f "work/$1".* "work/$1"-*
    began=$(date +%s)
    state "work/$1.state"
    for word in one many; do
        if [ "$word" = one ]; then runs=$3 copying=$COPYING; else runs=$4 copying=$NOT_COPYING; fi
        call "$1-$word" "$2-$word" "$runs" "$copying"
        code=$?
        if [ "$code" -ne 0 ]; then
            {
                say "$began $(date +%s) $code $word"
                tail -n 60 "work/$1-$word.log"
            } >"work/$1.failed"
            mv "work/$1.failed" "results/$1.failed"
            rm -f "work/$1".* "work/$1"-*
            return "$code"
        fi
        grep -e 'TensorRT v' -e '===' -e 'Selected Device' -e 'Compute Capability' -e 'Engine ' \
            "work/$1-$word.log" >"results/$1-$word.log"
        rm "work/$1-$word.log"
    done
    state "work/$1.state"
    if command -v gzip >/dev/null 2>&1; then gzip -f "work/$1"-*.json; fi
    mv "work/$1"-*.json* results/
    if [ -e "work/$1.state" ]; then mv "work/$1.state" results/; fi
    say "$began $(date +%s)" >"work/$1.done"
    mv "work/$1.done" "results/$1.done"
    cp work/timing.cache work/timing.good 2>/dev/null
    return 0
}

reference() {
    i=1
    while [ -e "results/reference-$i.done" ]; do i=$((i + 1)); done
    rm -f "results/reference-$i.failed"
    measure "reference-$i" reference 200 100
}

total=$(wc -l <runs.txt) place=0 measured=0 failed=0 in_row='' since=$REFERENCE_EVERY
start=$(date +%s)
while read -r name model ones many; do
    place=$((place + 1))
    if [ -e "results/$name.done" ] || [ -e "results/$name.failed" ]; then continue; fi
    passed=$(($(date +%s) - start))
    if [ "$(awk "BEGIN {print ($HOURS > 0 && $passed >= $HOURS * 3600)}")" = 1 ]; then
        say "$HOURS hours are over; go on with: sh run.sh"
        break
    fi
    if [ "$since" -ge "$REFERENCE_EVERY" ]; then
        reference || stop "trtexec fails for the reference layer: $(grep -e '\[E\]' -e rror "results/reference-$i.failed" | head -n 1); mend the cause (results/reference-$i.failed has more) and start again, nothing is lost"
        since=0
    fi
    since=$((since + 1))
    if measure "$name" "$model" "$ones" "$many"; then
        measured=$((measured + 1)) in_row=''
        say "$place/$total $name ok"
    else
        failed=$((failed + 1)) in_row="$in_row $name"
        say "$place/$total $name failed, see results/$name.failed"
        # shellcheck disable=SC2086
        set -- $in_row
        if [ $# -ge "$FAILURES_IN_ROW" ]; then
            if reference; then
                in_row=''
            else
                for each; do rm -f "results/$each.failed"; done
                stop "trtexec fails for everything now, also for the reference layer; mend the cause (results/reference-$i.failed) and start again, nothing is lost"
            fi
        fi
    fi
done <runs.txt

left=0
while read -r name _; do
    if [ ! -e "results/$name.done" ] && [ ! -e "results/$name.failed" ]; then left=$((left + 1)); fi
done <runs.txt
if [ "$measured" -gt 0 ]; then reference; fi
say "measured $measured now, $failed failed, $left are left; copy results/ back to where resperf is"
