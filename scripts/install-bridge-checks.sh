#!/bin/sh
# Install what the focused Bridge tests need into a job's Python, where it has none: install-bridge-checks.sh [PYTHON]
# verl's image has neither pytest nor NVIDIA's modelopt, which Bridge imports. The list is ours: what the pull request's
# own files name is never installed. Wheels only, and nothing that the image has is changed.
set -eu
python=${1:-python3}

wanted=
for pair in pytest:'pytest>=8.3.5' pytest_mock:'pytest-mock>=3.14' pytest_timeout:'pytest-timeout>=2.4'; do
    "$python" -c "import ${pair%%:*}" >/dev/null 2>&1 || wanted="$wanted ${pair#*:}"
done
modelopt=
"$python" -c 'import importlib.util as util, sys; sys.exit(util.find_spec("modelopt") is None)' || modelopt=nvidia-modelopt

# What is installed stays at its version; a package without one, such as a checkout, cannot be named.
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
"$python" -c 'from importlib.metadata import distributions as found
print("\n".join(sorted({f"{one.name}=={one.version}" for one in found() if one.name and one.version})))' >"$constraints"

install() {
    # The image is the job's own: there is no other program in it that its packages could break.
    PIP_BREAK_SYSTEM_PACKAGES=1 "$python" -m pip --disable-pip-version-check --quiet install \
        --only-binary :all: --constraint "$constraints" "$@"
}

status=0
# shellcheck disable=SC2086
[ -z "$wanted" ] || install $wanted || status=1
# NVIDIA's own index, for a mirror that does not have it.
[ -z "$modelopt" ] || install "$modelopt" || install --extra-index-url https://pypi.nvidia.com "$modelopt" || status=1
exit $status
