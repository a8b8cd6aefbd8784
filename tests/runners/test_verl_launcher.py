"""The exact command, environment and working directory of verl's wrapper."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runners.world import SCRIPT, World
from verl_e2e.core.consumer.verl import BASE_WRAPPER, SHARE_OF_DIGITS
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.needs import CLUSTER_VARIABLE
from verl_e2e_runner.launch.launcher import INSTRUMENTATION, cluster_of, dry_run_text, python_path
from verl_e2e_runner.launch.verl import launches, overrides, quoted, wrapper_map
from verl_e2e_runner.place import read_paths
from verl_e2e_runner.process.cage import Session, ray_folder
from verl_e2e_runner.trees import planned_trees

PYTHONPATH_OVERRIDE = "++ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH="


def test_python_path_is_probe_bridge_core_verl_and_the_sites_packages_last(world: World, tmp_path: Path) -> None:
    job = world.job(site=world.site(python_path=("/opt/kit/site",)))
    trees = planned_trees(job, tmp_path)
    entries = python_path(job, trees).split(os.pathsep)
    assert entries == [
        *(str(INSTRUMENTATION), str(tmp_path / "bridge/src"), str(tmp_path / "bridge/3rdparty/Megatron-LM")),
        *(str(tmp_path / "verl"), "/opt/kit/site"),
    ]


def test_a_python_path_of_the_job_itself_is_taken_as_it_is(world: World, tmp_path: Path) -> None:
    job = world.job(process={"PYTHONPATH": "/elsewhere:/more"})
    assert python_path(job, planned_trees(job, tmp_path)) == f"{INSTRUMENTATION}:/elsewhere:/more"


def test_the_job_wins_over_the_site_and_both_over_what_is_derived(world: World, tmp_path: Path) -> None:
    site = world.site(wrapper={"MAX_PROMPT_LENGTH": "256", "LORA_RANK": "1"})
    job = world.job(site=site, wrapper={"LORA_RANK": "4", "MODEL_ID": "given"})
    made = wrapper_map(job, planned_trees(job, tmp_path), base={})
    assert (made["MAX_PROMPT_LENGTH"], made["LORA_RANK"], made["MODEL_ID"]) == ("256", "4", "given")
    assert (made["NUM_GPUS"], made["TOTAL_TRAIN_STEPS"]) == ("1", "1")
    assert made["MODEL_PATH"] == job.checkpoint.model_path
    assert "USE_DUMMY_MODEL" not in made


def test_a_dummy_checkpoint_is_made_in_a_folder_of_the_run(world: World, tmp_path: Path) -> None:
    job = world.job(checkpoint=Checkpoint(model_id="org/base", dummy_config="/configs/tiny.json"))
    made = wrapper_map(job, planned_trees(job, tmp_path), base={}, model="/cache/snapshot")
    assert made["USE_DUMMY_MODEL"] == "True"
    assert made["DUMMY_MODEL_CONFIG_PATH"] == "/configs/tiny.json"
    assert made["MODEL_PATH"] == "/cache/snapshot"
    assert Path(made["DUMMY_MODEL_PATH"]).is_relative_to(tmp_path)


def test_overrides_of_site_and_job_come_once_and_the_runner_adds_what_it_needs(
    world: World, tmp_path: Path, session: Session
) -> None:
    job = world.job(overrides=("a=1", "+b=2"), site=world.site(overrides=("c=3", "a=1"), ray_cpus=12))
    trees = planned_trees(job, tmp_path)
    made = overrides(job, trees, session)
    assert made[:5] == ("c=3", "a=1", "+b=2", "reward.reward_model.enable=False", "ray_kwargs.ray_init.num_cpus=12")
    assert f"{PYTHONPATH_OVERRIDE}'{python_path(job, trees)}'" in made


def test_a_file_of_our_own_is_found_where_the_runner_lies_and_the_cage_lets_it_be_read(
    world: World, tmp_path: Path, session: Session
) -> None:
    job = world.job(overrides=SHARE_OF_DIGITS)
    trees = planned_trees(job, tmp_path)
    made = dict(item.split("=", 1) for item in overrides(job, trees, session)[:2])
    place = Path(made["reward.custom_reward_function.path"])
    found: dict[str, object] = {}
    exec(place.read_text(), found)
    rate = found[made["reward.custom_reward_function.name"]]
    assert callable(rate)
    assert rate("", "12ab", None) == 50.0
    assert place in read_paths(job, trees, {})


def test_what_the_job_says_of_reward_model_and_ray_stays(world: World, tmp_path: Path, session: Session) -> None:
    given = ("reward.reward_model.enable=True", "++ray_kwargs.ray_init.num_cpus=2")
    job = world.job(overrides=given)
    made = overrides(job, planned_trees(job, tmp_path), session)
    assert [item for item in made if "num_cpus" in item or "enable" in item] == list(given)


def test_an_existing_ray_is_used_only_when_the_site_names_it(world: World, tmp_path: Path, session: Session) -> None:
    base = {"RAY_ADDRESS": "10.0.0.1:6379", "PATH": "/bin"}
    alone = world.job()
    joined = world.job(site=world.site(ray_address="10.0.0.2:6379"))
    trees = planned_trees(alone, tmp_path)
    assert "RAY_ADDRESS" not in launches(alone, trees, session, base=base)[0].environment
    assert launches(joined, trees, session, base=base)[0].environment["RAY_ADDRESS"] == "10.0.0.2:6379"
    assert not [item for item in overrides(joined, trees, session) if "num_cpus" in item]


def test_the_environment_is_the_hosts_less_secrets_and_less_what_the_wrapper_would_read(
    world: World, tmp_path: Path, session: Session
) -> None:
    base = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "NCCL_SOCKET_IFNAME": "eth0",
        "HF_TOKEN": "hf_x",
        "COMMON_TP": "8",
        "PYTHONPATH": "/stray",
        "ACTOR_LR": "3",
        "BASH_ENV": "/evil",
    }
    job = world.job()
    reads = {*BASE_WRAPPER, "ACTOR_LR", "HOME"}
    made = launches(job, planned_trees(job, tmp_path), session, base=base, reads=reads)[0].environment
    assert (made["HOME"], made["NCCL_SOCKET_IFNAME"], made["COMMON_TP"]) == ("/home/me", "eth0", "1")
    assert not {"HF_TOKEN", "BASH_ENV", "ACTOR_LR"} & made.keys()
    assert "/stray" not in made["PYTHONPATH"]
    assert made["PATH"].startswith(str(Path(job.site.python).parent) + ":")


def test_droppable_variables_go_when_the_wrapper_does_not_read_them(
    world: World, tmp_path: Path, session: Session
) -> None:
    job = world.job()
    trees = planned_trees(job, tmp_path)
    made = launches(job, trees, session, base={}, reads=BASE_WRAPPER.keys() - {"VERL_USE_UV"})[0].environment
    assert "VERL_USE_UV" not in made
    assert made["LORA_RANK"] == "4"


def test_save_and_resume_are_two_starts_in_one_folder(world: World, tmp_path: Path, session: Session) -> None:
    job = world.job(id="1-resume", level=Level.SAVE_RESUME, steps=2, wrapper={**BASE_WRAPPER, "SAVE_FREQ": "1"})
    save, resume = launches(job, planned_trees(job, tmp_path), session, base={})
    assert (save.phase.name, save.environment["TOTAL_TRAIN_STEPS"]) == ("save", "1")
    assert (resume.phase.name, resume.environment["TOTAL_TRAIN_STEPS"]) == ("resume", "2")
    assert resume.environment["RESUME_MODE"] == "auto"
    assert "RESUME_MODE" not in save.environment
    assert save.cwd == resume.cwd == tmp_path / "verl"


def test_the_printed_commands_run_as_they_stand(world: World, tmp_path: Path, session: Session) -> None:
    job = world.job(process={"NOTE": "two words and 'quotes' $HOME"}, overrides=("x='$y'",))
    trees = planned_trees(job, tmp_path)
    script = trees.verl / SCRIPT
    script.parent.mkdir(parents=True)
    script.write_text('printf "%s\\n" "$NOTE" "$LORA_RANK" "${SECRET_TOKEN:-none}" "$PWD" "$@"\n')
    base = {"PATH": os.environ["PATH"], "SECRET_TOKEN": "t"}
    text = dry_run_text(launches(job, trees, session, base=base), base)
    done = subprocess.run(["bash", "-c", text], env=base, capture_output=True, text=True, check=True)
    expected = ["two words and 'quotes' $HOME", "4", "none", str(trees.verl), *overrides(job, trees, session)]
    assert done.stdout.splitlines() == expected


@pytest.mark.ray
@pytest.mark.parametrize(
    "value", ["/a:/b", "it's", "a\\", "a\\'b", "x\\y", "${oc.env:HOME}", "a=b,[c]", "", "'", "\\\\'"]
)
def test_hydra_reads_a_quoted_value_back(value: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(f"++a.b={quoted(value)}").value() == value


@pytest.mark.parametrize("caged", [False, True])
def test_rays_folder_is_short_enough_for_its_sockets(caged: bool) -> None:
    session = ray_folder("0123456789abcdef", caged=caged) / "ray/session_2025-01-01_00-00-00_123456_4194304"
    assert len(str(session / "sockets/plasma_store")) <= 107


def test_only_a_job_of_several_nodes_joins_the_cluster_that_it_is_given(world: World, tmp_path: Path) -> None:
    given = {CLUSTER_VARIABLE: "192.0.2.1:6400"}
    seen = []
    for job in (world.job(gpu_count=8), world.job(gpu_count=8, site=world.site(gpus_per_node=4))):
        session = Session("ab" * 16, tmp_path, tmp_path / "imports.jsonl", ray_address=cluster_of(job, given))
        trees = planned_trees(job, tmp_path)
        environment = launches(job, trees, session, base=given)[0].environment
        nodes = [item for item in overrides(job, trees, session) if item.startswith(("trainer.", "ray_kwargs."))]
        seen.append((environment.get("RAY_ADDRESS"), environment["NUM_GPUS"], nodes))
    assert seen == [(None, "8", ["ray_kwargs.ray_init.num_cpus=34"]), ("192.0.2.1:6400", "4", ["trainer.nnodes=2"])]


def test_ray_shows_every_line_unless_the_job_says_otherwise(world: World, tmp_path: Path, session: Session) -> None:
    for process, shown in (({}, "0"), ({"RAY_DEDUP_LOGS": "1"}, "1")):
        job = world.job(process=process)
        made = launches(job, planned_trees(job, tmp_path), session, base={})[0].environment
        assert made["RAY_DEDUP_LOGS"] == shown


def test_the_caches_of_a_session_win_over_those_of_the_host(world: World, tmp_path: Path, session: Session) -> None:
    job = world.job(site=world.site(process={"TRITON_CACHE_DIR": "/home/me/.triton"}))
    trees = planned_trees(job, tmp_path)
    base = {"VLLM_CACHE_ROOT": "/home/me/vllm"}
    for caches, triton, vllm in ((None, "/home/me/.triton", "/home/me/vllm"), ("/own", "/own/triton", "/own/vllm")):
        given = replace(session, caches=Path(caches) if caches else None)
        made = launches(job, trees, given, base=base)[0].environment
        assert (made["TRITON_CACHE_DIR"], made["VLLM_CACHE_ROOT"]) == (triton, vllm)
        assert made.get("CUDA_CACHE_PATH") == ("/own/cuda" if caches else None)
