"""An image that is named by its tag alone is told: whoever may push the tag chooses what runs on the hosts."""

from dataclasses import replace

from bot.config.policy import packaged_policy
from bot.core.planning.policy_lint import lint_image
from bot.core.rules import Image

POLICY = packaged_policy()


def test_an_image_by_its_tag_is_a_finding_and_one_by_its_digest_is_none() -> None:
    (told,) = lint_image(replace(POLICY, image=Image("verlai/verl", "vllm024.dev2")))
    assert "verlai/verl:vllm024.dev2 is pinned by its tag alone" in told.what
    assert told.fix.startswith("set image.digest")
    assert lint_image(replace(POLICY, image=Image("verlai/verl", "vllm024.dev2", f"sha256:{'a' * 64}"))) == ()
