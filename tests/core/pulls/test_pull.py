"""Pull requests and merge groups by their addresses and references."""

import pytest

from tests.core.pulls.entries import HEAD, NOW, OTHER
from verl_e2e.core.pulls.forge import (
    BadAddressError,
    Branch,
    MergeGroup,
    PullAddress,
    PullRef,
    Reference,
    api_of,
    read_address,
    read_reference,
    reference_text,
    web_of,
)


@pytest.mark.parametrize(
    "reference",
    (
        PullRef("octo/bridge", 7),
        MergeGroup("octo/bridge", "main", OTHER, HEAD, (7, 8), NOW, destroyed=True),
        Branch("octo/bridge", "r1@x#2"),
    ),
)
def test_a_reference_is_read_from_its_text(reference: Reference) -> None:
    assert read_reference(reference_text(reference)) == reference


@pytest.mark.parametrize(
    "text", ("", "octo/bridge", "octo/bridge#", "#7", "octo/bridge#seven", "{}", "octo/bridge@", "@main")
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a reference|validation error"):
        read_reference(text)


REF = PullRef("NVIDIA-NeMo/Megatron-Bridge", 1234)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/1234", PullAddress(REF, "https://github.com")),
        (" https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/1234/files?w=1#diff-1 ", PullAddress(REF, "https://github.com")),
        ("http://127.0.0.1:8000/NVIDIA-NeMo/Megatron-Bridge/pull/1234/", PullAddress(REF, "http://127.0.0.1:8000")),
        ("NVIDIA-NeMo/Megatron-Bridge#1234", PullAddress(REF)),
        ("o/.github#7", PullAddress(PullRef("o/.github", 7))),
    ],
)  # fmt: skip
def test_an_address_names_repository_number_and_site(text: str, address: PullAddress) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "1234", "#12", "o/r", "o/r#", "o/r#0", "o/r#x", "o/..#1", "-o/r#1", "o/r/pull/1", "https://github.com/o/r",
     "https://github.com/o/r/issues/1", "https://github.com/o/r/pull/1x", "https://u:p@github.com/o/r/pull/1",
     "ftp://github.com/o/r/pull/1", "o/r#9999999999", "https://github.com/o/r/pull/1 --x"],
)  # fmt: skip
def test_what_names_none_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BadAddressError, match=r"OWNER/REPO#N"):
        read_address(text)


@pytest.mark.parametrize(
    ("web", "api"),
    [
        ("", "https://api.github.com"),
        ("https://github.com", "https://api.github.com"),
        ("http://www.GitHub.com", "https://api.github.com"),
        ("https://ghe.example", "https://ghe.example/api/v3"),
        ("https://github.com.evil.example", "https://github.com.evil.example/api/v3"),
    ],
)
def test_a_site_has_an_api(web: str, api: str) -> None:
    assert api_of(web) == api
    assert web_of(api) in (web, "https://github.com")
