"""The declared patches that fit the commits of a job, with the lines that they replace."""

import hashlib

from tests.fakes.trees import FakeTrees
from verl_e2e.app.required_jobs import fit_patches
from verl_e2e.core.model.jobs import Patch, Substitution

OLD = "import os\nX = 1\n"


def patch(name: str, file: str, text: str = OLD) -> Patch:
    digests = [hashlib.sha256(content.encode()).hexdigest() for content in (text, text.replace("X = 1", "X = 2"))]
    change = (Substitution(old="X = 1", new="X = 2"),)
    return Patch(
        name=name, repository="bridge", file=file, substitutions=change, before=digests[0], after=digests[1], reason="r"
    )


def test_each_patch_that_fits_has_its_lines() -> None:
    trees = FakeTrees({"head": {"a.py": OLD, "b.py": OLD + "# more\n"}})
    fits, other, gone = patch("one", "a.py"), patch("one", "b.py"), patch("one", "c.py")
    choice = fit_patches([fits, other, gone], {"bridge": (trees, "head")})
    assert (choice.chosen, dict(choice.lines)) == ((fits,), {fits: ((2, 2),)})
    assert len(choice.left_out) == 2
