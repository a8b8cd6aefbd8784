"""How attestations are verified: by Sigstore's library."""

from collections.abc import Callable
from pathlib import Path

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.attestation import Attested, UnprovenError


def verify_attestations(trusted_root: Path | None = None) -> Callable[[str], Attested]:
    """What an attestation says once it was verified."""
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


def check_verifier(trusted_root: Path | None) -> None:
    """UserError where no attestation could be verified by this installation, before a run is paid for one."""
    try:
        from verl_e2e.adapters.attestation import verifier  # noqa: PLC0415
    except ImportError as error:
        fix = "install verl-e2e with its dependencies, or set it to preferred"
        raise UserError(f"VERL_E2E_ATTESTATION=required needs {error.name}, which is not installed; {fix}") from error
    try:
        verifier(trusted_root)
    except Exception as error:
        place = trusted_root or "the library's own file"
        fix = "name a file with Sigstore's trust root, or leave it empty"
        raise UserError(f"VERL_E2E_TRUSTED_ROOT: {place} cannot be read: {_first_line(error)}; {fix}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
