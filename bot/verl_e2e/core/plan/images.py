"""The image that a job is ordered in: what the policy pins, else what the site names, else the policy's tag."""

from verl_e2e.core.model.jobs import SiteProfile
from verl_e2e.core.plan.policy import Image, Policy


def site_in_image(site: SiteProfile, image: Image, asked: str = "") -> SiteProfile:
    """The site with the image that the job is ordered in; where policy and site disagree, a limitation says so.

    `asked` is an image that a person named for this job, which wins over both.
    """
    if asked:
        return site.model_copy(update={"image": asked})
    own, tagged = str(image), f"{image.name}:{image.tag}"
    if not site.image or site.image == own:
        return site.model_copy(update={"image": own})
    if not image.digest:
        if site.image == tagged:
            return site
        text = f"The site names the image {site.image}, which was ordered; the policy names {own}, without a digest."
        return site.model_copy(update={"limitations": (*site.limitations, text)})
    text = f"The policy pins the image {own}, which was ordered; the site names {site.image}."
    differs = (text,) if site.image != tagged else ()
    return site.model_copy(update={"image": own, "limitations": (*site.limitations, *differs)})


def with_image(site: SiteProfile, image: str) -> SiteProfile:
    """The site with the image that a setting of the service names; unchanged for an empty one."""
    return site.model_copy(update={"image": image}) if image else site


def refused_image(image: str, policy: Policy) -> str:
    """Why an image may not be named, empty when it may."""
    own = policy.image.name
    if image.partition("@")[0].partition(":")[0] == own:
        return ""
    return f"`image={image}`: only images of {own}, the policy's, may be named"
