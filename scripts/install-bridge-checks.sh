#!/bin/sh
# Install what the focused Bridge tests need and the job's Python does not have: install-bridge-checks.sh [PYTHON]
# verl's image has neither pytest nor NVIDIA's modelopt, which Bridge imports. Versions and digests are those of
# requirements/bridge-checks.txt: nothing that the pull request's files name is installed, and what is not that very file
# is refused. A package that the image has stays as it is, whatever its version.
set -eu
python=${1:-python3}
root=$(dirname "$0")/..
missing=$(mktemp)
trap 'rm -f "$missing"' EXIT

"$python" - "$root/requirements/bridge-checks.txt" >"$missing" <<'END'
import re, sys
from importlib.metadata import distributions

def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()

there = {normalized(found.metadata["Name"] or "") for found in distributions()}
for entry in re.findall(r"^\S.*(?:\n\s+.*)*", open(sys.argv[1]).read(), re.MULTILINE):
    if normalized(re.match(r"[\w.-]+", entry)[0]) not in there:
        print(entry)
END

# The image belongs to this job: it has no other program that these packages could break.
[ ! -s "$missing" ] || PIP_BREAK_SYSTEM_PACKAGES=1 "$root/scripts/install.sh" "$python" "$missing" --only-binary :all:
