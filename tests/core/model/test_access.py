"""Who may be given which capability."""

import pytest
from pydantic import ValidationError

from verl_e2e.core.model.access import Access, Capability, Grant

HELD_BACK = (Capability.RUN, Capability.APPROVE, Capability.OVERRIDE, Capability.QUEUE)


@pytest.mark.parametrize(
    "grant", [Grant(anyone=True), Grant(roles=("read",)), Grant(custom_roles=("none",))], ids=["anyone", "read", "none"]
)
@pytest.mark.parametrize("capability", HELD_BACK)
def test_what_costs_or_decides_is_not_granted_to_everyone(capability: Capability, grant: Grant) -> None:
    with pytest.raises(ValidationError, match=f"{capability} is granted to everyone"):
        Access.model_validate({capability.value: grant})


@pytest.mark.parametrize("capability", [item for item in HELD_BACK if item is not Capability.RUN])
def test_an_author_decides_nothing_about_the_own_change(capability: Capability) -> None:
    with pytest.raises(ValidationError, match=f"{capability} is granted to authors"):
        Access.model_validate({capability.value: Grant(author=True)})
