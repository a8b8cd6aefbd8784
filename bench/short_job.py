"""The runner of `bench/load.py`: after a second it leaves the folder of a recorded run, renamed to be that of its job.

It is called as `verl-e2e run --job FILE --out FOLDER ...`. Nothing runs: what it stands for is the load of a job on the
service.
"""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.stories.recordings import SMOKE, adapted  # noqa: E402  (the checkout that this file lies in)
from verl_e2e.core.model.jobs import Job  # noqa: E402
from verl_e2e.core.model.record import Manifest  # noqa: E402
from verl_e2e.core.pulls.job_order import NONCE_FILE  # noqa: E402
from verl_e2e_runner.folder.recorder import seal, usable_key  # noqa: E402

JOB_S = 1.0


def main() -> None:
    """Leave the folder, sealed by the recorder's key of this host."""
    words = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=False))
    job_file, out = Path(words["--job"]), Path(words["--out"])
    began = _now()
    time.sleep(JOB_S)
    job = Job.model_validate_json(job_file.read_bytes())
    nonce_file = job_file.with_name(NONCE_FILE)
    nonce = nonce_file.read_text().strip() if nonce_file.exists() else ""
    for name, content in adapted(SMOKE, job, nonce).items():
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    manifest = Manifest(
        job=job.id,
        job_digest=job.digest(),
        began=began,
        ended=_now(),
        seconds=JOB_S,
        isolation="other_user",
        files=(),
    )
    seal(out, manifest, usable_key(os.environ, print))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    main()
