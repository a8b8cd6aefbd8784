#!/bin/sh
# Install what the focused Bridge tests need and the job's Python does not have: install-bridge-checks.sh [PYTHON]
# verl's image has neither pytest nor NVIDIA's modelopt, which Bridge imports. The list is fixed here: nothing that the
# pull request's files name is installed. It installs wheels only, and changes no package that the image has.
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
print("\n".join(sorted({f"{dist.name}=={dist.version}" for dist in found() if dist.name and dist.version})))' >"$constraints"

install() {
    # The image belongs to this job: it has no other program that these packages could break.
    PIP_BREAK_SYSTEM_PACKAGES=1 "$python" -m pip --disable-pip-version-check --quiet install \
        --only-binary :all: --constraint "$constraints" "$@"
}

status=0
# shellcheck disable=SC2086
[ -z "$wanted" ] || install $wanted || status=1
# NVIDIA's own index, for a mirror that does not have it.
[ -z "$modelopt" ] || install "$modelopt" || install --extra-index-url https://pypi.nvidia.com "$modelopt" || status=1
exit $status
