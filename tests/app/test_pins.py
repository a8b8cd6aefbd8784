"""`doctor` and the pins of trainers: each is looked for where the hosts of jobs fetch it."""

from datetime import UTC, datetime
from typing import cast

import pytest

from verl_e2e.app.doctor import DoctorServices, Setup, examine, pinned
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.plan.policy import ConsumerRules
from verl_e2e.core.pulls.checkup import Health, SetupFinding
from verl_e2e.core.pulls.forge import Installation
from verl_e2e.ports import Administration, ForgeError

OWN, OTHER = "a" * 40, "b" * 40
SKYRLS = "https://github.com/NovaSky-AI/SkyRL"


def found(consumer: str, there: dict[str, str], pin: str | None = None, own_verl: str = "") -> list[SetupFinding]:
    """What is found of a pin where each address has one commit."""
    rules = ConsumerRules.model_validate({"level": "show", "pin": pin})
    policy = packaged_policy().model_copy(update={"consumers": {SKYRL.name: rules}})
    services = DoctorServices(
        cast("Administration", None),
        lambda *_: None,
        lambda address, commit: there.get(address) == commit,
        str,
        own_verl=own_verl,
        own_has=lambda commit: commit == policy.verl.commit,
    )
    return list(pinned(CONSUMERS[consumer], policy, services))


@pytest.mark.parametrize(
    ("pin", "there", "state", "sentence"),
    [
        (None, SKYRL.pin, Health.OK, f"the pinned SkyRL {SKYRL.pin[:12]} is in {SKYRLS}"),
        (OWN, OWN, Health.OK, f"the pinned SkyRL {OWN[:12]} is in {SKYRLS}"),
        (OWN, SKYRL.pin, Health.ERROR, f"the pinned SkyRL {OWN} is not in {SKYRLS}"),
        (None, OTHER, Health.ERROR, f"the pinned SkyRL {SKYRL.pin} is not in {SKYRLS}"),
    ],
)
def test_the_pin_of_another_trainer(pin: str | None, there: str, state: Health, sentence: str) -> None:
    (item,) = found(SKYRL.name, {SKYRLS: there}, pin, own_verl="/verl")
    assert (item.about, item.state, item.sentence) == ("skyrl", state, sentence)
    assert ("set consumers.skyrl.pin in " in item.fix) is (state is Health.ERROR)


class Installed:
    """A repository where our App is, of which GitHub tells nothing else."""

    def installation(self, _: str) -> Installation:
        return Installation(1, 2, "verl-e2e")

    def __getattr__(self, name: str) -> object:
        raise ForgeError(name)


def test_doctor_looks_for_each_trainer_that_the_policy_names() -> None:
    text = b"schema: 1\nextends: default\nconsumers:\n  skyrl: {level: show}\n"
    administration = cast("Administration", Installed())
    services = DoctorServices(administration, lambda *_: text, lambda _, commit: commit == SKYRL.pin, str)
    items = examine("octo/bridge", "main", Setup(1, {}, ()), services, datetime(2026, 11, 28, tzinfo=UTC))
    assert {item.about: item.state for item in items if item.about in CONSUMERS} == {
        "verl": Health.ERROR,
        "skyrl": Health.OK,
    }


def test_the_pin_of_verl_is_also_looked_for_where_the_service_reads_it() -> None:
    policy = packaged_policy()
    here, there = found(VERL.name, {policy.verl.repository: policy.verl.commit}, own_verl="/verl")
    assert here.sentence.endswith("is in /verl, which VERL_E2E_VERL names")
    assert there.sentence.endswith(f"is in {policy.verl.repository}")
    assert {here.about, there.about} == {"verl"}
