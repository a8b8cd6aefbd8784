"""A pull request's way from opened to a green gate."""

from tests.stories.conftest import Story
from tests.stories.recordings import BROKEN, RESUME, SMOKE, adapted, job_of


def test_a_pull_request_is_planned_run_judged_and_told(story: Story) -> None:
    world, service = story.world, story.service
    number = world.open_pull("alice", {"src/saved/checkpoint.py": "value = 2\n"})
    service.settle()
    assert world.gate(number) == "in_progress"
    (smoke,) = world.live_runs()
    assert job_of(smoke).bridge.commit == world.head(number)
    assert len(world.cards(number)) == 1
    world.start_run(smoke)
    service.settle()
    world.finish_run(adapted(SMOKE, job_of(smoke)), smoke, artifact=f"verl-e2e-{smoke.inputs['key']}")
    service.settle()
    (resume,) = world.live_runs()
    assert job_of(resume).id == "1-resume"
    assert world.gate(number) == "in_progress"
    world.finish_run(adapted(RESUME, job_of(resume)), resume, artifact=f"verl-e2e-{resume.inputs['key']}")
    service.settle()
    service.go_on()
    assert world.gate(number) == "success"
    assert len(world.cards(number)) == 1
    assert "0-lora-ddp" in world.card(number)
    assert service.failures == []
    print(world.card(number))
    print(world.standin.calls(), sum(world.standin.calls().values()))
    for c in world.checks(world.head(number)):
        print(c.name, c.status, c.conclusion, c.title, c.summary)
