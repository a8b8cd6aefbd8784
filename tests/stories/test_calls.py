"""What a pull request costs in requests."""

from tests.stories.conftest import Story
from tests.stories.recordings import RESUME, SMOKE

# Every look reads the tip of the base branch, which is one more than its own facts; the first sign is one
# write, every end asks when the job began and ended, and the clock asks once whether the run is still there.
MOST_CALLS = 55
# What the service asks by the clock, once for all pull requests together.
FOR_ALL = ("GET /app/hook/deliveries", "GET /repos/{owner}/{repo}/pulls")


def test_two_levels_and_three_updates_of_the_card_take_fifty_five_calls(story: Story) -> None:
    world, service = story.world, story.service
    number = story.open("src/saved/checkpoint.py")
    cards = [world.card(number)]
    # As long as such runs take; a look by the clock alone comes after ten minutes without an event.
    for recording, minutes in ((SMOKE, 4), (RESUME, 8)):
        service.go_on(20)
        (run,) = world.live_runs()
        world.start_run(run)
        service.settle()
        service.go_on(20)
        cards.append(world.card(number))
        for _ in range(minutes):
            service.go_on(60)
        story.finish(recording, run)
        service.go_on(20)
        cards.append(world.card(number))
    assert world.gate(number) == "success"
    assert "Pass" in cards[-1]
    first, *updates, last = dict.fromkeys(cards)
    assert len(updates) >= 3, (first[:80], last[:80])
    made = world.standin.calls()
    # Where GitHub keeps files is not part of its API and has no limit.
    calls = sum(count for route, count in made.items() if "_storage" not in route and route not in FOR_ALL)
    assert calls <= MOST_CALLS, sorted(made.items())
