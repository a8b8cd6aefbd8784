"""A folder's digest is of one set of files: any change gives another one."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.pulls.forge import FolderFile, folder_digest

FILES = st.lists(
    st.builds(FolderFile, st.text(max_size=5), st.integers(0, 9), st.sampled_from(["a" * 64, "b" * 64])), max_size=4
)


@given(FILES, st.randoms(use_true_random=False))
def test_the_order_of_reading_does_not_matter(files: list[FolderFile], chosen: "st.randoms") -> None:  # type: ignore[valid-type]
    other = list(files)
    chosen.shuffle(other)  # type: ignore[attr-defined]
    assert folder_digest(other) == folder_digest(files)


@given(FILES, FILES)
def test_other_files_have_another_digest(files: list[FolderFile], others: list[FolderFile]) -> None:
    same = sorted(map(repr, files)) == sorted(map(repr, others))
    assert (folder_digest(files) == folder_digest(others)) is same


def test_a_name_cannot_pass_for_another_file() -> None:
    row = FolderFile("a", 1, "a" * 64)
    assert folder_digest([row, replace(row, path="b")]) != folder_digest([replace(row, path=f"a 1 {'a' * 64}\n1 b")])
    assert len(folder_digest([])) == 64
    # A name that is not text in any encoding.
    assert folder_digest([replace(row, path="\udc80")]) != folder_digest([row])
