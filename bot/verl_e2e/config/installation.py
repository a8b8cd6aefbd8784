"""What a repository and a service need of verl-e2e, as the texts of files, from a few answers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from pydantic import BaseModel, Field

from verl_e2e.config import settings_values as read
from verl_e2e.config.policy import POLICY_PATH, load_policy, packaged_policy, shipped, workflow_text
from verl_e2e.config.validation import YamlDocument, validate
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Image
from verl_e2e.core.text.escape import with_addresses

WORKFLOWS = ".github/workflows"
# What runs a job, on the branch of its own too.
JOB_WORKFLOW = f"{WORKFLOWS}/verl-e2e.yml"
_ACTION = ("verl-e2e-plan", "verl-e2e-comment", "verl-e2e", "verl-e2e-report")
_GATE = "verl-e2e-gate"
_PIN = re.compile(r"OWNER/verl-e2e((?:/\S+)?)@0{40} # vX\.Y\.Z")
# Steps that order jobs take what jobs run on.
_ORDERS = re.compile(r"(?m)^( +)command: (?:event|sweep)$")
_IMAGE = re.compile(r"(?P<name>[^@\s]+):(?P<tag>\w[\w.-]{0,127})(?:@(?P<digest>sha256:[0-9a-f]{64}))?", re.ASCII)


class _Answers(BaseModel):
    tool: read.ToolOrTag = Field(alias="--tool")
    runners: read.Runners = Field(alias="--runners")


class _Address(BaseModel):
    address: read.Url = Field(alias="--address")


@dataclass(frozen=True, slots=True)
class InitAnswers:
    """What someone answered; the texts of files follow from it."""

    # The repository that holds verl-e2e, `owner/name`.
    tool: str
    # Its full commit, or the tag of a release where the commit could not be read.
    commit: str
    # The release that the commit belongs to, for people; may be empty.
    release: str
    # Labels by number of GPUs as VERL_E2E_RUNNERS has them; empty for the usual ones.
    runners: str
    # The container image of jobs.
    image: Image
    # Whether the repository has a merge queue.
    queue: bool = False

    def action_files(self) -> dict[str, str]:
        """What Action mode needs in the repository: workflows and policy, by path."""
        names = (*_ACTION, *((_GATE,) if self.queue else ()))
        workflows = {f"{WORKFLOWS}/{name}.yml": self._workflow(name) for name in names}
        return {**workflows, POLICY_PATH: self.policy()}

    def app_files(self) -> dict[str, str]:
        """What the App needs in the repository: the workflow that runs a job, and the policy, by path."""
        return {JOB_WORKFLOW: workflow_text().decode(), POLICY_PATH: self.policy()}

    def _workflow(self, name: str) -> str:
        text = shipped(f"workflows/action/{name}.yml", f"docs/workflows/{name}.yml").decode()
        release = f" # {self.release}" if self.release and self.release != self.commit else ""
        text = _PIN.sub(lambda found: f"{self.tool}{found[1]}@{self.commit}{release}", text)
        # The site's image would otherwise win over one that the policy names without a digest.
        given = {"runners": self.runners, "image": str(self.image) if self._has_own_image else ""}
        lines = [f"{name}: {json.dumps(value)}" for name, value in given.items() if value]
        return _ORDERS.sub(lambda found: "\n".join([found[0], *(f"{found[1]}{line}" for line in lines)]), text)

    @property
    def _has_own_image(self) -> bool:
        return self.image != packaged_policy().image

    def policy(self) -> str:
        """The policy file: what differs from the packaged one."""
        text = with_addresses("# What differs from the packaged policy; docs/policy.md has every key.\n")
        text += "schema: 1\nextends: default\n"
        if self._has_own_image:
            text += "image:\n" + "".join(f"  {key}: {json.dumps(value)}\n" for key, value in dict(self.image).items())
        load_policy(text, POLICY_PATH)
        return text

    def site_profile(self, name: str) -> str:
        """A site profile for the hosts of the App's jobs: the packaged one with the image."""
        text = files("verl_e2e").joinpath("profiles/default.yml").read_text(encoding="utf-8")
        text = re.sub(r"(?m)^name: .*$", f"name: {json.dumps(name)}", text)
        return re.sub(r"(?m)^image: .*$", f"image: {json.dumps(str(self.image))}", text)

    def service_settings(self, app: Mapping[str, str], repository: str, address: str, site: str) -> str:
        """The settings of the App's service, for a shell, a service manager and a compose file; with its secrets."""
        settings = {
            **app,
            "VERL_E2E_PUBLIC_URL": address,
            "VERL_E2E_TOOL": f"{self.tool}@{self.commit}",
            "VERL_E2E_REPOSITORIES": repository,
            "VERL_E2E_RUNNERS": self.runners,
            "VERL_E2E_SITE_PROFILE": site,
        }
        # In single quotes every reader takes a text as it stands, so a key is one line.
        lines = {name: value.strip().replace("\n", "\\n") for name, value in settings.items() if value}
        if quoted := [name for name, value in lines.items() if "'" in value]:
            raise UserError(f"{quoted[0]} holds a single quote, which a file of settings cannot; give another value")
        return "".join(f"{name}='{value}'\n" for name, value in lines.items())


def app_manifest(address: str, redirect: str) -> str:
    """What GitHub makes the App from; `address` is where it reaches the service, `redirect` where it sends the code."""
    manifest = json.loads(shipped("workflows/app-manifest.json", "docs/app-manifest.json"))
    own = {"url": address, "redirect_url": redirect, "hook_attributes": {"url": f"{address}/webhook", "active": True}}
    own["callback_urls"] = [f"{address}/login/callback"]
    return json.dumps({**manifest, **own})


def service_address(text: str) -> str:
    """The address of a service without a slash at its end; ConfigError."""
    return validate(YamlDocument("init", {"--address": text}, {}), _Address).address


def read_answers(tool: str, runners: str) -> tuple[str, str]:
    """The repository of verl-e2e and its commit or tag; ConfigError names an option that is wrong."""
    return validate(YamlDocument("init", {"--tool": tool, "--runners": runners}, {}), _Answers).tool


def read_image(text: str) -> Image:
    """The image that a text names; UserError."""
    found = _IMAGE.fullmatch(text.strip())
    if found is None or "/" in found["tag"]:
        raise UserError(f"--image {text!r} names no image with a tag; write NAME:TAG or NAME:TAG@sha256:DIGEST")
    return Image(name=found["name"], tag=found["tag"], digest=found["digest"] or "")
