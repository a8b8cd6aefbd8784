"""A job document: what no shell, file system or process can take is refused at the door."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from tests.core.builders import make_job
from verl_e2e.core.model.jobs import ChosenTest, Job, WhyChosen


@pytest.mark.parametrize("name", ["", "A B", "A=B", "1A", "A-B", "a\nb"])
@pytest.mark.parametrize("place", [("wrapper",), ("process",), ("site", "wrapper"), ("site", "process")])
def test_a_variable_has_a_name_that_a_shell_can_set(place: tuple[str, ...], name: str) -> None:
    document = json.loads(make_job().model_dump_json())
    target = document
    for key in place:
        target = target[key]
    target[name] = "x"
    with pytest.raises(ValidationError, match="should match pattern"):
        Job.model_validate(document)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job: job.update(script="a\0b"),
        lambda job: job.update(overrides=["a=\0"]),
        lambda job: job["process"].update(A="\0"),
        lambda job: job["bridge"].update(path="/\0"),
        lambda job: job["data"].update(train_files="\0"),
    ],
)
def test_no_text_holds_a_nul(spoil: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(make_job().model_dump_json())
    assert Job.model_validate(document) == make_job()
    spoil(document)
    with pytest.raises(ValidationError, match="NUL"):
        Job.model_validate(document)


def test_a_job_is_read_as_it_is_written_and_its_digest_leaves_out_what_follows() -> None:
    chosen = ChosenTest(test="tests/a.py", why=WhyChosen.IMPORTS, reason="it imports x")
    job = make_job().model_copy(update={"chosen_tests": (chosen,)})
    written = json.loads(job.model_dump_json())
    assert Job.model_validate(written) == job
    own = {key: value for key, value in written.items() if key not in ("needs", "origins")}
    assert job.digest() == hashlib.sha256(_canonical(own)).hexdigest()


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_kernel_caches_are_in_the_digest() -> None:
    job = make_job()
    cached = job.model_copy(update={"site": job.site.model_copy(update={"kernel_caches": "/srv/kernels"})})
    assert Job.model_validate_json(cached.model_dump_json()) == cached
    assert cached.digest() != job.digest()
