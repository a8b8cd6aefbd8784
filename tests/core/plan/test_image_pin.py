"""An image that is named by its tag alone is reported: who may push the tag chooses what runs on the hosts."""

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.lint import lint_image
from verl_e2e.core.plan.policy import Image, Policy


def pinned(digest: str = "") -> Policy:
    image = Image(name="verlai/verl", tag="vllm024.dev2", digest=digest)
    return packaged_policy().model_copy(update={"image": image})


def test_an_image_by_its_tag_is_a_finding_and_one_by_its_digest_is_none() -> None:
    (message,) = lint_image(pinned())
    assert "verlai/verl:vllm024.dev2 is pinned by its tag alone" in message.what
    assert message.what.endswith("no verdict of another pull request is reused")
    assert message.fix.startswith("set image.digest")
    assert lint_image(pinned(f"sha256:{'a' * 64}")) == ()
