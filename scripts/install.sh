#!/bin/sh
# Install hash-locked requirements: install.sh PYTHON REQUIREMENTS [PIP-OPTION...]. Quiet when all goes well.
# When pip cannot reach its index, it says that it found no distribution. This script prints the real reason instead.
set -eu
python=$1
requirements=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The lock is whole, so nothing is left to resolve; a pip before 23.3 would take the newest release of what is asked for
# with an extra (coverage[toml]), whatever the lock says, and refuse it for want of a digest.
if "$python" -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes "$@" -r "$requirements" >"$log" 2>&1; then
    exit 0
fi
# pip's own sentence, `after connection broken by 'KIND(... [Errno 111] Connection refused ...)': /simple/NAME/`.
broken=$(sed -n "s/.*connection broken by '\(.*\)': .*/\1/p; s/.*\(problem confirming the ssl certificate.*\)/\1/p" "$log" | head -n 1)
if [ -z "$broken" ] || ! grep -q 'No matching distribution' "$log"; then
    cat "$log" >&2
    exit 1
fi
reason=$(echo "$broken" | sed -n "s/.*\[Errno [-0-9]*\] \([A-Za-z ]*\).*/\1/p")
echo "pip cannot reach the package index: ${reason:-$broken}" >&2
echo "Check the network and the proxy, or name an index that this machine can reach (PIP_INDEX_URL=ADDRESS, or" \
    "pip's configuration), and run the command again." >&2
exit 1
