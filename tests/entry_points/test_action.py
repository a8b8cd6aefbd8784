"""Action mode's step by its environment: what a file that is no event does."""

import json
from pathlib import Path
from typing import Any

import pytest

from verl_e2e.action import act
from verl_e2e.core.model.errors import UserError


@pytest.mark.parametrize("payload", [{"repository": None}, {"repository": "x"}, {"repository": []}, [], None, "x"])
def test_a_payload_that_github_would_not_send_is_one_sentence(tmp_path: Path, payload: Any) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(payload))
    environ = {
        "GITHUB_EVENT_PATH": str(file),
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_REPOSITORY": "octo/bridge",
        "GITHUB_RUN_ID": "1",
        "RUNNER_TEMP": str(tmp_path),
        "VERL_E2E_TOKEN": "ghs_of-a-workflow",
        "VERL_E2E_TOOL": f"octo/verl-e2e@{'c' * 40}",
    }
    with pytest.raises(UserError, match="GITHUB_EVENT_PATH"):
        act("event", environ, print)
    environ["GITHUB_EVENT_NAME"] = "schedule"
    assert act("event", environ, print) == 0
