"""The repository of the stories: people, a policy, a workflow and a base branch."""

from collections.abc import Mapping

from tests.fakes.github_standin.repository import Edit
from tests.fakes.github_standin.world import World
from tests.fakes.places import ROOT

POLICY_FILE = ".github/verl-e2e.yml"
POLICY = """\
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: vllm024.dev2}
checkpoint: {model_id: Qwen/Qwen2.5-0.5B}
require_bridge_checks: false
exempt:
  - {name: documentation, paths: [docs/, "*.md", .github/], reason: nothing runs it}
rules:
  - {name: saved, paths: [src/saved/], levels: [0, 1], reason: verl saves with it}
  - {name: source, paths: [src/, "!src/saved/"], levels: [0], reason: verl runs it}
"""
WORKFLOW = (ROOT / ".github/workflows/verl-e2e.yml").read_bytes()
BASE_FILES: Mapping[str, Edit] = {
    "README.md": "# A bridge\n",
    "docs/guide.md": "how to\n",
    "src/bridge.py": "value = 1\n",
    "src/saved/checkpoint.py": "value = 1\n",
    POLICY_FILE: POLICY,
    ".github/workflows/verl-e2e.yml": WORKFLOW,
}


def furnish(world: World) -> None:
    """People and the base branch."""
    world.person("alice", "write")
    world.person("mona", "maintain")
    world.person("rita", "triage")
    world.person("carol")
    world.commit(BASE_FILES, "Start the bridge")
