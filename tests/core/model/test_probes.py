"""One job for each value of each axis."""

import re

from verl_e2e.core.consumer.consumers import setting_probes
from verl_e2e.core.consumer.verl import BASE_WRAPPER
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.settings import Axis

# What other parts of a job carry out: the number of GPUs and the steps.
WITHOUT_A_SETTING = {Axis.DATA, Axis.STEPS}


def test_each_axis_that_is_a_setting_of_verl_has_a_job_that_differs_from_the_smoke() -> None:
    made = {variant.job_id: variant for variant in setting_probes()}
    assert len(made) == len(setting_probes())
    for axis in set(Axis) - WITHOUT_A_SETTING:
        name = re.sub(r"\W+", "-", str(axis).lower())
        found = [variant for variant in made.values() if variant.name.startswith(name)]
        assert found, axis
        assert all(variant.wrapper or variant.overrides for variant in found)
    assert "4-adapter-none" in made


def test_their_names_can_be_ids_of_jobs() -> None:
    (pattern,) = (item.pattern for item in Job.model_fields["id"].metadata if hasattr(item, "pattern"))
    for variant in setting_probes():
        assert re.fullmatch(pattern, variant.job_id)
        assert set(variant.wrapper) <= {*BASE_WRAPPER, *_READ_BY_THE_WRAPPER}


_READ_BY_THE_WRAPPER = {
    *("COMMON_EP", "COMMON_ETP", "ROUTING_REPLAY_MODE", "LORA_ALPHA", "LORA_MERGE", "LORA_TARGET_MODULES"),
    *("USE_REMOVE_PADDING", "ADV_ESTIMATOR"),
}
