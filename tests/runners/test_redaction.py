"""What the runner knows of its host, and that none of it passes the redactor."""

import socket
from pathlib import Path

import psutil
import pytest

from verl_e2e_runner.folder.recorder import host_redactor

SECRET = "tuna-Sandwich!99"


def test_places_are_known_by_name_and_by_what_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "real" / "verl").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    names = host_redactor({"HOME": str(tmp_path)}, {"$VERL": tmp_path / "link" / "verl"})
    for text in (f"{tmp_path}/link/verl/x.py", f"{tmp_path}/real/verl/x.py"):
        assert names.redact_text(text) == "$VERL/x.py"
    assert names.redact_text(f"{tmp_path}/other /tmp/ray") == "$HOME/other $TMPDIR/ray"


def test_secret_variables_are_known_by_their_values() -> None:
    names = host_redactor({"SITE_API_KEY": SECRET, "GITHUB_SHA": "a1b2c3d4e5", "EOS_TOKEN": "end-of-text"}, {})
    assert names.redact_text(f"{SECRET} a1b2c3d4e5 end-of-text") == "<redacted:SITE_API_KEY> a1b2c3d4e5 end-of-text"


def test_the_host_has_one_placeholder_with_and_without_its_domain(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.1\nsearch cluster.example.org. example.org\n")
    names = host_redactor({"HOSTNAME": "gpu-17"}, {}, resolver=resolver)
    one, short, other = names.redact_text("gpu-17.cluster.example.org gpu-17 gpu-18").split()
    assert one == short
    assert one.startswith("host-")
    assert other == "gpu-18"


def test_a_host_named_in_full_is_known_by_its_short_name_too(tmp_path: Path) -> None:
    names = host_redactor({"SLURMD_NODENAME": "node-9.example.org"}, {}, resolver=tmp_path / "none")
    full, short = names.redact_text("node-9.example.org node-9").split()
    assert full == short
    assert short.startswith("host-")


def test_this_machine_passes_nothing_of_itself() -> None:
    names = host_redactor({}, {})
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    for value in addresses:
        assert value not in names.redact_text(f"at {value}:6379")
    if len(socket.gethostname()) > 10:
        assert socket.gethostname() not in names.redact_text(f"on {socket.gethostname()} now")
    assert names.redact_text("127.0.0.1 localhost") == "127.0.0.1 localhost"


@pytest.mark.parametrize("home", ["/", ""])
def test_an_odd_home_does_not_swallow_every_path(home: str) -> None:
    assert host_redactor({"HOME": home}, {}).redact_text("/usr/lib/x") == "/usr/lib/x"
