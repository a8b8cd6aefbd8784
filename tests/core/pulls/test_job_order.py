"""A job as it travels: whole, portable, bounded, and known again when its run folder comes home redacted."""

import base64
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import make_job
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.consumer.consumers import VARIANTS
from verl_e2e.core.model.jobs import Checkpoint, RehearsalJob, Repository, RepositoryOrigin
from verl_e2e.core.pulls.job_order import (
    OrderError,
    OrderTarget,
    check_inputs,
    megatron_lm_of,
    merge_base_of,
    minutes_of,
    nonce_of,
    origins_of,
    pack_order,
    placed,
    portable,
    read_target,
    same_job,
    takes_token,
    unpack_order,
)


def test_a_job_travels_whole() -> None:
    for variant in VARIANTS:
        job = make_job(variant.level, variant.name)
        assert unpack_order(pack_order(job)) == portable(job)
        assert len(pack_order(job)) < 6_000


def test_the_merge_base_travels_with_the_job() -> None:
    packed = pack_order(make_job(), "e" * 40)
    assert (unpack_order(packed), merge_base_of(packed)) == (portable(make_job()), "e" * 40)
    assert merge_base_of(pack_order(make_job())) == ""
    with pytest.raises(OrderError, match="which is not a commit"):
        merge_base_of(f"{pack_order(make_job())}.--upload-pack=x")


def test_equal_jobs_of_two_machines_are_one() -> None:
    here, there = placed(make_job(), "/srv/a"), placed(make_job(), "/home/b/")
    assert here != there
    assert portable(here) == portable(there)
    assert there.bridge.path == "/home/b/bridge"


def test_where_repositories_are_fetched_from_is_decided_by_the_base_and_makes_no_other_job() -> None:
    policy = packaged_policy()
    origins = origins_of("o/bridge", "refs/pull/7/head", policy, "https://forge.example")
    assert {name: (origin.url, origin.ref) for name, origin in origins.items()} == {
        "bridge": ("https://forge.example/o/bridge.git", "refs/pull/7/head"),
        "verl": (policy.verl.repository, ""),
        "megatron_lm": (policy.megatron_lm.repository, ""),
    }
    ordered = make_job().model_copy(update={"origins": origins})
    assert ordered.digest() == make_job().digest()
    assert same_job(ordered, make_job())
    assert placed(ordered, "/srv/a").origins == {}, "a workflow has checked everything out"
    assert megatron_lm_of(unpack_order(pack_order(ordered))) == policy.megatron_lm.repository
    assert megatron_lm_of(unpack_order(pack_order(make_job()))) == ""
    assert origins_of("o/bridge", "", policy, "") == {"megatron_lm": origins["megatron_lm"]}


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://forge.example/o/verl", True),
        ("https://forge.example.evil.org/o/verl", False),
        ("https://forge.example:8443/o/verl", False),
        ("http://forge.example/o/verl", False),
        ("https://github.com/o/verl", False),
    ],
)
def test_a_token_of_a_host_is_for_the_site_of_the_repository_under_test(url: str, taken: bool) -> None:
    own = RepositoryOrigin(url="https://forge.example/o/bridge.git")
    assert takes_token(url, own) is taken
    assert not takes_token(url, None)


def packed(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cut"),
        ("not base64!", "not one that verl-e2e packed"),
        (base64.b64encode(b"not deflated").decode(), "not one that verl-e2e packed"),
        (pack_order(make_job())[:-40], "cut"),
        (packed(b"[" * 5_000_000), "larger than"),
        (packed(b"{}"), "another version"),
        (packed(b'{"of tomorrow": 1}'), "another version"),
    ],
)
def test_what_is_no_order_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(OrderError, match=words):
        unpack_order(text)


@pytest.mark.parametrize("target", [OrderTarget("a" * 40, 7), OrderTarget("b" * 40, None)])
def test_a_target_is_read_as_it_was_written(target: OrderTarget) -> None:
    assert read_target(str(target)) == target


@pytest.mark.parametrize("text", ["", "7", "7@abc", "0@" + "a" * 40, "7@" + "A" * 40, "x@" + "a" * 40, "7@" + "a" * 41])
def test_a_target_that_names_no_head_is_refused(text: str) -> None:
    with pytest.raises(OrderError, match="NUMBER@SHA"):
        read_target(text)


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


def hidden_is(hidden: str, sent: str) -> bool:
    job = make_job()
    found, meant = (job.model_copy(update={"overrides": (text,)}) for text in (hidden, sent))
    return same_job(found, meant)


def test_a_job_full_of_placeholders_is_known_or_not_in_no_time() -> None:
    assert not hidden_is(f"{'$A' * 2_000}x", "/a" * 2_000)
    assert hidden_is("$A," * 2_000, "/a/b," * 2_000)
    assert not hidden_is("$A," * 2_000, "/a/b," * 2_000 + "x")


@pytest.mark.parametrize(
    ("hidden", "sent", "same"),
    [
        ("$HOME/models", "/home/ada/models", True),
        ("a=$HOME/x:$TMPDIR/y", "a=/home/ada/x:/tmp/y", True),
        ("$WORK", "/scratch/run-1", True),
        ("trainer.steps=$HOME", "trainer.steps=1", False),
        ("$HOME", "Qwen/Qwen2.5-0.5B", False),
        ("$X", "True", False),
        ("$X", "", False),
        ("$X", "/home/a b", False),
        ("model=$X", "model=/home/a,steps=1", False),
        ("$X$Y", "/home/ada", False),
        ("token=<redacted:token>", "token=hf_0123456789", True),
        ("steps=<redacted:token>", "steps=10", False),
        ("at host-1:80", "at node7.example.org:80", True),
        ("at ip-1", "at 10.0.0.7", True),
        ("at host-1", "at a/b", False),
        ("$HOME", "$HOME", True),
    ],
)
def test_a_placeholder_stands_for_a_text_of_its_kind_alone(hidden: str, sent: str, same: bool) -> None:
    assert hidden_is(hidden, sent) is same


@given(st.sampled_from(sorted(make_job().expected)), st.sampled_from(["$X", "<redacted:token>", "host-1"]))
def test_what_a_run_must_show_is_never_hidden(key: str, placeholder: str) -> None:
    job = make_job()
    message = job.expected[key]
    if isinstance(message, str) and message.startswith("/"):
        return
    assert not same_job(job.model_copy(update={"expected": {**job.expected, key: placeholder}}), job)


def test_a_nonce_travels_with_the_order() -> None:
    job, base, nonce = make_job(), "e" * 40, "a1" * 16
    for merge_base, sent in ((base, nonce), ("", nonce), (base, ""), ("", "")):
        packed = pack_order(job, merge_base, sent)
        assert (merge_base_of(packed), nonce_of(packed)) == (merge_base, sent)
        assert same_job(unpack_order(packed), job)
    with pytest.raises(OrderError, match="verl-e2e never makes"):
        nonce_of(f"{pack_order(job)}..--out=/etc")


def test_an_order_has_time_for_its_follow_up_runs_and_an_hour_around_them() -> None:
    job = make_job().model_copy(update={"time_limit_s": 1800, "bridge_tests_limit_s": 300})
    assert minutes_of(job) == 30 * 3 + 5 + 60


def test_more_inputs_than_github_takes_are_refused() -> None:
    check_inputs({str(number): "" for number in range(25)})
    with pytest.raises(OrderError, match="26 workflow inputs"):
        check_inputs({str(number): "" for number in range(26)})


def test_a_rehearsal_travels_as_a_job_does() -> None:
    origins = {
        "bridge": RepositoryOrigin(url="https://x.org/o/b.git"),
        "megatron_lm": RepositoryOrigin(url="https://m.org/l"),
    }
    sent = RehearsalJob(
        kind="rehearsal", bridge=Repository(path="/srv/b", commit="a" * 40), base="b" * 40, origins=origins
    )
    found = unpack_order(pack_order(sent, sent.base, "c" * 32))
    assert isinstance(found, RehearsalJob)
    assert (found.bridge.path, set(found.origins)) == ("bridge", {"megatron_lm"})
    assert same_job(found, sent)
    assert not same_job(found, sent.model_copy(update={"cells": ("qwen3-*",)}))
    assert placed(found, "/home/x").bridge.path == "/home/x/bridge"
    assert megatron_lm_of(found) == "https://m.org/l"
    assert found.digest() == sent.digest()
    assert minutes_of(sent) == 30 + 20
