"""The command `verl-e2e`: the entry point that reads argv, environment and clock, and maps outcomes to exit codes.

Exit codes: 0 done, 1 judged Fail, 2 the user's mistake, 3 a fault of ours, 4 judged Blocked, 130 interrupted,
141 the reader of the output went away.
1 and 4 come from `run`, `judge` and `check` only. Rooms are imported by the verb that needs them.
"""

import errno
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bot import __version__

if TYPE_CHECKING:
    from bot.core.card import Card, NotRun
    from bot.core.verdict import Verdict
    from bot.wiring import PlanOrder

EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 3
EXIT_BLOCKED = 4
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141

# What the system refuses because of where the user points, with what to do about it.
_MENDS = {
    errno.ENOSPC: "free space on that disk, or choose a folder on another one",
    errno.EDQUOT: "free space within your quota, or choose a folder on another disk",
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.EACCES: "make it accessible, or choose another place",
    errno.EPERM: "make it accessible, or choose another place",
    errno.ENOTDIR: "give a path whose parents are folders",
    errno.EEXIST: "give a path that does not exist yet",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "give a path without circular links",
}

_EXISTING = click.Path(exists=True, path_type=Path)


class _Place(click.Path):
    """A path; an empty one is a variable that was not set, and not the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or a usage error."""
        if value == "":
            self.fail("the path is empty; name a folder", param, ctx)
        return super().convert(value, param, ctx)


_FOLDER = _Place(path_type=Path)


class _ReaderLeftError(Exception):
    """Nobody reads our output any more."""


class _Verbs(click.Group):
    """Verbs in the order of a pull request's life rather than of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """The verbs as they were declared."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; click itself would end with 1 where the reader went away, and 1 is the code of a Fail."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderLeftError from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="verl-e2e")
def cli() -> None:
    """Protect Megatron-Bridge from changes that break reinforcement learning with verl.

    Plan the coverage a change needs, run it through verl's own Megatron wrapper, judge the evidence, show the card.
    """


_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
_REPO = click.option("--repo", required=True, type=_FOLDER, help="A Megatron-Bridge checkout or bare git directory.")
_BASE = click.option("--base", required=True, metavar="SHA", help="The commit that the change starts from.")
_WORK = click.option("--work", type=_FOLDER, help="Where private worktrees and caches are kept between runs.")
_POLICY = click.option(
    "--policy", type=click.Path(dir_okay=False, path_type=Path), help="A policy file instead of the base commit's."
)


def main() -> NoReturn:
    """Run the command and exit with its code; a user's mistake is one sentence, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A progress bar of a log, or a file name that is no text, must not end a verb that did its work.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(standalone_mode=False)
    except _ReaderLeftError:
        code = _reader_left()
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except Exception as error:
        code = _fault(error)
    sys.exit(code if isinstance(code, int) else 0)


def _reader_left() -> int:
    """The reader of the output went away, as `| head -1` does: the code of a program that SIGPIPE ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EXIT_READER_LEFT


def _fault(error: Exception) -> int:
    """A user's mistake says so in one sentence; anything else is ours, with the traceback on request."""
    if getattr(error, "user_mistake", False):
        click.echo(f"verl-e2e: {error}", err=True)
        return EXIT_USAGE
    if isinstance(error, OSError) and error.errno in _MENDS:
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"verl-e2e: {place}{error.strerror}; {_MENDS[error.errno]}", err=True)
        return EXIT_USAGE
    if os.environ.get("VERL_E2E_DEBUG"):
        raise error
    click.echo(f"verl-e2e: internal error: {type(error).__name__}: {error} (VERL_E2E_DEBUG=1 shows where)", err=True)
    return EXIT_INTERNAL


def _exit_code(card: "Card") -> int:
    from bot.core.card import result_of
    from bot.core.verdict import Result

    return {Result.PASS: 0, Result.FAIL: EXIT_FAIL, Result.BLOCKED: EXIT_BLOCKED}[result_of(card)]


def _print_card(card: "Card", *, as_json: bool) -> None:
    from bot.core.card import render_text
    from bot.core.documents import card_json

    click.echo(card_json(card) if as_json else render_text(card), nl=False)


@cli.command()
@click.argument("folder", type=_FOLDER)
@_JSON
def judge(folder: Path, *, as_json: bool) -> int:
    """Judge a run folder: verdict with evidence, written beside the log.

    Example: verl-e2e judge out/jobs/0-lora-ddp
    """
    from bot import wiring
    from bot.handlers import judging
    from bot.handlers.checking import card_of

    folders = wiring.run_folders()
    judging.write_judgement(folders, folder, judging.judge_folders(folders, folder))
    shown = card_of(folders, folder)
    if as_json:
        _print_card(shown, as_json=True)
    else:
        click.echo("\n".join([*map(_verdict_text, shown.verdicts), *map(_not_run_text, shown.not_run)]))
    return _exit_code(shown)


def _verdict_text(verdict: "Verdict") -> str:
    rows = [f"{verdict.job_id}: {verdict.result} - {verdict.sentence}"]
    for item in verdict.evidence:
        where = f" [{item.file}{f':{item.line}' if item.line else ''}]" if item.file else ""
        rows.append(f"  {item.state:<8} {item.criterion:<18} {item.summary}{where}")
    return "\n".join(rows)


def _not_run_text(job: "NotRun") -> str:
    return f"{job.job_id}: Skipped - {job.reason}"


@cli.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--json", "as_json", is_flag=True, help="Accepted for symmetry: the output is JSON lines anyway.")
def triage(logs: tuple[str, ...], *, as_json: bool) -> int:  # noqa: ARG001  (every verb takes --json)
    """Say of each bare log where it ended and why, one JSON line each; `-` reads standard input.

    Plain, .gz, .xz and .zst are read alike. `pass` means only that the requested steps completed with no
    unexplained error: it is never a verdict.

    Example: verl-e2e triage run1.log run2.log.zst
    """
    from bot import wiring
    from bot.core.documents import triage_line
    from bot.core.triage import triage as triage_facts

    for name in logs:
        click.echo(triage_line(name, triage_facts(wiring.log_facts(name))))
    return 0


@cli.command()
@click.argument("folder", type=_FOLDER)
@click.option("--format", "form", type=click.Choice(["text", "markdown"]), default="text", show_default=True)
@_JSON
def card(folder: Path, form: str, *, as_json: bool) -> int:
    """Show the card of a run folder, or of a whole `check` folder, judged afresh.

    Example: verl-e2e card out --format markdown
    """
    from bot import wiring
    from bot.core.card import render_markdown
    from bot.handlers.checking import card_of

    shown = card_of(wiring.run_folders(), folder)
    if form == "markdown" and not as_json:
        click.echo(render_markdown(shown), nl=False)
    else:
        _print_card(shown, as_json=as_json)
    return 0


def _json_text(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def _cache_folder(given: Path | None) -> Path | None:
    """Where summaries of source files are kept between runs; None when this machine names no such place."""
    if given is not None:
        return given
    named = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if named:
        return Path(named) / "verl-e2e"
    return Path(home) / ".cache" / "verl-e2e" if home else None


def _plan_order(
    repo: Path,
    *,
    verl: Path | None,
    verl_ref: str | None,
    policy: Path | None,
    cache: Path | None,
    megatron_lm: Path | None = None,
) -> "PlanOrder":
    from bot.wiring import PlanOrder

    return PlanOrder(repo, verl, verl_ref, policy, _cache_folder(cache), megatron_lm)


_VERL = click.option("--verl", type=_FOLDER, help="A verl checkout; without one a packaged list of its imports serves.")
_VERL_REF = click.option("--verl-ref", metavar="REV", help="The verl commit to read, instead of the checkout's HEAD.")
_CACHE = click.option("--cache", type=_FOLDER, help="Where what was read is kept; default: the user's cache folder.")


@cli.command()
@_REPO
@_BASE
@click.option("--head", required=True, metavar="SHA", help="The commit to plan.")
@_VERL
@_VERL_REF
@click.option("--megatron-lm", type=_FOLDER, help="A Megatron-LM repository: list what a bump of it changes.")
@_POLICY
@_CACHE
@_JSON
def plan(repo: Path, base: str, head: str, *, as_json: bool, **options: Any) -> int:
    """Say which levels a change needs, and why, from git objects alone.

    Example: verl-e2e plan --repo Megatron-Bridge --base origin/main --head HEAD --verl verl --json
    """
    from bot import wiring
    from bot.core.plan_text import render_contract, render_plan_text

    planned = wiring.plan_change(_plan_order(repo, **options), base, head)
    contract = render_contract(planned.contract)
    if as_json:
        click.echo(_json_text(planned.plan.to_json()))
        click.echo("\n".join([*planned.plan.remarks, contract]).rstrip(), err=True)
    else:
        click.echo(render_plan_text(planned.plan) + (f"\n{contract}" if contract else ""), nl=False)
    return 0


@cli.command()
@click.argument("targets", nargs=-1, required=True, metavar="PATH[:SYMBOL]...")
@_REPO
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to look at.")
@_VERL
@_VERL_REF
@_POLICY
@_CACHE
@_JSON
def explain(targets: tuple[str, ...], repo: Path, head: str, *, as_json: bool, **options: Any) -> int:
    """Show how verl reaches a file or a symbol, and which levels a change of it would ask for.

    Example: verl-e2e explain --repo Megatron-Bridge src/megatron/bridge/peft/lora.py:LoRA.transform
    """
    from bot import wiring
    from bot.core.explain import explanation_json, render_explanation

    found = wiring.explain(_plan_order(repo, **options), head, targets)
    if as_json:
        click.echo(_json_text([explanation_json(one) for one in found]))
    else:
        click.echo("\n".join(map(render_explanation, found)))
    return 0


@cli.command()
@click.argument("labels", required=False, type=click.Path(dir_okay=False, path_type=Path), metavar="[LABELS.json]")
@_REPO
@click.option("--history", type=click.IntRange(min=1), metavar="N", help="Replay the last N commits, without labels.")
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="Where the history ends.")
@_VERL
@_VERL_REF
@_POLICY
@_CACHE
@_JSON
def backtest(labels: Path | None, repo: Path, history: int | None, head: str, *, as_json: bool, **options: Any) -> int:
    """Plan labelled changes, or a stretch of history, and show what is missed, what is wasted and what it costs.

    Example: verl-e2e backtest labels.json --repo Megatron-Bridge --verl verl --json
    """
    from bot import wiring
    from bot.core.backtest import backtest_json, render_backtest, render_usage, usage_json

    if (labels is None) == (history is None):
        raise click.UsageError("give either a file of labels or --history N")
    order = _plan_order(repo, **options)
    if labels is not None:
        outcomes = wiring.backtest(order, labels)
        click.echo(_json_text(backtest_json(outcomes)) if as_json else render_backtest(outcomes), nl=as_json)
        return 0
    counted = wiring.replay(order, history or 0, head)
    click.echo(_json_text(usage_json(counted)) if as_json else render_usage(counted), nl=as_json)
    return 0


@cli.group(cls=_Verbs)
def policy() -> None:
    """Work on the policy file."""


@policy.command()
def schema() -> int:
    """Print the JSON schema of the policy file.

    Example: verl-e2e policy schema > verl-e2e.schema.json
    """
    from bot.config.policy import policy_schema

    click.echo(_json_text(policy_schema()))
    return 0


@policy.command("check")
@_REPO
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to hold it against.")
@_VERL
@_VERL_REF
@_POLICY
@_CACHE
@_JSON
def check_policy(repo: Path, head: str, *, as_json: bool, **options: Any) -> int:
    """Tell which rules of the policy can never match, which source files nothing judges, and what verl lacks.

    Example: verl-e2e policy check --repo Megatron-Bridge --policy .github/verl-e2e.yml
    """
    from bot import wiring

    findings = wiring.lint_policy(_plan_order(repo, **options), head)
    click.echo(_json_text(list(findings)) if as_json else "\n".join(findings) or "nothing to mend")
    return 0


@policy.command()
@click.option("--verl", required=True, type=_FOLDER, help="A verl checkout or bare git directory.")
@_VERL_REF
def imports(verl: Path, verl_ref: str | None) -> int:
    """Print what verl uses of Megatron-Bridge, in the form of the packaged list.

    Example: verl-e2e policy imports --verl verl --verl-ref SHA > bot/policy/verl-imports.json
    """
    from bot import wiring

    click.echo(wiring.verl_uses(verl, verl_ref), nl=False)
    return 0


@cli.command()
@click.option("--job", "job_file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JOB.json")
@click.option("--out", required=True, type=_FOLDER, help="The run folder to make.")
@_WORK
@click.option("--dry-run", is_flag=True, help="Print the exact commands and start nothing.")
@_JSON
def run(job_file: Path, out: Path, work: Path | None, *, dry_run: bool, as_json: bool) -> int:
    """Run one job on this GPU host, leave its run folder, judge it and show its card.

    Example: verl-e2e run --job job.json --out out
    """
    from bot import wiring
    from bot.handlers import judging
    from runners.run import dry_run as commands
    from runners.run import run_job

    job = wiring.read_job(job_file)
    environ = dict(os.environ)
    if dry_run:
        click.echo(commands(job, out, environ=environ, work=work), nl=False)
        return 0
    interrupted = run_job(job, out, environ=environ, work=work, stream=sys.stderr)
    folders = wiring.run_folders()
    verdicts = judging.judge_folders(folders, out)
    judging.write_judgement(folders, out, verdicts)
    shown = judging.make_card(verdicts)
    _print_card(shown, as_json=as_json)
    return EXIT_INTERRUPTED if interrupted else _exit_code(shown)


@cli.command()
@_REPO
@_BASE
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to test.")
@click.option("--verl", required=True, type=_FOLDER, help="A verl checkout or bare git directory.")
@click.option("--verl-ref", metavar="REV", help="The verl commit to test with, instead of the policy's pin.")
@click.option("--megatron-lm", type=_FOLDER, help="A Megatron-LM repository that holds the submodule's commit.")
@click.option("--out", required=True, type=_FOLDER, help="The folder to make: plan, run folders, card.")
@click.option("--site", default="default", show_default=True, help="A site profile: packaged name or YAML file.")
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", help="A value that the site profile asks for.")
@click.option("--level", "levels", multiple=True, type=click.IntRange(0, 5), help="Ask for a level beside the plan's.")
@_WORK
@_POLICY
@_JSON
def check(repo: Path, base: str, head: str, *, as_json: bool, **options: Any) -> int:
    """Plan a change, run what this machine can run, judge it and show the card.

    Progress goes to stderr, the card to stdout. Without a GPU the result is Blocked, with each missing thing
    and its mend, and the plan is complete all the same.

    Example: verl-e2e check --repo Megatron-Bridge --base origin/main --verl verl --out out
    """
    from bot import wiring

    order = wiring.CheckOrder(bridge=repo, base=base, head=head, **options)
    shown = wiring.check(order, dict(os.environ), lambda sentence: click.echo(sentence, err=True))
    _print_card(shown, as_json=as_json)
    return _exit_code(shown)


@cli.command()
@click.option("--out", type=_FOLDER, help="Keep the demonstration's files in this new folder.")
@_JSON
def demo(out: Path | None, *, as_json: bool) -> int:
    """Show the whole way: a real plan of a small change, and the judgement of a recorded GPU run.

    Example: verl-e2e demo
    """
    from bot import wiring
    from bot.core.plan_text import render_plan_text

    shown = wiring.demonstration(out)
    click.echo("The plan is made here and now, of a small repository in Megatron-Bridge's shape:\n", err=True)
    click.echo(render_plan_text(shown.plan), err=True)
    click.echo(f"{shown.card.remarks[0]}\n", err=True)
    _print_card(shown.card, as_json=as_json)
    return 0
