"""What another program imports and uses of a package."""

from verl_e2e.core.reach.entries import uses_of

SOURCES = {
    "app/build.py": b"""
try:
    from lib.kit import Maker
except ImportError:
    raise
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from lib.kit import Hint


def build(cfg):
    maker = Maker.load(cfg, strict=True)
    provider = maker.to_provider()
    provider.finalize(1, *cfg)
    model = provider.give()
    model.train()
    return maker
""",
    "app/save.py": b"""
def save(self):
    from lib.kit.checkpoint import keep
    import lib.extra
    if hasattr(self.maker, "export"):
        self.maker.export(path="x", **self.more)
    keep(self.model, 2)
""",
    "app/broken.py": b"from lib.kit import (",
    "app/other.py": b"from library import thing\nthing.nothing()\n",
}


def test_imports_are_found_everywhere_but_for_a_type_checker() -> None:
    uses = uses_of(SOURCES, "lib", "here")
    found = {(entry.module, entry.attribute, entry.file, entry.guarded) for entry in uses.entries if entry.module}
    assert found == {
        ("lib.kit", "Maker", "app/build.py", True),
        ("lib.kit.checkpoint", "keep", "app/save.py", False),
        ("lib", None, "app/save.py", False),
        ("lib.extra", None, "app/save.py", False),
    }


def test_attributes_are_followed_over_two_calls_and_across_files() -> None:
    uses = uses_of(SOURCES, "lib", "here")
    attributes = {entry.attribute: entry.file for entry in uses.entries if not entry.module}
    assert attributes.keys() >= {"load", "to_provider", "finalize", "give", "export"}
    assert attributes["export"] == "app/save.py"
    assert not attributes.keys() & {"train", "nothing", "more"}


def test_calls_keep_what_a_signature_must_accept() -> None:
    calls = {call.name: call for call in uses_of(SOURCES, "lib", "here").calls}
    assert (calls["load"].positional, calls["load"].keywords, calls["load"].open_ended) == (1, ("strict",), False)
    assert calls["finalize"].open_ended
    assert calls["export"].open_ended
    assert (calls["keep"].method, calls["keep"].positional, calls["keep"].line) == (False, 2, 7)


def test_a_package_inside_another_may_be_imported_from_its_outer_one() -> None:
    sources = {
        "a.py": b"from lib import kit, other\n",
        "b.py": b"from lib.kit import Maker\nmaker = Maker()\n",
        "c.py": b"def build(maker: (\n",
        "d.py": b"maker.load(1)(2)\nmaker[0].go()\n",
        "e.py": b"x = 1\n",
    }
    uses = uses_of(sources, "lib.kit", "here")
    assert [(entry.module, entry.attribute) for entry in uses.entries if entry.module] == [
        ("lib.kit", None),
        ("lib.kit", "Maker"),
    ]
    assert {entry.attribute for entry in uses.entries if not entry.module} == {"load"}
