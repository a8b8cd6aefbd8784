"""A job as it travels: whole, portable, bounded, and known again when its run folder comes home redacted."""

import base64
import re
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.core.jobs import Checkpoint, Repository
from bot.core.levels import VARIANTS
from bot.core.pulls.job_order import (
    OrderError,
    OrderTarget,
    check_inputs,
    merge_base_of,
    pack,
    placed,
    portable,
    read_target,
    same_job,
    unpack,
)
from tests.core.builders import make_job


def test_a_job_travels_whole() -> None:
    for variant in VARIANTS:
        job = make_job(variant.level, variant.name)
        assert unpack(pack(job)) == portable(job)
        assert len(pack(job)) < 6_000


def test_the_merge_base_travels_with_the_job() -> None:
    packed = pack(make_job(), "e" * 40)
    assert (unpack(packed), merge_base_of(packed)) == (portable(make_job()), "e" * 40)
    assert merge_base_of(pack(make_job())) == ""
    with pytest.raises(OrderError, match="which is no commit"):
        merge_base_of(f"{pack(make_job())}.--upload-pack=x")


def test_equal_jobs_of_two_machines_are_one() -> None:
    here, there = placed(make_job(), "/srv/a"), placed(make_job(), "/home/b/")
    assert here != there
    assert portable(here) == portable(there)
    assert there.bridge.path == "/home/b/bridge"


def packed(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cut"),
        ("not base64!", "not one that verl-e2e packed"),
        (base64.b64encode(b"not deflated").decode(), "not one that verl-e2e packed"),
        (pack(make_job())[:-40], "cut"),
        (packed(b"[" * 5_000_000), "larger than"),
        (packed(b"{}"), "another version"),
        (packed(b'{"of tomorrow": 1}'), "another version"),
    ],
)
def test_what_is_no_order_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(OrderError, match=said):
        unpack(text)


@pytest.mark.parametrize("target", [OrderTarget("a" * 40, 7), OrderTarget("b" * 40, None)])
def test_a_target_is_read_as_it_was_written(target: OrderTarget) -> None:
    assert read_target(str(target)) == target


@pytest.mark.parametrize("text", ["", "7", "7@abc", "0@" + "a" * 40, "7@" + "A" * 40, "x@" + "a" * 40, "7@" + "a" * 41])
def test_a_target_that_names_no_head_is_refused(text: str) -> None:
    with pytest.raises(OrderError, match="NUMBER@SHA"):
        read_target(text)


HIDDEN = re.compile(r"(\$[A-Z][A-Z0-9_]*|<redacted:[a-z-]+>)")


def with_places(home: str, **changes: Any) -> Any:
    checkpoint = Checkpoint(model_id="org/tiny", model_path=f"{home}/models/tiny")
    return make_job(checkpoint=checkpoint, process={"DATA": f"{home}/data"}, **changes)


def test_a_redacted_job_is_known_again() -> None:
    assert same_job(with_places("$HOME"), with_places("/home/ada"))
    bridge = Repository(path="$TMPDIR/x/bridge", commit=make_job().bridge.commit)
    assert same_job(with_places("$HOME", bridge=bridge), with_places("/home/ada"))


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 7},
        {"gpu_count": 3},
        {"overrides": ("trainer.total_epochs=1",)},
        {"wrapper": {"VANILLA_MBRIDGE": "True"}},
        {"process": {"DATA": "/home/ada/other"}},
        {"bridge": Repository(path="/x", commit="e" * 40)},
        {"expected": {"actor_rollout_ref.model.lora.rank": 1}},
        {"require_bridge_checks": True},
    ],
)
def test_another_job_is_not(changes: dict[str, Any]) -> None:
    sent = with_places("/home/ada")
    assert not same_job(with_places("$HOME").model_copy(update=changes), sent)


def test_a_job_full_of_placeholders_is_known_or_not_in_no_time() -> None:
    job = make_job()
    hidden = job.model_copy(update={"overrides": (f"{'$A' * 2_000}x",)})
    sent = job.model_copy(update={"overrides": ("a" * 2_000,)})
    assert not same_job(hidden, sent)
    assert same_job(hidden, sent.model_copy(update={"overrides": ("a" * 2_000 + "x",)}))


@given(st.lists(st.sampled_from(["$A ", "<redacted:token>", "a", "b", "ab"]), max_size=7), st.text("ab $A", max_size=9))
def test_a_placeholder_stands_for_any_text_and_for_nothing_else(words: list[str], text: str) -> None:
    found = "".join(words)
    pattern = "".join(".*" if index % 2 else re.escape(part) for index, part in enumerate(HIDDEN.split(found)))
    job = make_job()
    hidden, sent = (job.model_copy(update={"overrides": (one,)}) for one in (found, text))
    assert same_job(hidden, sent) == (found == text or re.fullmatch(pattern, text, re.DOTALL) is not None)


def test_more_inputs_than_github_takes_are_refused() -> None:
    check_inputs({str(number): "" for number in range(25)})
    with pytest.raises(OrderError, match="26 workflow inputs"):
        check_inputs({str(number): "" for number in range(26)})
