#!/bin/sh
# Install what a job needs before verl-e2e can start, and its image does not have: set-up-image.sh
# It asks the image's own package manager, and changes nothing that is there. Exit code 1: a job cannot run in this image.
set -eu
usable='import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))'

have_python() {
    for python in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
        "$python" -c "$usable" >/dev/null 2>&1 && return
    done
    return 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# git checks the commits out, bubblewrap and setpriv isolate code under test, the certificates serve git and pip.
wanted=
have git || wanted="$wanted git ca-certificates"
have bwrap || wanted="$wanted bubblewrap"
have setpriv || wanted="$wanted util-linux"
if ! have_python; then
    if have apt-get; then wanted="$wanted python3-venv"; else wanted="$wanted python3.12"; fi
fi

# shellcheck disable=SC2086
if [ -n "$wanted" ]; then
    echo "the image does not have:$wanted" >&2
    if have apt-get; then
        DEBIAN_FRONTEND=noninteractive
        export DEBIAN_FRONTEND
        apt-get update -qq && apt-get install --yes --no-install-recommends -qq $wanted || true
    elif have dnf; then
        dnf install --assumeyes --quiet $wanted || true
    fi
fi

if ! have git; then
    echo "there is no git, and it could not be installed: add it to the image" >&2
    exit 1
fi
if ! have_python; then
    echo "there is no Python 3.11 or later that can make environments: add one to the image (python3-venv on Debian)" >&2
    exit 1
fi
have bwrap || echo "there is no bubblewrap: code under test is not isolated, and the policy decides about that" >&2
