"""Faults planted in real commits of Megatron-Bridge: does the watch of a branch name each, and with how many runs.

python bench/watched_history.py --bridge DIR [--head SHA] [--count 60]

The commits are those of the first-parent line up to the head, each with its own tree, author and first line; from one
of them on, every tree has a line more that raises, in a function that verl calls. Planner, search, queue, ledger and
judgement are production's. The run itself is a stand-in: it leaves the facts of a recorded healthy run where its commit
does not hold the line, and those of a run that ended in Bridge's code where it does.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes.app import REPOSITORY, App, fails, passes  # noqa: E402  (the checkout that this file lies in)
from tests.fakes.github_standin.repository import BareRepository  # noqa: E402
from verl_e2e.adapters.files.caches import SummaryCache  # noqa: E402
from verl_e2e.app.analysis import DirectAnalysis  # noqa: E402
from verl_e2e.config.maps import packaged_uses  # noqa: E402
from verl_e2e.config.policy import POLICY_PATH  # noqa: E402
from verl_e2e.core.model.change import HistoryCommit  # noqa: E402
from verl_e2e.core.pulls.forge import Branch  # noqa: E402
from verl_e2e.git.repository import GitRepository  # noqa: E402

FOLDER = "src/megatron/bridge"
# The files, each with the start of the function or class whose first `return` is not reached any more.
PLANTS = {
    f"{FOLDER}/models/conversion/auto_bridge.py": "def load_hf_weights(",
    f"{FOLDER}/models/conversion/param_mapping.py": "class QKVMapping(",
    f"{FOLDER}/models/conversion/model_bridge.py": "def load_weights_hf_to_megatron(",
    f"{FOLDER}/models/conversion/peft_bridge.py": "def stream_adapter_weights_megatron_to_hf(",
    f"{FOLDER}/peft/lora.py": "def transform(",
}
FAULT = '        raise RuntimeError("planted")\n'
BEFORE = "        return "
DAY_S = 25 * 3600.0


def planted(git: BareRepository, line: Sequence[HistoryCommit], first: int, path: str) -> list[str]:
    """The commits of a line, oldest first, with a fault in a file from one of them on; their ids."""
    made: list[str] = []
    for place, commit in enumerate(line):
        parent = made[-1] if made else commit.parent
        edits: dict[str, bytes] = {}
        if place >= first:
            text = git.git("show", f"{commit.sha}:{path}").decode()
            before, start, rest = text.partition(PLANTS[path])
            edits[path] = (before + start + rest.replace(BEFORE, FAULT + BEFORE, 1)).encode()
        tree = git.commit("refs/heads/planted", edits, "planted", (commit.sha,)) if edits else commit.sha
        made.append(git.commit_tree(git.text("rev-parse", f"{tree}^{{tree}}"), (parent,), commit.subject))
    return made


def watched(git: BareRepository, made: Sequence[str], path: str, cache: Path, *, confirm: bool) -> tuple[App, int]:
    """What a watch of the line did, which saw its first commit pass; and how often a commit was run since."""
    app, repository = App(), GitRepository(git.path)
    policy = (ROOT / "bot" / "verl_e2e" / "policy" / "megatron-bridge.yml").read_text()
    policy = policy.replace("require_bridge_checks: true", "require_bridge_checks: false")
    policy += f"schedule: {{levels: [0], gpu_minutes: 9999, confirm: {str(confirm).lower()}}}\n"
    for commit in made:
        app.hub.files[commit, POLICY_PATH] = policy.encode()
    analysis = DirectAnalysis(lambda _: repository, packaged_uses(), SummaryCache(cache), app.folders)
    app.handlers = app.connect(analysis=analysis, changes=lambda _: repository, history=lambda _: repository)
    runs = 0
    for tip in (made[0], made[-1]):
        app.hub.tips["main"] = tip
        while (wait_s := app.handlers.reconciler.reconcile(Branch(REPOSITORY, "main"))) is not None and wait_s < 3600:
            for run in app.backend.live():
                assert run.job is not None
                broken = FAULT in git.git("show", f"{run.head_sha}:{path}").decode()
                app.backend.finish(run, fails if broken else passes)
                runs += tip == made[-1]
            app.clock.pass_s(60)
        app.clock.pass_s(DAY_S)
    return app, runs


def main() -> None:
    """Plant the faults one after the other, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridge", type=Path, required=True)
    parser.add_argument("--head", default="HEAD")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        git = BareRepository(Path(folder) / "bridge.git")
        objects = GitRepository(options.bridge).objects_folder().resolve()
        (git.path / "objects" / "info" / "alternates").write_text(f"{objects}\n")
        line = GitRepository(options.bridge).first_parents(options.head, options.count)[::-1]
        print("| fault in | commit | commits that can matter | runs of the search | most | with confirmation | named |")
        print("|---|---|---|---|---|---|---|")
        for number, path in enumerate(PLANTS):
            first = 3 + number * (len(line) - 4) // (len(PLANTS) - 1)
            made, began = planted(git, line, first, path), time.monotonic()
            cells = []
            for confirm in (False, True):
                app, runs = watched(git, made, path, options.cache or Path(folder), confirm=confirm)
                (issue,) = app.hub.issues.values()
                cells.append((runs - 1, f"A commit broke it: `{made[first]}`" in issue.body, issue.body))
            (plain, named, body), (confirmed, named_again, _) = cells
            count = int(body.split(" of which the plan asks")[0].rsplit(" ", 1)[1])
            took = f"{time.monotonic() - began:.0f} s"
            most = f"{1 + math.log2(count or len(line)):.1f}"
            answer = "yes" if named and named_again else "NO"
            subject = f"{first + 1} of {len(line)}"
            print(f"| {path.removeprefix(FOLDER)} | {subject} | {count} | {plain} | {most} | {confirmed} | {answer} |")
            print(f"{path}: {took}", file=sys.stderr)
            if number == 0:
                print(body, file=sys.stderr)


if __name__ == "__main__":
    main()
