"""The verbs that run: run, check, demo."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from verl_e2e.cli.command import (
    BASE_OPTION,
    EXIT_INTERRUPTED,
    FILE,
    FOLDER,
    JSON_OPTION,
    POLICY_OPTION,
    REPO_OPTION,
    WORK_OPTION,
    cache_folder,
    colored,
    exit_code,
    print_card,
    progress,
    say,
)
from verl_e2e.core.text.escape import with_addresses

_REPEATS = "How many runs on the merge base a learning signal is compared with."


def _resealing(environ: Mapping[str, str]) -> Callable[[Path], None]:
    """A function that seals a run folder again with the recorder's key, after related runs were added to it."""
    from verl_e2e_runner.folder.recorder import seal_again, usable_key

    return lambda folder: seal_again(folder, usable_key(environ, say))


@click.command("run")
@click.option("--job", "job_file", required=True, type=FILE, help="JOB.json")
@click.option("--out", required=True, type=FOLDER, help="The run folder to create.")
@WORK_OPTION
@click.option(
    "--baseline", metavar="SHA", help="Rerun a failed job on this Bridge commit, to see whether the change causes it."
)
@click.option(
    "--follow-ups", is_flag=True, help="Also make the follow-up runs that the result needs on the same commit."
)
@click.option("--junit", type=FOLDER, help="Results of Bridge tests that ran elsewhere; they are not run again.")
@click.option("--junit-commit", metavar="SHA", help="The commit of --junit, when the file does not name it.")
@click.option(
    "--keep-caches",
    type=FOLDER,
    help="Leave the kernels that this run of trusted code compiles in this new folder, for `kernel_caches` of a site.",
)
@click.option("--dry-run", is_flag=True, help="Print the exact commands as a bash script, and run nothing.")
@click.option(
    "--prepare",
    is_flag=True,
    help="Create the folders that the script of --dry-run needs, and run nothing. Of a rehearsal, run the base alone.",
)
@JSON_OPTION
def run_verb(
    job_file: Path,
    out: Path,
    work: Path | None,
    baseline: str | None,
    junit: Path | None,
    junit_commit: str | None,
    keep_caches: Path | None,
    *,
    as_json: bool,
    **flags: bool,
) -> int:
    """Run one job on this GPU host, write its run folder, judge it and show its card.

    A rehearsal runs without a GPU: it leaves the records of both commits, and who ordered it judges them.

    With --baseline, a failed job runs again on that commit. If it does not fail there, it runs once more on the head.
    These runs are written into the folder's related/.

    Example: verl-e2e run --job job.json --out out --baseline origin/main
    """
    from verl_e2e.adapters.dispatch import COMMAND
    from verl_e2e.adapters.files.folders import read_job, read_junit_file, run_folders, take_nonce
    from verl_e2e.app import judge_folder as judging
    from verl_e2e.cli.rehearse import run_ordered
    from verl_e2e.core.judge.related_runs import NOTHING, possible_followups
    from verl_e2e.core.model.jobs import RehearsalJob
    from verl_e2e.core.model.needs import unable
    from verl_e2e.wiring import check as checking
    from verl_e2e_runner.by_hand import dry_run, prepare_by_hand
    from verl_e2e_runner.run import run_job
    from verl_e2e_runner.trees import fetch_baseline, with_clones

    if keep_caches and (flags["prepare"] or flags["dry_run"]):
        raise click.UsageError("--keep-caches needs a run, and --prepare and --dry-run start none")
    if keep_caches and keep_caches.exists() and (not keep_caches.is_dir() or any(keep_caches.iterdir())):
        raise click.UsageError(f"--keep-caches {keep_caches} exists and is not an empty folder; name a new one")
    job, environ = with_clones(read_job(job_file), work or out.parent), dict(os.environ)
    if isinstance(job, RehearsalJob):
        of_jobs = bool(flags["dry_run"] or keep_caches or junit)
        return run_ordered(job, job_file, out, work, environ, prepare=flags["prepare"], of_jobs=of_jobs)
    brought = read_junit_file(junit, job, junit_commit) if junit else None
    asked = bool(baseline) or flags["follow_ups"]
    missing = fetch_baseline(job, baseline, base=environ) if baseline and not flags["dry_run"] else ""
    allowed = checking.job_follow_ups(job, baseline, missing, lenient=flags["follow_ups"]) if asked else None
    if flags["prepare"]:
        findings = prepare_by_hand(job, out, environ=environ, work=work)
        for finding in findings:
            say(f"{finding.check}: {finding.summary}")
        # What blocks is the user's to fix before the run.
        if stopping := [finding for finding in findings if finding.blocking and not finding.ok]:
            raise click.ClickException("\n".join(f"{finding.summary}; {finding.fix}" for finding in stopping))
        return 0
    if flags["dry_run"]:
        # The command line of `run --prepare` for the same folders, usable from any working directory.
        places = ("--work", str(work.resolve())) if work else ()
        again = ("run", "--job", str(job_file.resolve()), "--out", str(out.resolve()), *places, "--prepare")
        click.echo(dry_run(job, out, environ=environ, work=work, prepare=(*COMMAND, *again)), nl=False)
        click.echo("".join(f"# {sentence}\n" for sentence in possible_followups(job, allowed or NOTHING)), nl=False)
        return 0
    if reason := unable(sys.platform):
        raise click.ClickException(reason)
    order_nonce = take_nonce(job_file)
    interrupted = run_job(
        job,
        out,
        environ=environ,
        work=work,
        stream=progress(),
        junit=brought,
        order_nonce=order_nonce,
        keep_caches=keep_caches,
    )
    folders = run_folders()
    verdicts = judging.judge_folders(folders, out)
    judging.write_judgement(folders, out, verdicts)
    if allowed and not interrupted:
        reseal = _resealing(environ)
        verdicts = (checking.follow_up_run(job, out, allowed, work, say, reseal=reseal),)
    shown = judging.make_card(verdicts)
    print_card(shown, as_json=as_json)
    return EXIT_INTERRUPTED if interrupted else exit_code(shown)


@click.command("check")
@REPO_OPTION
@BASE_OPTION
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to test.")
@click.option("--verl", required=True, type=FOLDER, help="A verl checkout or bare git directory.")
@click.option(
    "--consumer",
    type=click.Choice(["verl", "skyrl"]),
    default="verl",
    show_default=True,
    help="Whose checkout --verl is.",
)
@click.option("--verl-ref", metavar="REV", help="The commit to test with; default: the policy's.")
@click.option("--megatron-lm", type=FOLDER, help="A Megatron-LM repository that holds the submodule's commit.")
@click.option("--out", required=True, type=FOLDER, help="The folder to create: plan, run folders, card.")
@click.option("--site", default="default", show_default=True, help="A site profile: a packaged name or a YAML file.")
@click.option(
    "--set", "values", multiple=True, metavar="NAME=VALUE", help="A value that the site profile needs; repeatable."
)
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=click.IntRange(0, 5),
    help="Run this level in addition to the plan; repeatable.",
)
@click.option("--model", metavar="NAME|PATH", help="The model to train instead of the plan's: of the hub, or a folder.")
@click.option(
    "--steps", metavar="1..1000", help="How many training steps each run takes; a level that needs more is not run."
)
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Run only jobs of such an id, as `2-*`; repeatable. One left out keeps the whole from a Pass.",
)
@click.option("--no-baseline", is_flag=True, help="Do not rerun failed jobs on the merge base.")
@click.option("--baseline-repeats", type=click.IntRange(1, 9), default=1, show_default=True, help=_REPEATS)
@click.option("--parity", is_flag=True, help="Also run the jobs of level 2 that are compared with an unsharded run.")
@WORK_OPTION
@POLICY_OPTION
@JSON_OPTION
def check_verb(repo: Path, base: str, head: str, *, as_json: bool, **options: Any) -> int:
    """Plan a change, run the jobs that this machine can run, judge them and show the card.

    A failed job runs again on the merge base and, if that passes, once more on the head. Progress goes to stderr, the
    card to stdout. Without a GPU the plan is complete, the result Blocked; 15 rows say what to fix. Jobs run on Linux
    alone.

    Example: verl-e2e check --repo Megatron-Bridge --base origin/main --verl verl --out out
    """
    from verl_e2e.core.report.run_card import render_unfit_host
    from verl_e2e.wiring import check as checking
    from verl_e2e_runner.samplers import read_devices

    devices = read_devices()
    why = "" if devices.devices else devices.problem or "the driver reports none"
    request = checking.LocalCheck(
        bridge=repo,
        base=base,
        head=head,
        cache=cache_folder(),
        system=sys.platform,
        no_gpu=why,
        quiet=progress() is not sys.stderr,
        **options,
    )
    environ = dict(os.environ)
    shown = checking.check_here(request, environ, say, reseal=_resealing(environ))
    short = "" if as_json else render_unfit_host(shown, str(options["out"]))
    if short:
        click.echo(colored(with_addresses(short)), nl=False)
    else:
        print_card(shown, as_json=as_json)
    return exit_code(shown)


@click.command()
@click.option("--out", type=FOLDER, help="The new folder for repository, plans, run folders; default: a temporary one.")
@JSON_OPTION
def demo(out: Path | None, *, as_json: bool) -> int:
    """Tell the story of a pull request: its plan, a recorded GPU run that fails, the fix, and one that passes.

    With --json standard output is the card of the run that passes, and the story goes to standard error.

    Example: verl-e2e demo
    """
    from verl_e2e.adapters.dispatch import COMMAND
    from verl_e2e.app.check import next_steps, tell_story
    from verl_e2e.core.report.plan_text import MAKING_DEMO
    from verl_e2e.wiring.check import demonstration

    click.echo(MAKING_DEMO, err=as_json)
    folder = out or Path(tempfile.mkdtemp(prefix="verl-e2e-demo-"))
    first, fixed = demonstration(folder)
    click.echo(tell_story(first, fixed, str(folder)), err=as_json, nl=False)
    if as_json:
        print_card(fixed.card, as_json=True)
        return 0
    # The command line that calls verl-e2e again from the same shell.
    own, found = Path(sys.argv[0]), shutil.which("verl-e2e")
    if own.name != "verl-e2e":
        again = shlex.join(COMMAND)
    else:
        is_found = found and own.exists() and os.path.samefile(found, own)
        again = "verl-e2e" if is_found else shlex.quote(str(own))
    click.echo(next_steps(again, shlex.quote(str(folder))), nl=False)
    return 0
