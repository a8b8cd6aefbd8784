"""Options of a command that the policy or verl's repository refuses: answered to their author, never run."""

from collections.abc import Mapping

from verl_e2e.app.services import AppRooms
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Policy
from verl_e2e.ports import ForgeError


def refused_image(image: str, policy: Policy) -> str:
    """Why an image may not be named, empty when it may."""
    own = policy.image.name
    if image.partition("@")[0].partition(":")[0] == own:
        return ""
    return f"`image={image}`: only images of {own}, the policy's, may be named"


def refused_option(options: Mapping[str, str], policy: Policy, rooms: AppRooms) -> str:
    """Why a command may not be kept with its options, empty when it may or when no one can say now."""
    image, ref = options.get("image", ""), options.get("verl_ref", "")
    if image and (refused := refused_image(image, policy)):
        return refused
    if not ref:
        return ""
    try:
        rooms.verl(ref).resolve(ref)
    except (UserError, ForgeError) as error:
        # What may pass is asked again when the job is made.
        passing = isinstance(error, ForgeError) and error.passing
        return "" if passing else f"`verl_ref={ref}`: verl's repository has no such commit, branch or tag"
    return ""
