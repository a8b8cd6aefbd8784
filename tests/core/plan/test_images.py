"""In which image a job is ordered: the policy's pin wins, and a disagreement is named."""

import pytest

from verl_e2e.config import packaged_policy
from verl_e2e.core.model.jobs import SiteProfile
from verl_e2e.core.plan.outline import refused_image, site_in_image, with_image
from verl_e2e.core.plan.policy import Image

POLICY = packaged_policy()
PIN = f"sha256:{'a' * 64}"
TAG, PINNED = Image(name="verlai/verl", tag="t"), Image(name="verlai/verl", tag="t", digest=PIN)


@pytest.mark.parametrize(
    ("image", "site", "asked", "ordered", "text"),
    [
        (PINNED, "", "", f"verlai/verl@{PIN}", ""),
        (PINNED, "verlai/verl:t", "", f"verlai/verl@{PIN}", ""),
        (PINNED, f"verlai/verl@{PIN}", "", f"verlai/verl@{PIN}", ""),
        (PINNED, "verlai/verl:u", "", f"verlai/verl@{PIN}", "which was ordered; the site names verlai/verl:u."),
        (PINNED, "own/verl:t", "", f"verlai/verl@{PIN}", "which was ordered; the site names own/verl:t."),
        (PINNED, "own/verl:t", "verlai/verl:new", "verlai/verl:new", ""),
        (TAG, "", "", "verlai/verl:t", ""),
        (TAG, "verlai/verl:t", "", "verlai/verl:t", ""),
        (TAG, "own/verl:t", "", "own/verl:t", "own/verl:t, which was ordered; the policy names verlai/verl:t"),
        (TAG, "own/verl:t", "verlai/verl:new", "verlai/verl:new", ""),
    ],
)
def test_the_image_of_a_job(image: Image, site: str, asked: str, ordered: str, text: str) -> None:
    made = site_in_image(SiteProfile(name="s", image=site, limitations=("Cold.",)), image, asked)
    assert made.image == ordered
    assert made.limitations[0] == "Cold."
    assert [row for row in made.limitations[1:] if text in row] == list(made.limitations[1:])
    assert bool(made.limitations[1:]) is bool(text)


def test_a_setting_of_the_service_is_the_sites() -> None:
    site = SiteProfile(name="s", image="own/verl:t")
    assert with_image(site, "").image == "own/verl:t"
    assert site_in_image(with_image(site, "other/verl:t"), PINNED).image == f"verlai/verl@{PIN}"


@pytest.mark.parametrize(
    ("image", "refused"),
    [
        ("{own}", False),
        ("{own}:new", False),
        ("{own}@sha256:1", False),
        ("{own}:new@sha256:1", False),
        ("{own}2:new", True),
        ("other/{own}:new", True),
        ("", True),
    ],
)
def test_only_an_image_of_the_policys_name_may_be_named(image: str, refused: bool) -> None:
    named = image.format(own=POLICY.image.name)
    reason = f"`image={named}`: only images of {POLICY.image.name}, the policy's, may be named"
    assert refused_image(named, POLICY) == (reason if refused else "")
