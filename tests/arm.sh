#!/usr/bin/env bash
# Test the vector kernels on an emulated ARM CPU: `make test-arm`, with more arguments for pytest
# `make test-arm ARGS="-x -k gru"`. Needs Debian and QEMU, and no root.
#
# QEMU's user mode runs a single ARM program on this machine's kernel and translates its
# instructions. Results are those of ARM; times are not, and threads see memory in the order of the
# machine below, so that a barrier missing on ARM stays unseen on x86.
#
# Everything is below build/arm. What is complete there is used again; remove it to begin anew.
#   debian/     Debian's Python for arm64 and its libraries, unpacked, not installed
#   packages/   the wheels for it, in the versions of requirements.lock
#   apt/, numba/, bytecode/, pytest/   caches
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What is tested. Nearly all the time goes into compiling, anew for each cell and dtype, hence
# float64 for one cell and version only.
TESTS=(tests/test_activations.py tests/test_engine.py tests/test_versions.py)
VERSIONS="numba-fused or numba-wavefront"
FEWER="float64 and (rnn or gru or numba-wavefront)"
# Kernels as plain Python, processes that compile anew, thousands of runs, interrupts that have to
# come within a call: too slow here, and what they test is the same on every CPU.
SLOW="every_address or no_folder or second_process or python_threads or stress or interrupt"
SLOW+=" or ctrl_c"
SELECTION="not (test_versions and not ($VERSIONS)) and not ($FEWER) and not ($SLOW)"
# Tested once more as on a CPU whose features Numba does not find out, which Apple's are.
SHORT="tile_rows or (numba-fused-lstm and not float64)"

# What the tests import; their needs come along.
PACKAGES=(numpy scipy numba pandas matplotlib tqdm threadpoolctl pytest hypothesis)
CPU=neoverse-n1
FEATURES=+neon,+fp-armv8,+fullfp16,+lse

arm=$PWD/build/arm
python=$arm/debian/usr/bin/python

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# Debian's Python and what the wheels take from the system, without touching the packages here.
set_up_debian() {
    [ -d "$arm/debian" ] && return
    echo "unpacking Debian's Python for arm64 below build/arm/debian"
    rm -rf "$arm/apt" "$arm/debian.part"
    mkdir -p "$arm"/apt/{lists,archives}/partial "$arm/debian.part"
    : >"$arm/apt/status" # no package is installed: every need is downloaded
    # The sources and keys are this system's. Its hooks, which may tidy its own cache, stay silent.
    cat >"$arm/apt/apt.conf" <<END
APT { Architecture "arm64"; Architectures { "arm64"; }; Sandbox::User "root"; };
Dir { State "$arm/apt"; State::status "$arm/apt/status"; Cache "$arm/apt"; Log "$arm/apt"; };
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
END
    local apt=(apt-get -c "$arm/apt/apt.conf" -qq)
    "${apt[@]}" update
    "${apt[@]}" install --yes --no-install-recommends --download-only \
        python3 python3-pip-whl libstdc++6 libgomp1
    local package
    for package in "$arm"/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$arm/debian.part"
    done
    mv "$arm/debian.part" "$arm/debian" # complete from here on
}

# A command for the emulated Python. As its name in argv[0] it becomes sys.executable, so that tests
# can start other processes: the kernel here would not run an ARM program.
write_python() {
    cat >"$python" <<END
#!/bin/sh
here=\${0%/*}
exec $qemu -cpu $CPU -L "\$here/../.." -0 "\$0" "\$here/python3" "\$@"
END
    chmod +x "$python"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "this Debian's Python is older than 3.11: use Debian 12 or newer"
}

# The emulated pip chooses the wheels: it knows which machine and Python they are for.
set_up_packages() {
    local part=$arm/packages.part wanted=$arm/constraints.txt
    # The versions of the lock for what these packages need: a constraint has no hashes.
    sed '/^ *--hash=/d; s/ *\\$//' requirements.lock >"$wanted"
    cmp -s "$wanted" "$arm/packages/constraints.txt" && return
    echo "installing wheels for arm64 into build/arm/packages"
    rm -rf "$arm/packages" "$part"
    local pip=("$arm"/debian/usr/share/python-wheels/pip-*.whl)
    "$python" "${pip[0]}/pip" install --quiet \
        --disable-pip-version-check --root-user-action=ignore --no-compile --cache-dir "$arm/pip" \
        --only-binary :all: --constraint "$wanted" --target "$part" "${PACKAGES[@]}"
    cp "$wanted" "$part/constraints.txt"
    mv "$part" "$arm/packages" # complete from here on
}

# $1: what to select; then arguments of pytest, of which any -k narrows the selection.
run_tests() {
    local selection="($1)" arguments=()
    shift
    while (($#)); do
        case $1 in
            -k) selection+=" and (${2?-k wants an expression})" && shift ;;
            *) arguments+=("$1") ;;
        esac
        shift
    done
    "$python" -c "$REPORT"
    "$python" -m pytest -o cache_dir="$arm/pytest" "${TESTS[@]}" -k "$selection" "${arguments[@]}"
}

REPORT='
from numba.core.registry import cpu_target
from lstm_kernels.cpu.registers import vector_registers
triple, cpu, features = cpu_target.target_context.codegen().magic_tuple()
size, count, *_ = vector_registers()
print(f"\nNumba compiles for {triple}, {cpu}, features {features!r}:", end=" ")
print(f"{count} registers of {size} bytes", flush=True)
'

qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
    fail "qemu-aarch64-static is missing: install it (apt-get install qemu-user-static)"
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || fail "$tool is missing: this needs Debian"
done
unset PYTHONPATH PYTHONHOME # of this machine's Python
SECONDS=0
set_up_debian
write_python
set_up_packages
echo "build/arm is set up ($SECONDS s)"

export PYTHONPATH=$PWD:$arm/packages PYTHONPYCACHEPREFIX=$arm/bytecode NUMBA_CACHE_DIR=$arm/numba
export NUMBA_NUM_THREADS=2 OPENBLAS_NUM_THREADS=1
export NUMBA_ENABLE_CUDASIM=0 # no GPU and none simulated: neither is what is tested

# Under QEMU Numba sees this machine's /proc/cpuinfo: it has to be told which CPU it is on.
failed=0
trap 'exit 130' INT # pytest ends on Ctrl-C as on a failure: the second run must not begin
NUMBA_CPU_NAME=$CPU NUMBA_CPU_FEATURES=$FEATURES run_tests "$SELECTION" "$@" || failed=1
# Not told, it knows no more than "aarch64". Status 5: the caller's -k left no test.
unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES
run_tests "$SHORT" "$@" || (($? == 5)) || failed=1
exit "$failed"
