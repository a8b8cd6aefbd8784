"""Attestations are verified by Sigstore's own library: whatever was changed or signed elsewhere proves nothing."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.sigstore_instance import SigstoreInstance
from verl_e2e.adapters.attestation import verifier
from verl_e2e.core.pulls.forge import UnprovenError

CLAIMS = {
    "issuer": "https://token.actions.githubusercontent.com",
    "signer": f"https://github.com/o/r/.github/workflows/{'long-' * 20}.yml@refs/heads/main",
    "runner": "github-hosted",
    "repository": "https://github.com/o/r",
    "commit": "b" * 40,
    "workflow": "https://github.com/o/r/.github/workflows/verl-e2e.yml@refs/heads/main",
    "run": "https://github.com/o/r/actions/runs/7/attempts/1",
}


@pytest.fixture(scope="module")
def sigstore() -> SigstoreInstance:
    return SigstoreInstance()


@pytest.fixture(scope="module")
def root(sigstore: SigstoreInstance, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sigstore.write_trusted_root(tmp_path_factory.mktemp("root") / "trusted_root.json")


def test_what_the_certificate_and_the_statement_say(sigstore: SigstoreInstance, root: Path) -> None:
    text = verifier(root)(sigstore.attest("a" * 64, CLAIMS))
    assert text.digests == {"a" * 64}
    assert text.predicate == "https://slsa.dev/provenance/v1"
    assert {name: getattr(text, name) for name in CLAIMS} == CLAIMS


def test_a_claim_that_is_not_made_is_empty(sigstore: SigstoreInstance, root: Path) -> None:
    text = verifier(root)(sigstore.attest("a" * 64, {"issuer": CLAIMS["issuer"]}))
    assert (text.issuer, text.runner, text.run) == (CLAIMS["issuer"], "", "")


def _changed(bundle: dict[str, Any], place: tuple[str | int, ...], value: object) -> str:
    part: Any = bundle
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return json.dumps(bundle)


MATERIAL = "verificationMaterial"
FOREIGN = base64.b64encode(b'{"subject": [], "predicateType": ""}').decode()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("dsseEnvelope", "payload"), FOREIGN),
        (("dsseEnvelope", "payloadType"), "text/plain"),
        (("dsseEnvelope", "signatures", 0, "sig"), base64.b64encode(b"0").decode()),
        (("dsseEnvelope", "signatures"), []),
        ((MATERIAL, "tlogEntries"), []),
        ((MATERIAL, "tlogEntries", 0, "integratedTime"), "1"),
        ((MATERIAL, "tlogEntries", 0, "canonicalizedBody"), FOREIGN),
        ((MATERIAL, "tlogEntries", 0, "inclusionProof", "rootHash"), base64.b64encode(b"0" * 32).decode()),
        ((MATERIAL, "certificate", "rawBytes"), base64.b64encode(b"0").decode()),
        (("mediaType",), "text/plain"),
        ((MATERIAL,), {}),
    ],
)
def test_a_bundle_that_was_changed_proves_nothing(
    sigstore: SigstoreInstance, root: Path, place: tuple[str | int, ...], value: object
) -> None:
    bundle = json.loads(sigstore.attest("a" * 64, CLAIMS))
    with pytest.raises(UnprovenError) as refused:
        verifier(root)(_changed(bundle, place, value))
    assert "\n" not in str(refused.value)


def test_a_certificate_of_another_bundle_proves_nothing(sigstore: SigstoreInstance, root: Path) -> None:
    bundle, other = (json.loads(sigstore.attest("a" * 64, CLAIMS)) for _ in range(2))
    with pytest.raises(UnprovenError):
        verifier(root)(_changed(bundle, (MATERIAL, "certificate"), other[MATERIAL]["certificate"]))


def test_another_sigstore_proves_nothing(sigstore: SigstoreInstance, root: Path) -> None:
    with pytest.raises(UnprovenError):
        verifier(root)(SigstoreInstance().attest("a" * 64, CLAIMS))
    with pytest.raises(UnprovenError):
        verifier()(sigstore.attest("a" * 64, CLAIMS))


@pytest.mark.parametrize("text", ["", "{}", "[", "null", "[]", '"x"', "{" * 100_000])
def test_what_is_no_bundle_proves_nothing(root: Path, text: str) -> None:
    with pytest.raises(UnprovenError):
        verifier(root)(text)
