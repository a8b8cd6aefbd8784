"""Every command on every page does what the page says: it is typed here, or listed below with the reason why not.

A command that needs what no test machine has meets a stand-in (`tests.pages.place`). Words in capitals are filled in by
WORDS. A command that fails, and is in no table, fails here: that is how a new one is noticed.
"""

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import click
import pytest

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.pages.collecting import Shown, pull_request_commands, shell_commands
from tests.pages.place import Place, place, set_up
from tests.runners.world import git
from verl_e2e.cli import cli
from verl_e2e.core.pulls.commands import CommandLine, Mistake, parse_commands

# What a page leaves open, and what lies in the folder for it; tried in this order. Names in braces are the place's.
WORDS = (
    # Sentences that leave out what every call of the verb needs.
    (r"^verl-e2e plan --policy FILE$", "verl-e2e plan --repo DIR --base SHA --head SHA --policy FILE"),
    (r"^verl-e2e plan --rehearsal DIR$", "verl-e2e plan --repo DIR --base SHA --head SHA --rehearsal rehearsed"),
    (r"^verl-e2e check (--baseline-repeats) N$", r"verl-e2e check --repo DIR --base SHA --verl DIR --out DIR \1 2"),
    (r"^verl-e2e run (--baseline COMMIT)$", r"verl-e2e run --job JOB.json --out DIR \1"),
    (r"(?<=maps add )(RUN\.\.\.|out/jobs/0-lora-ddp)", "recorded/jobs/0-lora-ddp"),
    (r"PATH\[:SYMBOL\]\.\.\.", "src/megatron/bridge/peft/lora.py:LoRA.transform"),
    (r"\[OWNER/REPO\]\.\.\.|OWNER/REPO(?=$| )|NVIDIA-NeMo/Megatron-Bridge(?=$| )", "octo/bridge"),
    (r"PULL-REQUEST|\bPULL\b|https://github\.com/\S+/pull/\w+", "{PULL}"),
    (r"(?<=--repo )DIR", "Megatron-Bridge"),
    (r"(?<=--verl )(DIR|VERL)", "verl"),
    (r"(?<=judge )DIR|(?<=card )DIR", "out/jobs/0-lora-ddp"),
    (r"(?<=watch )RUN|(?<=logs )RUN", "out/jobs/5-signal"),
    (r"diff DIR DIR", "diff first/jobs/2-dense second/jobs/2-dense"),
    # `judge` writes the report.
    (r"verl-e2e open DIR", "verl-e2e judge out/jobs/5-signal && BROWSER=true verl-e2e open out/jobs/5-signal"),
    (r"(?<=reproduce )CARD\\?\|DIR", "out/jobs/0-lora-ddp"),
    (r"parity RUN REFERENCE", "parity first/jobs/2-dense second/jobs/2-dense"),
    (r"(?<=--out )(DIR|out|results)\b", "{FRESH}"),
    (r"(?<=--base )(SHA|REV)", "origin/main"),
    (r"(?<=--head )(SHA|REV)", "HEAD"),
    (r"(?<=--verl-ref )(SHA|REV|COMMIT)", "HEAD"),
    (r"(?<=--junit-commit )SHA", "{HEAD}"),
    (r"(?<=--junit )FILE", "junit.xml"),
    (r"(?<=--policy )FILE|(?<=policy check )FILE", "verl-e2e.yml"),
    (r"(?<=--history )N\b", "1"),
    (r"(?<=--baseline )COMMIT", "origin/main"),
    (r"JOB\.json", "job.json"),
    (r"(?m)LOG(\.\.\.)?(?=$| )", "train.log"),
    (r"> bot/verl_e2e/policy/verl-imports\.json", "> {FRESH}"),
    # `...` stands for the arguments of a check, and for the settings of the service.
    (r"check \.\.\. ", "check --repo Megatron-Bridge --base origin/main --verl verl --out {FRESH} "),
    # It serves until it is ended.
    (r"(?m)verl-e2e serve$", "timeout --preserve-status --signal TERM 8 verl-e2e serve"),
    # The packages of the test environment stand in for those of the index.
    (
        r"(\S+)/bin/python -m pip install --no-deps --require-hashes .*",
        r'echo "$PACKAGES" > "$(echo \1/lib/python3*/site-packages)/tests.pth"',
    ),
    (r"git clone https://github\.com/OWNER/verl-e2e", "git clone --quiet {CHECKOUT}"),
    (r"PATH/TO/verl-e2e", "{CHECKOUT}"),
    (r"(?m)^make (--jobs=\d+ )?test\b.*$", "make --dry-run test"),
    (r"COMMIT:FILE", "HEAD:README.md"),
)

# By a pattern of the command as it stands: why it is not typed here. It is parsed all the same.
NOT_TYPED = {
    r"^\(?(umask 077; )?curl |(?m:^ssh )": "talks to the network",
    r"-m pip install '(ray|verl-e2e)\[": "downloads an extra",
    r"^(gh|\./config\.sh) ": "talks to GitHub, and changes it",
    r"^make (--jobs=\d+ )?(test|coverage|check|dist|docs|format|lock|bench)\b": "takes long, or asks the index",
    r"^make (lint|types|clean|architecture)\b": "takes long",
    r"^(umask 077\n)?sqlite3 ": "a program that only the host of a service has",
    r"^([A-Z_]+=\S+ )?(docker|enroot|helm|kubectl|podman|ray|nvidia-smi|nft) ": "acts on a host or cluster",
    r"^install .*/etc/systemd/": "installs a unit on a host; tests/project/test_deploy.py reads it",
    r"^(srun|sbatch|squeue|scontrol|systemctl|apt|apt-get|nginx|useradd|buildah) ": "acts on a host or cluster",
    r"^(umask 077\n)?(pg_dump|createdb|pg_restore) ": "acts on a database server; tests/project/test_deploy.py does it",
    r"(?m)^export VERL_E2E_BACKEND=(slurm|ray)$": "asks a cluster, and names its folders",
    r"^python3? -c .*\b(megatron|torch|verl|vllm)\b": "needs the packages of a GPU host; it is parsed",
    r"^bash -x$|^gh attestation verify$|^verl-e2e / (ledger|rehearsal)$|^zstd -dc$": "a name in a sentence",
    r"^python (bench|tools)/": "measures for minutes, or writes pages; it is compiled",
    r"^verl-e2e policy settings ": "composes verl's own configuration, which the small verl of the pages does not have",
    r"^make rehearsal-env\b|^verl-e2e rehearse ": "needs PyTorch; tests of the marker rehearsal drive it",
    r"^verl-e2e init --mode app$": "waits for a browser; tests/e2e/test_init.py presses the button",
    r"^git switch --orphan ": "pushes a branch to GitHub",
    r"^python3 -m verl\.trainer\.main_ppo$": "a name in a sentence",
}

# What a command ends with when it does what the page says: other than 0, and why.
ENDS_WITH = (
    (r"^verl-e2e (check|run) (?!.*--(dry-run|prepare))", 4, "this machine has no GPU: Blocked, with the plan"),
    (r"^verl-e2e action ", 2, "it is a step of a workflow, and says so outside one"),
)

# These need no argument, so they are typed wherever they stand.
COMPLETE = frozenset({"verl-e2e demo", "verl-e2e policy schema", "verl-e2e serve --check", "verl-e2e --help"})

TUTORIAL = "docs/tutorial.md"

_FRESH = count()


def _reason(text: str) -> str:
    """Why a command is not typed, empty for one that is."""
    return next((reason for pattern, reason in NOT_TYPED.items() if re.search(pattern, text)), "")


def _names_a_verb(text: str) -> bool:
    """Whether a sentence only names a verb and options, without the arguments that it needs."""
    words = text.split()
    if words.pop(0) != "verl-e2e" or text in COMPLETE:
        return False
    command: click.Command = cli
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    return all(word.startswith("--") for word in words)


def _variants(text: str) -> Iterator[str]:
    """A synopsis without its optional words, and with all of them."""
    yield re.sub(r" \[[^\]]*\]", "", text)
    if re.search(r" \[[^\]]*\]", text):
        yield re.sub(r" \[([^\]]*)\]", r" \1", text)


def _filled(text: str, here: Place) -> str:
    for pattern, words in WORDS:
        text = re.sub(pattern, words, text)
    names = here.words | {"CHECKOUT": str(here.checkout)}
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _unique() -> list[Shown]:
    """Each text once, at its first place."""
    found: dict[str, Shown] = {}
    for shown in shell_commands():
        if shown.place.startswith(TUTORIAL) and shown.block:
            # Typed as a whole.
            continue
        text = shown.text if shown.text.startswith(("verl-e2e", "/")) or shown.block else _whole(shown.text)
        found.setdefault(text, Shown(shown.place, text, shown.block))
    return list(found.values())


def _whole(text: str) -> str:
    """A verb with options is short for the command with both."""
    return f"verl-e2e {text}" if text.split()[0] in cli.commands else text


SHOWN = _unique()
TYPED = [shown for shown in SHOWN if not _reason(shown.text) and not _names_a_verb(shown.text)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("pages")) as made:
        yield made


def _cwd(text: str, here: Place) -> Path:
    if text.startswith(("git switch", "sed -i")):
        return here.clone
    of_checkout = r"(?m)^(make |pipx |\. \.venv/|\.venv/|git show )|docs/app-manifest\.json"
    return here.checkout if re.search(of_checkout, text) else here.folder


def _cases() -> Iterator[object]:
    """What is typed; a check or a run has the host to itself, as every run."""
    for shown in TYPED:
        marks = [pytest.mark.host] if re.search(r"verl-e2e (check|run) ", shown.text) else []
        yield pytest.param(shown, id=shown.place, marks=marks)


@pytest.mark.parametrize("shown", list(_cases()))
def test_a_command_of_a_page_does_its_work(shown: Shown, here: Place) -> None:
    filled = _filled(shown.text, here)
    for text in (filled,) if "<<" in filled else _variants(filled):
        if (_cwd(shown.text, here), text) in here.typed:
            # An earlier page has the same command.
            continue
        script = re.sub(r"\{FRESH\}", lambda _: f"made-{next(_FRESH)}", text)
        cwd = _cwd(shown.text, here)
        # Lines of a page are typed one after the other; each may end as it should.
        lines = script.splitlines() if shown.block and "<<" not in script and "\\\n" not in script else [script]
        done = here.type(_guarded(lines), cwd)
        here.typed.add((cwd, text))
        assert done.returncode == 0, f"{shown.place}: {script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_the_tutorial_works_as_it_stands_in_a_fresh_clone(here: Place, tmp_path: Path) -> None:
    """In one shell in which `verl-e2e` is no command before the tutorial makes it one."""
    blocks = [shown.text for shown in shell_commands() if shown.place.startswith(TUTORIAL) and shown.block]
    assert len(blocks) > 6
    git(tmp_path, "clone", "--quiet", str(here.checkout), "fresh")
    set_up(tmp_path / "fresh")
    # The pull request of the stand-in is the only word that is not the page's.
    text = "\n".join(blocks).replace("https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5232", here.words["PULL"])
    bare = {**here.environment, "PATH": os.defpath, "HOME": str(tmp_path)}
    assert subprocess.run(("bash", "-c", "command -v verl-e2e"), env=bare, check=False).returncode != 0
    done = subprocess.run(
        ("bash", "-euo", "pipefail", "-c", text),
        cwd=tmp_path / "fresh",
        env=bare,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    order = (
        "Plan for ",
        "0-lora-ddp: Pass - ",
        "0-lora-ddp: Blocked - ",
        "exit code 4",
        "fail in peft",
        "job.bridge",
    )
    places = [done.stdout.index(words) for words in order]
    assert places == sorted(places)


def _guarded(lines: list[str]) -> str:
    """The lines as one script that ends where one of them does not end with what it should."""
    guarded = []
    for line in lines:
        wanted = next((code for pattern, code, _ in ENDS_WITH if re.search(pattern, line)), 0)
        guarded.append(line if wanted == 0 else f"{line} || [ $? -eq {wanted} ]")
    return "\n".join(guarded)


@pytest.mark.parametrize("shown", [shown for shown in SHOWN if _names_a_verb(shown.text)], ids=lambda shown: shown.text)
def test_a_verb_that_a_sentence_names_is_one_and_has_the_options(shown: Shown) -> None:
    _, *words = shown.text.split()
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known | {"--help"}, shown.place
    assert [word for word in words if not word.startswith("-")] == []


@pytest.mark.parametrize("shown", [shown for shown in SHOWN if _reason(shown.text)], ids=lambda shown: shown.place)
def test_a_command_that_is_not_typed_can_be_parsed(shown: Shown) -> None:
    done = subprocess.run(("bash", "-n", "-c", shown.text), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in shlex.split(shown.text, comments=True):
        if word.endswith(".py"):
            ast.parse((ROOT / word).read_text())
    if shown.text.startswith("make "):
        target = next(word for word in shown.text.split()[1:] if not word.startswith("-"))
        assert re.search(rf"(?m)^{target}:", (ROOT / "Makefile").read_text())
    if module := re.match(r"python -m (\S+)", shown.text):
        ast.parse((ROOT / f"{module[1].replace('.', '/')}.py").read_text())


def test_no_reason_stands_for_a_command_that_no_page_has() -> None:
    unused = [pattern for pattern in NOT_TYPED if not any(re.search(pattern, shown.text) for shown in SHOWN)]
    assert unused == []
    unused = [pattern for pattern, _ in WORDS if not any(re.search(pattern, shown.text) for shown in SHOWN)]
    assert unused == []


OPEN_WORDS = (
    (r"\[[^\]]*\]", ""),
    ("FULL-SHA", "a" * 40),
    (r"\bLEVEL\b|levelN", "4"),
    ("REASON", "for a reason"),
    ("GPU-MINUTES", "120"),
    (r"high\|normal\|low", "high"),
    (r"\bPATH\b", "src/megatron/bridge/peft/lora.py"),
)


@pytest.mark.parametrize("shown", pull_request_commands(), ids=lambda shown: f"{shown.place} {shown.text}")
def test_a_comment_of_a_page_is_a_command(shown: Shown) -> None:
    if shown.text == "/verl-e2e" or ".." in shown.text:
        # The name alone, or a row of the table that is rendered from the commands themselves.
        return
    text = shown.text.replace("levelN", "level4")
    for pattern, words in OPEN_WORDS:
        text = re.sub(pattern, words, text)
    assert not [found for found in parse_commands((CommandLine(0, text.strip()),)) if isinstance(found, Mistake)], shown
