"""The boundary of consumers: elsewhere no line names a variable, key, metric, phrase or module of one."""

import re
from collections.abc import Iterator

from tests.fakes.places import ROOT
from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.model.settings import Axis

# What may name them: the consumers themselves, and what is written down about them as data.
PLACES = (
    "bot/verl_e2e/core/consumer/",
    "bot/verl_e2e/core/triage/table.py",
    "bot/verl_e2e/policy/",
    "bot/verl_e2e/profiles/",
    "runners/verl_e2e_runner/launch/",
    "runners/verl_e2e_runner/instrumentation/verl_e2e_skyrl",
    # Composes verl's configuration by verl's own code, for `launch/verl.py`.
    "runners/verl_e2e_runner/instrumentation/verl_e2e_compose.py",
)
# Words that programs share, or that are too common to tell a consumer.
SHARED = {
    *("ENGINE", "NUM_GPUS", "PYTHONPATH", "MODEL_PATH", "data", "trainer", "training", "train"),
    *("generator", "environment", "policy", "loss", "reward", "timing", "generate", "logger"),
}
# Files that still name some, with the number of lines. It may only shrink.
STILL = {
    "bot/verl_e2e/core/judge/criteria/table.py": 2,
    "bot/verl_e2e/core/log/literals.py": 1,
    "bot/verl_e2e/core/log/printed.py": 1,
    "bot/verl_e2e/core/model/jobs.py": 1,
    "runners/verl_e2e_runner/instrumentation/verl_e2e_fingerprints.py": 2,
}


def words_of(consumer: Consumer) -> re.Pattern[str]:
    """What a line is searched for: the consumer's own names, from its own tables."""
    job_keys = consumer.expected(consumer.base, ())
    settings = [consumer.setting(axis, value) for axis in Axis for value in axis.tried]
    variables = {*consumer.base, *(name for setting in settings for name in setting.wrapper)} - SHARED
    keys = {key.partition(".")[0] for key in job_keys} - SHARED
    set_here = {override.lstrip("+").partition("=")[0] for setting in settings for override in setting.overrides}
    whole = {key for key in {*job_keys, *set_here, *consumer.keys.values()} if key.partition(".")[0] not in keys}
    metrics = {name.partition("/")[0] for names in consumer.metrics.values() for name in names} - SHARED
    phrases = {literal.text.strip() for literal in consumer.log.literals if len(literal.text.strip()) > 12}
    patterns = (
        (r"\b(?:{})\b", variables),
        (r"\b(?:{})\.(?!py\b)[a-z_]", keys),
        (r"\b(?:{})\b", map(re.escape, whole)),
        (r"(?<![\w/.])(?:{})/[a-z_]", metrics),
        ("(?:{})", map(re.escape, phrases)),
        (r"\b(?:{})\.(?!md\b|yml\b|json\b|py\b)[a-z_]+\.", [consumer.package]),
    )
    made = (
        shape.format("|".join(sorted(words)))
        for shape, words in ((shape, {*words}) for shape, words in patterns)
        if words
    )
    return re.compile("|".join(made))


def lines_naming(pattern: re.Pattern[str]) -> Iterator[tuple[str, int, str]]:
    for package in ("bot", "runners"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(PLACES):
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if pattern.search(line):
                        yield name, number, line


def test_what_names_a_consumer_lies_behind_the_boundary() -> None:
    found: dict[str, int] = {}
    every = re.compile("|".join(words_of(consumer).pattern for consumer in CONSUMERS.values()))
    for name, _, _ in lines_naming(every):
        found[name] = found.get(name, 0) + 1
    more = {name: count for name, count in found.items() if count > STILL.get(name, 0)}
    assert not more, f"move what these lines name into core/consumer: {more}"
    less = {name: found.get(name, 0) for name, count in STILL.items() if found.get(name, 0) < count}
    assert not less, f"lower the numbers of the list: {less}"


def test_the_list_would_find_a_line() -> None:
    pattern = words_of(CONSUMERS["verl"])
    for line in (
        '"actor/grad_norm"',
        "COMMON_TP=2",
        "actor_rollout_ref.model",
        "Final validation metrics",
        "verl.workers.x",
    ):
        assert pattern.search(line), line
    for line in ("the trainer. It", "docs/verl.md", "verl_e2e.core.model", "a critic. The"):
        assert not pattern.search(line), line
