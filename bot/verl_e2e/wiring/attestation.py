"""How attestations are verified: by Sigstore's library, where it is installed."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from verl_e2e.core.pulls.attestation import Attested, UnprovenError


def verify_attestations(trusted_root: Path | None = None) -> Callable[[str], Attested] | None:
    """What an attestation says once it was verified; None where the extra `attestation` is not installed."""
    if find_spec("sigstore") is None:
        return None
    made: list[Callable[[str], Attested]] = []

    def verify(bundle: str) -> Attested:
        # Loaded with the first attestation: the library takes a second, and most events need it not at all.
        from verl_e2e.adapters.attestation import verifier  # noqa: PLC0415

        try:
            made[:] = made or [verifier(trusted_root)]
        except Exception as error:
            raise UnprovenError(f"the trust root cannot be read: {error}") from error
        return made[0](bundle)

    return verify
