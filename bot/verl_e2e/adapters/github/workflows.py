"""Workflow runs: started once for each key, found again by it, cancelled, and what they leave."""

import hashlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import quote, urljoin, urlsplit

import requests
from pydantic import AwareDatetime, Field

from verl_e2e.adapters.github.requester import (
    Answer,
    RefusedError,
    StatusError,
    Trouble,
    User,
    as_forge_error,
    holds_all_s,
    once,
    persist,
    read,
)
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.core.pulls.forge import Artifact, WorkflowJob, WorkflowRun, WorkflowStep
from verl_e2e.ports import ForgeError


class _DispatchAnswer(Answer):
    workflow_run_id: int
    html_url: str = ""


class _WorkflowRunAnswer(Answer):
    id: int
    status: str | None = None
    conclusion: str | None = None
    display_title: str = ""
    html_url: str = ""
    head_sha: str = ""
    head_branch: str | None = None
    actor: User | None = None
    run_attempt: int = 1
    created_at: AwareDatetime | None = None


class _WorkflowRunsAnswer(Answer):
    workflow_runs: tuple[_WorkflowRunAnswer, ...] = ()


class _WorkflowStepAnswer(Answer):
    name: str
    status: str
    conclusion: str | None = None


class _WorkflowJobAnswer(Answer):
    id: int
    name: str
    status: str
    conclusion: str | None = None
    runner_name: str | None = None
    labels: tuple[str, ...] = ()
    html_url: str | None = None
    started_at: AwareDatetime | None = None
    completed_at: AwareDatetime | None = None
    steps: tuple[_WorkflowStepAnswer, ...] | None = None


class _ArtifactAnswer(Answer):
    id: int
    name: str
    size_in_bytes: int
    expired: bool = False
    digest: str | None = None


class _AttestationAnswer(Answer):
    bundle: dict[str, Any] = Field(default_factory=dict)


class _AttestationsAnswer(Answer):
    attestations: tuple[_AttestationAnswer, ...] = ()


_CHUNK = 1 << 16
_MOST_FILES = 10_000
# Of the central directory, all entries together: 10,000 entries with the longest names that a run folder has.
_MOST_DIRECTORY_BYTES = 8 << 20


class _BoundedFile(io.FileIO):
    """A file of which no one reads much at once: `zipfile` reads the whole directory, as long as the archive says."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if wanted > _MOST_DIRECTORY_BYTES:
            raise ForgeError(f"The archive's directory is too long; the limit is {_MOST_FILES:,} files")
        return super().read(wanted) or b""


def unpack_archive(archive: Path, into: Path, *, limit: int) -> None:
    """Unpack a zip archive into the new folder `into`, whole or not at all; ForgeError for anything odd in it."""
    part = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    try:
        with _BoundedFile(archive) as file, zipfile.ZipFile(file) as packed:
            members = [member for member in packed.infolist() if not member.is_dir()]
            if len(members) > _MOST_FILES:
                raise ForgeError(f"The archive holds {len(members):,} files; the limit is {_MOST_FILES:,}")
            if len({member.filename.casefold() for member in members}) != len(members):
                raise ForgeError("The archive holds a file twice")
            if sum(member.file_size for member in members) > limit:
                raise ForgeError(f"The archive unpacks to more than {limit:,} bytes")
            left = limit
            for member in members:
                path, kind = safe_member(member.filename), stat.S_IFMT(member.external_attr >> 16)
                if path is None or kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
                    what = f"{member.filename!a}, which is not a regular file below its folder"
                    raise ForgeError(f"The archive holds {what}")
                target = part / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(member) as source, target.open("xb") as out:
                    while chunk := source.read(_CHUNK):
                        # What it says of its sizes is not believed.
                        left -= len(chunk)
                        if left < 0:
                            raise ForgeError("The archive unpacks to more bytes than it says")
                        out.write(chunk)
        part.rename(into)
    except (zipfile.BadZipFile, zlib.error, LZMAError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ForgeError(f"The archive cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def safe_member(name: str) -> PurePosixPath | None:
    """An archive member's name as a path below the target, None when it could lead out or is not a plain name."""
    path = PurePosixPath(name)
    odd = not path.parts or "\\" in name or "\0" in name or not name.isprintable() or ":" in path.parts[0]
    return None if odd or path.is_absolute() or ".." in path.parts else path


_MOST_REDIRECTS = 3
_AGAIN = frozenset({Trouble.LIMITED, Trouble.UNCERTAIN})


def download(github: GitHub, repository: str, path: str, file: Path, *, limit: int) -> None:
    """Write what lies at a path of the API into a file; ForgeError when it is longer than `limit` bytes."""

    def attempt() -> None:
        with file.open("wb") as out:
            for chunk in _chunks(github, repository, path, limit):
                out.write(chunk)

    try:
        persist(attempt, again=_AGAIN, retry_policy=github.retry_policy)
    except (StatusError, requests.RequestException) as error:
        raise as_forge_error(error, f"GET {path}") from error


def _chunks(github: GitHub, repository: str, path: str, limit: int) -> Iterator[bytes]:
    with closing(_opened(github, repository, path)) as response:
        left = limit
        for chunk in response.iter_content(_CHUNK):
            if len(chunk) > left:
                raise ForgeError(f"{path} is longer than {limit:,} bytes")
            left -= len(chunk)
            yield chunk


def _opened(github: GitHub, repository: str, path: str) -> requests.Response:
    """The answer at the end of the redirects; our token goes to the API alone."""
    requester = github.requester(repository)
    requester.pace.wait_while_held(github.retry_policy.total_s)
    url, headers = f"{github.api_url}{path}", requester.authorization()
    for _ in range(_MOST_REDIRECTS + 1):
        try:
            response = requester.exchange("GET", url, headers, stream=True)
        except StatusError as error:
            requester.pace.hold(holds_all_s(error))
            raise
        if response.status_code == 200:
            return response
        response.close()
        url = urljoin(url, response.headers.get("location", ""))
        if urlsplit(url).scheme not in ("https", urlsplit(github.api_url).scheme):
            raise ForgeError(f"GitHub sends {path} to an address that is not secure")
        # The address itself is the right to what lies there, and storage refuses a second one.
        headers = {}
    raise StatusError(response.status_code, response.headers, f"status {response.status_code}")


# A run that was just started may not be listed yet.
_LOOKS = 4
# More than any artifact of ours has; others may add theirs to it.
_MOST_ATTESTATIONS = 30
_NO_SUCH_FIELD = (400, 422)
# What GitHub calls an App that acts: ours, or GitHub Actions itself.
_BOT = "Bot"


class Unpacking(Protocol):
    """Unpacks an archive into the new folder `into`, at most `limit` bytes; ForgeError."""

    def __call__(self, archive: Path, into: Path, *, limit: int) -> None:
        """Unpack it whole or not at all."""


class GithubWorkflows:
    """Workflow runs of a repository; `unpacking` is how artifacts are unpacked. Errors are ForgeError."""

    def __init__(self, github: GitHub, unpacking: Unpacking = unpack_archive) -> None:
        self._github = github
        self._unpack = unpacking

    def dispatch(
        self, repository: str, workflow: str, revision: str, inputs: Mapping[str, str], key: str
    ) -> WorkflowRun:
        """Start a workflow file at a branch or tag and give its run. Its run name must show `key`, which finds it."""
        requester, path = self._github.requester(repository), f"{_workflow(repository, workflow)}/dispatches"
        body: dict[str, Any] = {"ref": revision, "inputs": dict(inputs)}
        retry_policy = self._github.retry_policy

        def start() -> WorkflowRun:
            try:
                data = requester.ask("POST", path, body=body | {"return_run_details": True})
            except RefusedError as error:
                if error.status not in _NO_SUCH_FIELD or "return_run_details" not in str(error):
                    raise
                data = requester.ask("POST", path, body=body)
            if data:
                started = read(_DispatchAnswer, data, path)
                return WorkflowRun(id=started.workflow_run_id, status="queued", url=started.html_url)
            # A server that does not say which run it started.
            for number in range(_LOOKS):
                if number:
                    retry_policy.sleep(2 * retry_policy.first_wait_s)
                if (found := find()) is not None:
                    return found
            raise ForgeError(f"{workflow} was started, but no run of it shows {key} yet", passing=True)

        def find() -> WorkflowRun | None:
            return self.find(repository, workflow, key, revision)

        return once(start, find, retry_policy=retry_policy)

    def find(self, repository: str, workflow: str, key: str, revision: str) -> WorkflowRun | None:
        """The newest run of a workflow at `revision` whose name shows `key` and that no person started."""
        return next(reversed(self.found(repository, workflow, key, revision)), None)

    def found(self, repository: str, workflow: str, key: str, revision: str) -> tuple[WorkflowRun, ...]:
        """All such runs, oldest first.

        Anyone with write access can dispatch a changed copy of the workflow under any name. So a run of another branch
        or of a person never counts as ours.
        """
        path = f"{_workflow(repository, workflow)}/runs"
        parameters = {"event": "workflow_dispatch", "per_page": 100}
        listed = self._github.requester(repository).read(_WorkflowRunsAnswer, path, parameters=parameters).workflow_runs
        ours = (found for found in listed if found.head_branch == revision and found.actor and found.actor.type == _BOT)
        runs = (_as_run(found) for found in ours if key in found.display_title)
        return tuple(sorted(runs, key=lambda run: run.id))

    def run(self, repository: str, run_id: int) -> WorkflowRun | None:
        """A run as it is now, None when it is gone."""
        found = self._github.requester(repository).find(_WorkflowRunAnswer, _run(repository, run_id))
        return _as_run(found) if found else None

    def jobs(self, repository: str, run_id: int) -> tuple[WorkflowJob, ...]:
        """The jobs of the run's latest attempt."""
        path = f"{_run(repository, run_id)}/jobs"
        found = self._github.requester(repository).read_all(_WorkflowJobAnswer, path, "jobs", filter="latest")
        return tuple(
            WorkflowJob(
                id=answer.id,
                name=answer.name,
                status=answer.status,
                conclusion=answer.conclusion or "",
                runner=answer.runner_name or "",
                labels=answer.labels,
                url=answer.html_url or "",
                started=answer.started_at,
                ended=answer.completed_at,
                steps=tuple(WorkflowStep(step.name, step.status, step.conclusion or "") for step in answer.steps or ()),
            )
            for answer in found
        )

    def cancel(self, repository: str, run_id: int, *, force: bool = False) -> None:
        """Ask a run to end; `force` also passes over steps that always run. One that has ended is left alone."""
        verb = "force-cancel" if force else "cancel"
        try:
            self._github.requester(repository).act("POST", f"{_run(repository, run_id)}/{verb}")
        except RefusedError as error:
            # 409: it has ended, or GitHub cannot end it now; the next `run` shows which.
            if error.status != 409:
                raise

    def artifacts(self, repository: str, run_id: int) -> tuple[Artifact, ...]:
        """What a run left behind."""
        path = f"{_run(repository, run_id)}/artifacts"
        artifacts = []
        for found in self._github.requester(repository).read_all(_ArtifactAnswer, path, "artifacts"):
            digest = re.fullmatch("sha256:([0-9a-f]{64})", found.digest or "")
            sha256 = digest[1] if digest else ""
            artifacts.append(Artifact(found.id, found.name, found.size_in_bytes, found.expired, sha256))
        return tuple(artifacts)

    def attestations(self, repository: str, sha256: str) -> tuple[str, ...]:
        """The attestations of a digest that GitHub keeps, as Sigstore bundles of JSON that no one verified."""
        path = f"/repos/{repository}/attestations/sha256:{sha256}"
        parameters = {"per_page": _MOST_ATTESTATIONS, "predicate_type": "provenance"}
        found = self._github.requester(repository).find(_AttestationsAnswer, path, parameters=parameters)
        return tuple(json.dumps(attestation.bundle) for attestation in found.attestations) if found else ()

    def fetch(self, repository: str, artifact: Artifact, into: Path, *, limit: int) -> None:
        """Unpack an artifact into the new folder `into`, at most `limit` bytes, whole or not at all."""
        path = f"/repos/{repository}/actions/artifacts/{artifact.id}/zip"
        into.parent.mkdir(parents=True, exist_ok=True)
        archive = into.with_name(f".{into.name}.zip")
        try:
            download(self._github, repository, path, archive, limit=limit)
            with archive.open("rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
            if artifact.sha256 and found != artifact.sha256:
                what = f"has the digest {found}, not {artifact.sha256} as GitHub gave it"
                raise ForgeError(f"The artifact {artifact.name!r} {what}")
            self._unpack(archive, into, limit=limit)
        finally:
            archive.unlink(missing_ok=True)


def _workflow(repository: str, workflow: str) -> str:
    return f"/repos/{repository}/actions/workflows/{quote(workflow, safe='')}"


def _run(repository: str, run_id: int) -> str:
    return f"/repos/{repository}/actions/runs/{run_id}"


def _as_run(answer: _WorkflowRunAnswer) -> WorkflowRun:
    return WorkflowRun(
        id=answer.id,
        status=answer.status or "",
        conclusion=answer.conclusion or "",
        title=answer.display_title,
        url=answer.html_url,
        head_sha=answer.head_sha,
        attempt=answer.run_attempt,
        created=answer.created_at,
    )
