from tests.core.builders import make_job
from verl_e2e.core.consumer.skyrl import for_every_job
from verl_e2e.core.consumer.verl import host_overrides
from verl_e2e.core.model.jobs import Job, SiteProfile
from verl_e2e.core.model.needs import Capacity, SiteNeeds, unable


def test_a_job_that_says_nothing_of_its_needs_has_those_of_its_site() -> None:
    old = make_job()
    assert old.needs is None
    new = old.model_copy(update={"needs": old.site.needs_of(old.gpu_count)})
    assert old.required_of_host == new.required_of_host
    assert old.digest() == new.digest()
    assert Job.model_validate_json(new.model_dump_json()) == new


def test_a_site_gives_a_part_of_each_gpu() -> None:
    site = SiteProfile(name="shared", gpu_memory_gib=100, needs=SiteNeeds(gpu_share=0.25))
    needs = site.needs_of(2)
    assert (needs.gpus, needs.gpu_memory_gib) == (0.5, 25)
    assert needs.memory_gib > needs.gpu_count * 32
    assert needs.cores == 8
    overrides = host_overrides(site, reward_model=False, gpus_of_node=2)
    assert "actor_rollout_ref.rollout.gpu_memory_utilization=0.15" in overrides
    assert overrides[-1].endswith(f"kv_cache_memory_bytes={5 * 1024**3}")
    of_skyrl = for_every_job(site, reward_model=False, gpus_of_node=2)
    assert of_skyrl[-1] == f"generator.inference_engine.engine_init_kwargs.kv_cache_memory_bytes={5 * 1024**3}"
    alone = SiteProfile(name="alone", gpu_memory_gib=100)
    assert not any("kv_cache" in text for text in for_every_job(alone, reward_model=False, gpus_of_node=2))
    # What serves a reward model beside it gets no more.
    served = [text for text in host_overrides(site, reward_model=True, gpus_of_node=2) if "reward" in text]
    assert served == [
        "reward.reward_model.rollout.gpu_memory_utilization=0.15",
        f"+reward.reward_model.rollout.engine_kwargs.vllm.kv_cache_memory_bytes={5 * 1024**3}",
    ]


def test_the_values_of_a_site_win() -> None:
    own = SiteProfile(name="a", needs=SiteNeeds(memory_gib=64, cores=12))
    assert (own.needs_of(8).memory_gib, own.needs_of(8).cores) == (64, 12)
    assert [SiteProfile(name="a", gpus_per_node=4).needs_of(count).gpu_count for count in (2, 8)] == [2, 4]
    assert SiteProfile.model_validate_json(own.model_dump_json()) == own
    assert not any("gpu_memory" in text for text in host_overrides(own, reward_model=False, gpus_of_node=1))


def test_a_job_takes_slots_by_its_part_of_the_gpus() -> None:
    whole, quarter = SiteProfile(name="a"), SiteProfile(name="b", needs=SiteNeeds(gpu_share=0.25))
    assert [Capacity(8).slots_of(whole.needs_of(count)) for count in (1, 2, 8, 16)] == [1, 2, 8, 8]
    one_gpu = Capacity(4, gpu_count=1)
    assert (one_gpu.slots_of(quarter.needs_of(1)), one_gpu.slots_of(whole.needs_of(1))) == (1, 4)
    assert Capacity(4, gpu_count=8).slots_of(whole.needs_of(3)) == 2
    assert Capacity(4).slots_of(None) == 4


def test_only_linux_runs_jobs() -> None:
    assert unable("linux") == ""
    assert unable("darwin").endswith("and this system is darwin")
