#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fresh_root.sh - do the two commands of the README work where nothing was installed by hand?
#
# usage: tools/fresh_root.sh [DIRECTORY [COMMAND...]]      needs root, debootstrap and unshare
#
# Makes a minimal Debian of this machine's release with git and nothing else in DIRECTORY (default: a
# temporary one, removed afterwards), from the mirror that this machine uses, copies a clean clone
# of HEAD into it and runs `./make test` and `./make train` (or COMMAND) there. Everything is mounted
# in a namespace of its own, so nothing is left mounted however it ends. A root that is there already
# is used again, which is quicker and proves less.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/..")

fail() {
    echo "fresh_root: $*" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || fail "expected root"
command -v debootstrap >/dev/null || fail "expected debootstrap; apt-get install debootstrap"

if [ $# -gt 0 ]; then
    root=$(realpath -m "$1")
    shift
else
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
fi
[ $# -gt 0 ] || set -- sh -c './make test && ./make train'
[[ $root/ != "$repository"/* ]] || fail "expected a directory outside the repository, given $root"

# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016 # apt's own placeholders
mirror=$(apt-get indextargets --format '$(SITE)' "Codename: $release" 'Created-By: Packages' | head -n 1)

make_root() {
    echo "== debootstrap $release into $root"
    debootstrap --variant=minbase --include=git "$release" "$root" "$mirror" >"$root.log" 2>&1 ||
        { tail -n 20 "$root.log" >&2; fail "debootstrap failed, see $root.log"; }
    rm -f "$root.log"
    # Sources, their keys, and how this machine reaches them.
    rm -f "$root/etc/apt/sources.list"
    cp -r /etc/apt/sources.list* "$root/etc/apt/"
    cp -r /usr/share/keyrings/. "$root/usr/share/keyrings/"
    apt-config dump --no-empty | grep -E '^Acquire::(http|https|Check)' \
        >"$root/etc/apt/apt.conf.d/99machine" || true
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    # pip's index and certificates likewise, for make python and make python-test.
    for file in /etc/pip.conf /etc/xdg/pip /etc/ssl/certs/ca-certificates.crt; do
        [ ! -e "$file" ] || cp -rL --parents "$file" "$root"
    done
}
mkdir -p "$root"
[ -d "$root/etc/apt" ] || make_root

rm -rf "$root/root/hyperparallel"
git clone -q --no-hardlinks "$repository" "$root/root/hyperparallel"
git -C "$root/root/hyperparallel" remote remove origin

echo "== in $root: $*"
# shellcheck disable=SC2016 # expanded by the shell inside the namespace
run_inside='
set -e
root=$1
shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" \
    ${JOBS:+JOBS="$JOBS"} ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    ${PIP_CERT:+PIP_CERT="$PIP_CERT"} ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
    chroot "$root" sh -c "cd /root/hyperparallel && exec \"\$@\"" inside "$@"
'
unshare --mount --propagation private --pid --fork --kill-child \
    bash -c "$run_inside" inside "$root" "$@"
