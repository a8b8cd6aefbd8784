"""What the evidence of a card says of the host, what was installed by hand included."""

from tests.core.builders import make_environment, make_facts, make_record
from verl_e2e.core.judge.verdict import host_rows, instrumentation_rows, judge
from verl_e2e.core.model.execution import Executed, ExecutedProcess, ProcessRole
from verl_e2e.core.model.fingerprints import Fingerprints, HookState, Point, Snapshot
from verl_e2e.core.model.record import CachesOrigin, Environment, KernelCaches, RunContainer
from verl_e2e.core.report.run_card import Card, render_text

BY_HAND = make_environment(hand_installed=("apex", "mbridge"), packages={"mbridge": "0.15.1"})


def test_what_was_installed_by_hand_is_evidence_of_the_environment() -> None:
    record = make_record(environment=BY_HAND)
    assert host_rows(record)[-1] == "Installed by hand: apex, mbridge 0.15.1"
    card = render_text(Card((judge(record, make_facts()),)))
    evidence = card.split("Evidence:\n")[1].split("Limitations:\n")[0]
    assert "- Installed by hand: apex, mbridge 0.15.1\n" in evidence


def test_without_it_nothing_is_said() -> None:
    assert not any("by hand" in row for row in host_rows(make_record()))


def host_of(**given: object) -> str:
    return host_rows(make_record(environment=make_environment(**given)))[0]


def test_the_host_is_what_was_measured_and_nothing_else() -> None:
    digest = f"sha256:{'a' * 64}"
    known = RunContainer(engine="docker", id="0f" * 32, image="verlai/verl:t", image_from="docker inspect")
    whole = known.model_copy(update={"digests": (digest,)})
    text = f"container 0f0f0f0f0f0f (docker), image verlai/verl:t@{digest} (by docker inspect)"
    assert text in host_of(container=whole)
    assert "image verlai/verl:t, its digest not recorded (by docker inspect)" in host_of(container=known)
    by_digest = whole.model_copy(update={"image": f"verlai/verl@{digest}"})
    assert f"image verlai/verl@{digest} (by docker inspect)" in host_of(container=by_digest)


def test_what_is_not_known_is_not_recorded_whatever_was_asked_for() -> None:
    asked = RunContainer(asked="verlai/verl:t")
    assert "container not recorded, image not recorded, verlai/verl:t was asked for" in host_of(container=asked)
    assert "container not recorded, image not recorded, site" in host_of(container=RunContainer())
    assert "image not recorded, site" in host_of(container=None)


def test_the_packages_of_the_image_are_named() -> None:
    rows = host_rows(
        make_record(environment=make_environment(packages={"torch": "2.9.0", "zlib": "1", "vllm": "0.11"}))
    )
    assert rows[1] == "Packages: torch 2.9.0, vllm 0.11"
    assert len(host_rows(make_record(environment=make_environment(packages={})))) == 1


def test_the_kernels_that_a_run_began_with_are_named() -> None:
    caches = KernelCaches(folders=("triton", "vllm"), files=812, size_bytes=35 << 20, digest="0f" * 32)
    origin = CachesOrigin(
        filled="2026-11-23T22:00:00+00:00", job="0-a", commits={"bridge": "b" * 40}, packages={}, gpus=()
    )
    row = "Kernel caches: triton, vllm: 812 files, 35.0 MiB, sha256 0f0f0f0f0f0f; "
    for given, filled in (
        (None, "not known which run filled them"),
        (origin, "filled by a run of Bridge bbbbbbbbbbbb"),
    ):
        environment = make_environment(kernel_caches=caches.model_copy(update={"origin": given}))
        assert host_rows(make_record(environment=environment))[-1] == f"{row}{filled}"
        assert Environment.model_validate_json(environment.model_dump_json()) == environment


def test_what_of_ours_ran_in_the_run_is_declared() -> None:
    hook = HookState(pid=7, target="m:C.f", installed=True)
    hooks = (hook, hook.model_copy(update={"pid": 8}), HookState(pid=7, target="m:C.g", installed=False))
    prints = Fingerprints(
        hooks=hooks, snapshots=(Snapshot(point=Point.MODEL_BUILT, model="actor", pid=7, t_s=1.0),) * 2
    )
    process = ExecutedProcess(
        phase="run", role=ProcessRole.DRIVER, title="python3", pid=7, python="3.12.1", began_s=0.5
    )
    record = make_record(executed=Executed(processes=(process,)), fingerprints=prints)
    row = "Instrumentation: execution record (1 process), state fingerprints (1 hook, 2 snapshots)"
    assert instrumentation_rows(record) == (row,)
    assert f"- {row}\n" in render_text(Card((judge(record, make_facts()),)))


def test_nothing_is_declared_where_nothing_was_recorded() -> None:
    assert instrumentation_rows(make_record(executed=None, fingerprints=None)) == ()
    assert instrumentation_rows(make_record(executed=Executed(problem="off"), fingerprints=None)) == ()
