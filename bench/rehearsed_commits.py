"""Rehearse real commits: those that were fixed later, and the last ones of a history, each beside its base.

python bench/rehearsed_commits.py --bridge DIR --megatron-lm DIR --verl DIR --out DIR [--head SHA] [--fixes FILE]
    [--last 40] [--lanes 4] [--workers 8] [--python PATH]

FILE has rows with a `fix`, as tests/fixtures/plan/fixed-later.json. Those that can be, and then the newest other fixes
of models and adapters until there are `--most-fixes`, are taken back at `--head` one at a time, and rehearsed with
`--head` as the base: what the commit that was fixed later would show today. The last commits that change the sources or
Megatron-LM are rehearsed each beside the one before, oldest first. So many rehearsals run at a time as there are lanes,
each with so many workers; a lane has a folder of its own, where the records of a commit are used again as the base of
the next one. What is done is not done again. The tables are `fixes.md` and `last.md`.

`--pack` makes the commits in `--out`/bridge.git alone, packed with all that they need and nothing of the history, to be
taken to another host as `--bridge` (with `--out` there).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
FIXES = ROOT / "tests" / "fixtures" / "plan" / "fixed-later.json"
READ = ("src", "3rdparty/Megatron-LM")
FIXED = ("src/megatron/bridge/models", "src/megatron/bridge/peft")
WHO = {f"GIT_{who}_{what}": "bench" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
DATES = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}


@dataclass(frozen=True)
class Pair:
    """A commit to rehearse beside its base, in the repository that this program makes."""

    series: str
    name: str
    subject: str
    base: str
    head: str


def git(folder: Path, *words: str, given: bytes = b"", index: Path | None = None) -> str | None:
    """What git says; None where it fails."""
    environ = {**os.environ, **WHO, **DATES, **({"GIT_INDEX_FILE": str(index)} if index else {})}
    argv = ["git", "-C", str(folder), *words]
    done = subprocess.run(argv, input=given, capture_output=True, env=environ, check=False)
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def pairs(source: Path, made: Path, options: argparse.Namespace) -> Iterator[Pair]:
    """The commits of both series, made again without the history."""
    subprocess.run(["git", "init", "--quiet", "--bare", str(made)], check=True)
    objects = (git(source, "rev-parse", "--path-format=absolute", "--git-path", "objects") or "").strip()
    (made / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    head = git(source, "rev-parse", f"{options.head}^{{commit}}") or sys.exit(f"--head {options.head}: no such commit")
    pin = commit(made, head, None, "base")
    listed = [(row["fix"], row["subject"]) for row in json.loads(options.fixes.read_text())]
    log = git(source, "log", "--first-parent", "--format=%H %s", "-i", "--grep=fix", head, "--", *FIXED) or ""
    others = (tuple(line.split(" ", 1)) for line in log.splitlines())
    found = 0
    for fix, subject in dict([*listed, *others]).items():
        if found < options.most_fixes and (taken := taken_back(source, made, head, fix)):
            found += 1
            yield Pair("fixes", fix[:9], subject, pin, commit(made, taken, pin, subject))
    log = git(source, "log", "--first-parent", "--format=%H %s", f"-{options.last + 1}", head, "--", *READ) or ""
    before = ""
    for line in reversed(log.splitlines()):
        name, _, subject = line.partition(" ")
        made_now = commit(made, name, before or None, subject)
        if before:
            yield Pair("last", name[:9], subject, before, made_now)
        before = made_now


def commit(made: Path, tree: str, parent: str | None, subject: str) -> str:
    """A commit with the tree, reduced to what is read, and a tag so that it stays."""
    index = made / "index"
    index.unlink(missing_ok=True)
    git(made, "read-tree", tree, index=index)
    others = [path for path in (git(made, "ls-tree", "--name-only", tree) or "").split() if path.startswith("docs")]
    if others:
        git(made, "rm", "-r", "-q", "--cached", *others, index=index)
    reduced = git(made, "write-tree", index=index)
    made_now = git(made, "commit-tree", str(reduced), *(("-p", parent) if parent else ()), "-m", subject)
    git(made, "update-ref", f"refs/tags/c-{made_now}", str(made_now))
    return str(made_now)


def taken_back(source: Path, made: Path, head: str, fix: str) -> str | None:
    """The tree of `head` without a fix; None where later commits changed its lines."""
    index = made / "index"
    index.unlink(missing_ok=True)
    argv = ["git", "-C", str(source), "diff", "--full-index", "--binary", fix, f"{fix}^1", "--", "src"]
    patch = subprocess.run(argv, capture_output=True, check=True).stdout
    git(made, "read-tree", head, index=index)
    if not patch or git(made, "apply", "--cached", "--3way", "-", given=patch, index=index) is None:
        return None
    return git(made, "write-tree", index=index)


def rehearse(options: argparse.Namespace, base: str, head: str, out: Path, workers: int) -> list[str]:
    """The command that rehearses a head beside its base."""
    argv = ["verl-e2e", "rehearse", "--repo", options.made, "--base", base, "--head", head, "--out", out]
    argv += ["--observe-functions", 0, "--workers", workers, "--megatron-lm", options.megatron_lm]
    argv += [word for pattern in options.only for word in ("--only", pattern)]
    argv += ["--python", options.python, *(("--verl", options.verl) if options.verl else ())]
    return list(map(str, argv))


def rehearsed(pair: Pair, options: argparse.Namespace, work: Path) -> dict[str, object]:
    """The document of a rehearsal, made in `work` or read; one with an `error` where there is none."""
    kept = options.out / pair.series / f"{pair.name}-{pair.base[:9]}-{pair.head[:9]}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        began = time.monotonic()
        argv = [*rehearse(options, pair.base, pair.head, work, options.workers), "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        found = json.loads(done.stdout) if done.stdout else {"error": done.stderr[-500:]}
        kept.write_text(json.dumps({**found, "seconds": round(time.monotonic() - began)}))
    return dict(json.loads(kept.read_text()))


def chunks(every: list[Pair], lanes: int) -> list[list[Pair]]:
    """What a lane does at a time: consecutive commits, each the base of the next; fixes one at a time."""
    last = [pair for pair in every if pair.series == "last"]
    long = -(-len(last) // max(1, lanes))
    return [last[at : at + long] for at in range(0, len(last), long or 1)] + [
        [pair] for pair in every if pair.series == "fixes"
    ]


def row(pair: Pair, found: dict[str, object]) -> str:
    """A row of the table: the verdict, what failed or differed first, and how much no cell entered."""
    if "error" in found:
        return row_of(pair, "none", " ".join(str(found["error"]).split())[-120:], "", "", found["seconds"])
    cells, first = found["cells"], ""
    assert isinstance(cells, list)
    for cell in cells:
        if cell["outcome"] == "Fail":
            error = cell["head_error"]
            first = error["type"] if error else ", ".join(item["oracle"] for item in cell["newly"])
        elif cell["outcome"] == "Changed" and cell["differences"]:
            first = f"{cell['differences'][0]['quantity']} {cell['differences'][0]['what']}"
        if first:
            first = f"{cell['cell']}: {first}"[:120]
            break
    entered = f"{len(found['unentered'])} of {found['changed']}"  # type: ignore[arg-type]
    ran = len(cells) - 1 - int(str(found["carried"]))
    return row_of(pair, found["outcome"], first, entered, ran, found["seconds"])


def row_of(pair: Pair, *columns: object) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(str(column).replace('|', '/') for column in (pair.name, pair.subject, *columns))} |"


def main() -> None:
    """Make the commits, rehearse them, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bridge", "megatron-lm", "verl", "out"):
        parser.add_argument(f"--{name}", type=Path, required=name != "verl")
    parser.add_argument("--head", default="HEAD")
    parser.add_argument("--fixes", type=Path, default=FIXES)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-rehearsal" / "bin" / "python")
    for name, usual in {"most-fixes": 40, "last": 40, "lanes": 1, "workers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--pack", action="store_true")
    parser.add_argument("--only", action="append", default=[], help="cells, as in `verl-e2e rehearse`: to try this out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.made, listed = options.out / "bridge.git", options.out / "pairs.json"
    if not listed.exists():
        found = [asdict(pair) for pair in pairs(options.bridge, options.made, options)]
        listed.write_text(json.dumps(found, indent=1))
    every = [Pair(**item) for item in json.loads(listed.read_text())]
    if options.pack:
        git(options.made, "pack-objects", "--all", "-q", "--depth=50", "--window=50", "objects/pack/pack")
        (options.made / "objects" / "info" / "alternates").unlink(missing_ok=True)
        return
    if not (options.out / "first" / "rehearsal.json").exists():
        base = every[0].base
        argv = rehearse(options, base, base, options.out / "first", options.lanes * options.workers)
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    free: Queue[Path] = Queue()
    for lane in range(options.lanes):
        work = options.out / "work" / str(lane)
        # The models are the same for all, and so is the base of the fixes.
        if not work.exists():
            for shared in ("models", "records", "trees"):
                shutil.copytree(options.out / "first" / shared, work / shared, copy_function=os.link, symlinks=True)
        free.put(work)

    def of_chunk(chunk: list[Pair]) -> list[tuple[Pair, str]]:
        work = free.get()
        try:
            return [(pair, row(pair, rehearsed(pair, options, work))) for pair in chunk]
        finally:
            free.put(work)

    with ThreadPoolExecutor(options.lanes) as lanes:
        rows = dict(item for found in lanes.map(of_chunk, chunks(every, options.lanes)) for item in found)
    for series in ("fixes", "last"):
        table = ["| commit | subject | verdict | first | unentered | cells that ran | seconds |", "|" + "---|" * 7]
        table += [rows[pair] for pair in every if pair.series == series]
        (options.out / f"{series}.md").write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
