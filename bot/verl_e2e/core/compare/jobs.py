"""The jobs that are compared: the two of a parity report, and what decides the measurements of a probe."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.model.access import Slowdown
from verl_e2e.core.model.execution import NO_CODE, NO_PURPOSES
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis, expected_of_overrides
from verl_e2e.core.text.escape import one_line

_MOST_VALUE = 100
UNSHARDED, KNOWN_GOOD = "unsharded", "known-good"
# Of a run that another one is compared with: the focused tests and what the change must execute are for that one to
# show, and nothing is said of its own time.
AS_REFERENCE: Mapping[str, object] = {
    "bridge_tests": (),
    "require_bridge_checks": False,
    "performance": Slowdown.SHOW,
    "changed": NO_CODE,
    **NO_PURPOSES,
}


def is_parity(job: Job) -> bool:
    """Whether a job is to be compared with its unsharded run: all samples differ, and are the same in both."""
    return consumer_of(job).comparing.parity <= {*job.overrides}


def begins_equal(job: Job) -> bool:
    """Whether the first step of a parity job computes on the weights of its unsharded run.

    So on data-parallel ranks, and wherever the whole model is trained: each part of a sharded model draws its adapters
    by itself.
    """
    sizes = [value for key, value in job.expected.items() if key.endswith("parallel_size")]
    return is_parity(job) and (_trains_all(job) or all(size in (1, None) for size in sizes))


def unsharded(job: Job) -> Job:
    """The same training on one GPU with every parallel size 1: seed, data, steps, global batch and checkpoint stay.

    Its data-parallel size is 1 as well. It is a job of level 0, for it proves no more than that by itself, and it
    leaves the focused Bridge tests to the job that it is compared with.
    """
    consumer = consumer_of(job)
    rules, wrapper = consumer.comparing, {**job.site.wrapper, **job.wrapper}
    for sizes, one in rules.sizes:
        wrapper |= {name: one for name in wrapper if sizes.fullmatch(name)}
    if job.script == consumer.script:
        wrapper[rules.gpus] = "1"
    # What fills the stages of a pipeline goes too; a bound of the site is for the memory of its GPUs.
    filling = {item for item in job.overrides if rules.filling.fullmatch(_key(item))} - {*job.site.overrides}
    overrides = tuple(
        item for item in job.overrides if not rules.size_keys.fullmatch(_key(item)) and item not in filling
    )
    return _reference(job, UNSHARDED, wrapper, overrides, gpu_count=1, needs=job.site.needs_of(1))


def through_mbridge(job: Job) -> Job | None:
    """The same training through the consumer's older bridge; None where it has none, the site asks for none, or that
    bridge cannot train it: verl refuses adapters with it (MegatronEngine).
    """
    older = consumer_of(job).comparing.older_bridge
    if older is None or not (job.site.known_good and is_parity(job) and _trains_all(job)):
        return None
    return _reference(job, KNOWN_GOOD, {**job.wrapper, **older.wrapper}, job.overrides)


def _trains_all(job: Job) -> bool:
    """Whether the whole model is trained, and no adapter."""
    return consumer_of(job).text(Axis.ADAPTER_RANK, job.wrapper, "") == "0"


def _reference(job: Job, variant: str, wrapper: dict[str, str], overrides: tuple[str, ...], **more: object) -> Job:
    """A job of level 0 that another one is compared with."""
    changes: dict[str, object] = {
        # Without the name of the job: those of one training are one run, which a host keeps.
        "id": f"{int(Level.SMOKE)}-{variant}",
        "level": Level.SMOKE,
        "variant": variant,
        **AS_REFERENCE,
        **more,
    }
    gone = {_key(override).lstrip("+") for override in {*job.overrides} - {*overrides}}
    kept = {key: value for key, value in job.expected.items() if key not in gone}
    consumer = consumer_of(job)
    shown = consumer.expected(wrapper, overrides) if job.script == consumer.script else expected_of_overrides(overrides)
    expected = dict(sorted({**kept, **shown}.items()))
    update = {**changes, "wrapper": wrapper, "overrides": overrides, "expected": expected}
    return Job.model_validate({**job.model_dump(), **update})


def _key(override: str) -> str:
    return override.partition("=")[0]


def job_differences(job: Job, reference: Job) -> tuple[str, ...]:
    """A row for each difference of two jobs that is not a parallel size; a comparison may rest on none."""
    kept: dict[str, Any] = {"bridge": {"commit"}, "verl": {"commit"}, "data": {"train_files"}}
    kept |= dict.fromkeys(("checkpoint", "overrides", "wrapper"), True)
    ours, theirs = (unsharded(item).model_dump(mode="json", include=kept) for item in (job, reference))
    return tuple(differing_values(ours, theirs))


def differing_values(left: Mapping[str, object], right: Mapping[str, object]) -> Iterator[str]:
    """`KEY: LEFT -> RIGHT` for each value by which two documents differ; `-` stands for a value that is not there."""
    ours, theirs = dict(_values(left)), dict(_values(right))
    for key in dict.fromkeys((*ours, *theirs)):
        if ours.get(key) != theirs.get(key):
            shown = (one_line(str(side.get(key, "-")), _MOST_VALUE) for side in (ours, theirs))
            yield f"{one_line(key, _MOST_VALUE)}: {' -> '.join(shown)}"


def _values(document: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Each value with its keys, joined by dots; a text in a list counts by itself, an override by its name."""
    if isinstance(document, Mapping):
        for name, below in document.items():
            yield from _values(below, f"{key}.{name}" if key else name)
    elif isinstance(document, list) and all(isinstance(item, str) for item in document):
        for name, _, value in (item.partition("=") for item in document):
            yield f"{key}: {name}", value or "yes"
    elif isinstance(document, list):
        for number, item in enumerate(document):
            yield from _values(item, f"{key}.{number}")
    else:
        yield key, document


def probe_digest(job: Job) -> str:
    """What decides a probe's measurements, as a SHA-256 digest: the same on every host and at every Bridge commit.

    A local checkpoint counts by its model id and the name of its folder, for its place differs between hosts.
    """
    rules = consumer_of(job).comparing
    variables, overrides = (
        re.compile(f"{place.pattern}|{scale.pattern}") for place, scale in zip(rules.places, rules.scales, strict=True)
    )
    return _digest(job, variables, overrides)


def training_digest(job: Job) -> str:
    """What decides every number of a training at one Bridge and verl commit: two runs of it differ by noise alone."""
    commits = {"gpus": job.gpu_count, "bridge": job.bridge.commit, "verl": job.verl.commit}
    variables, overrides = consumer_of(job).comparing.places
    return _digest(job, variables, overrides, **commits)


def settings_digest(job: Job) -> str:
    """What decides the time and the memory of a training at one verl commit: all that it is asked to do but paths."""
    process = sorted(job.process.items())
    return _digest(
        job,
        *consumer_of(job).comparing.paths,
        gpus=job.gpu_count,
        verl=job.verl.commit,
        steps=job.steps,
        process=process,
    )


def _digest(job: Job, variables: re.Pattern[str], overrides: re.Pattern[str], **more: object) -> str:
    """The digest of what a training is made of, without some variables and overrides."""
    wrapper = {**job.site.wrapper, **job.wrapper}
    document = {
        "script": job.script,
        "model": _named(job.checkpoint),
        "reward_model": job.reward_model and _named(job.reward_model),
        "wrapper": sorted(pair for pair in wrapper.items() if not variables.fullmatch(pair[0])),
        "overrides": [override for override in sorted(set(job.overrides)) if not overrides.match(override)],
        **more,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _named(chosen: Checkpoint) -> list[object]:
    """What a model is, wherever it lies."""
    recipe = [chosen.synthetic.model_dump(mode="json")] if chosen.synthetic else []
    folders = ((path or "").rstrip("/").rpartition("/")[2] for path in (chosen.model_path, chosen.dummy_config))
    return [chosen.model_id, *folders, chosen.random_weights, *recipe]


def about(job: Job) -> str:
    """A probe in words, for the person who reads a bands file."""
    wrapper = {**job.site.wrapper, **job.wrapper}
    consumer = consumer_of(job)
    lengths = "/".join(wrapper.get(name, "default") for name in consumer.comparing.lengths)
    random = ", random weights" if job.checkpoint.is_random else ""
    return (
        f"{job.checkpoint.model_id}{random}, LoRA rank {consumer.text(Axis.ADAPTER_RANK, wrapper, '0')}, "
        f"{wrapper.get('ENGINE', 'vllm')}, lengths {lengths}"
    )
