"""Action mode's step by its environment: what each mistake in it reports."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.places import ROOT
from verl_e2e.action import act
from verl_e2e.config.action_settings import ActionSettings, CheckDigestSettings, OrderSettings, load_step
from verl_e2e.config.environment import variables
from verl_e2e.core.model.errors import UserError


def environment(folder: Path, **changed: str) -> dict[str, str]:
    file = folder / "event.json"
    if not file.exists():
        file.write_text("{}")
    return {
        "GITHUB_EVENT_PATH": str(file),
        "GITHUB_EVENT_NAME": "schedule",
        "GITHUB_REPOSITORY": "octo/bridge",
        "GITHUB_RUN_ID": "1",
        "RUNNER_TEMP": str(folder),
        "VERL_E2E_TOKEN": "ghs_of-a-workflow",
        "VERL_E2E_TOOL": f"octo/verl-e2e@{'c' * 40}",
        **changed,
    }


@pytest.mark.parametrize("payload", [{"repository": None}, {"repository": "x"}, {"repository": []}, [], None, "x"])
def test_a_payload_that_github_would_not_send_is_one_sentence(tmp_path: Path, payload: Any) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(payload))
    environ = environment(tmp_path, GITHUB_EVENT_NAME="push")
    with pytest.raises(UserError, match="GITHUB_EVENT_PATH"):
        act("event", environ, print)
    environ["GITHUB_EVENT_NAME"] = "schedule"
    assert act("event", environ, print) == 0


MISTAKES = (
    (
        {"GITHUB_EVENT_PATH": "/no/such.json"},
        "GITHUB_EVENT_PATH: '/no/such.json' is not an event that can be read; run",
    ),
    ({"VERL_E2E_TOKEN": ""}, "VERL_E2E_TOKEN: it is empty; run this as a step of a workflow"),
    ({"RUNNER_TEMP": ""}, "RUNNER_TEMP: it is empty; run this as a step of a workflow"),
    ({"VERL_E2E_TOOL": "@"}, "VERL_E2E_TOOL: '@' is not a commit of a repository; write owner/name@SHA"),
    ({"VERL_E2E_RUNNERS": "8:gpu"}, "VERL_E2E_RUNNERS: '8:gpu' does not have the form GPUS=LABEL,LABEL"),
    (
        {"VERL_E2E_SITE_VALUES": "kit"},
        "VERL_E2E_SITE_VALUES: 'kit' does not have the form name=value; write for example kit=/opt/kit",
    ),
    ({"VERL_E2E_PATIENCE_S": "1m"}, "VERL_E2E_PATIENCE_S: '1m' is not a whole number from 0 to 600"),
    (
        {"VERL_E2E_ATESTATION": "x"},
        "VERL_E2E_ATESTATION: there is no such variable; did you mean",
    ),
)


@pytest.mark.parametrize(("changed", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_names_the_variable_and_the_fix(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError) as refused:
        act("event", environment(tmp_path, **changed), print)
    assert str(refused.value).startswith(f"environment: {message}")
    assert "\n" not in str(refused.value)
    assert "ghs_" not in str(refused.value)


def test_the_branch_is_the_one_named_else_the_events_else_main(tmp_path: Path) -> None:
    found = []
    for payload, named in (({}, ""), ({"repository": {"default_branch": "trunk"}}, ""), ({}, "jobs")):
        (tmp_path / "event.json").write_text(json.dumps(payload))
        found.append(load_step(ActionSettings, environment(tmp_path, VERL_E2E_WORKFLOW_REF=named)).branch)
    assert found == ["main", "trunk", "jobs"]


def test_the_head_that_a_push_replaced_is_known_from_its_event(tmp_path: Path) -> None:
    pushed = {"action": "synchronize", "before": "a" * 40, "after": "b" * 40}
    (tmp_path / "event.json").write_text(json.dumps(pushed))
    assert load_step(ActionSettings, environment(tmp_path)).before == {"b" * 40: "a" * 40}
    (tmp_path / "event.json").write_text(json.dumps(pushed | {"action": "opened"}))
    assert load_step(ActionSettings, environment(tmp_path)).before == {}


def test_what_the_action_sets_is_read() -> None:
    set_there = set(re.findall(r"(?m)^ +(VERL_E2E_\w+): \${{", (ROOT / "action.yml").read_text()))
    steps = (ActionSettings, OrderSettings, CheckDigestSettings)
    assert set_there
    assert set_there <= {name for model in steps for name in variables(model)}
