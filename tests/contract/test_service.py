"""The service itself with Prism between it and the stand-in: no request or answer that GitHub does not describe."""

from pathlib import Path

import pytest

from tests.fakes.github_standin.world import living
from tests.fakes.prism import proxying
from tests.stories.conftest import Story
from tests.stories.furnished import POLICY_FILE, furnish
from tests.stories.service import running

pytestmark = pytest.mark.node


def test_prism_lets_a_whole_story_through(tmp_path: Path, node_folder: Path, description: str) -> None:
    with (
        living(tmp_path / "world") as world,
        proxying(node_folder, description, world.url, tmp_path / "prism.log") as proxy,
    ):
        furnish(world)
        # Prism takes no path with slashes where GitHub describes one word, so the policy is the packaged one.
        world.commit({POLICY_FILE: None, "src/megatron/bridge/__init__.py": ""})
        world.standin.shapes.base = proxy
        with running(world, tmp_path / "service", proxy) as service:
            story = Story(world, service)
            number = world.open_pull("alice", {"setup.py": "import setuptools\n"})
            service.settle()
            world.start_run()
            service.settle()
            story.say(
                "mona",
                f"/verl-e2e explain src/bridge.py\n/verl-e2e override level0 {story.world.head(1)} no machine is free",
            )
            story.say("rita", "/verl-e2e cancle")
            service.go_on()
            story.say("alice", "/verl-e2e cancel")
            service.go_on()
            service.tick()
            service.go_on()
            # What Prism refuses comes to the service as an error of GitHub's.
            assert service.failures == []
            assert [run.conclusion for run in world.runs()] == ["cancelled"]
            assert world.gate(number) == "success"
            asked = {item.route for item in world.standin.traffic}
    assert len(asked) >= 15, sorted(asked)
    assert b"VIOLATION" not in (tmp_path / "prism.log").read_bytes()
