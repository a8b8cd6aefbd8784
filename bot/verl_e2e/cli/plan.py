"""The verbs that say what a change needs: plan, explain, backtest, policy."""

import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from verl_e2e.cli.command import (
    FILE,
    FOLDER,
    JSON_OPTION,
    POLICY_OPTION,
    REPO_OPTION,
    Verbs,
    cache_folder,
    indented_json,
)
from verl_e2e.core.model.errors import UserError

if TYPE_CHECKING:
    from verl_e2e.app.plan_change import Planned
    from verl_e2e.wiring.planning import PlanRequest

_VERL = click.option("--verl", type=FOLDER, help="A verl checkout; default: a packaged list of what verl imports.")
_VERL_REF = click.option("--verl-ref", metavar="REV", help="The verl commit to read; default: HEAD of the checkout.")
_CACHE = click.option(
    "--cache", type=FOLDER, help="Folder for cached summaries of source files; default: your cache folder."
)


def _collect_seldom() -> None:
    """Look for cycles seldom from here on: a process that plans ends soon. Called before what plans is imported."""
    from verl_e2e.wiring.planning import collect_seldom

    collect_seldom()


def _plan_request(
    repo: Path,
    *,
    verl: Path | None,
    verl_ref: str | None,
    policy: Path | None,
    cache: Path | None,
    megatron_lm: Path | None = None,
    rehearsal: Path | None = None,
    parity: bool = False,
) -> "PlanRequest":
    """What the options ask for."""
    from verl_e2e.wiring.planning import PlanRequest

    return PlanRequest(repo, verl, verl_ref, policy, cache_folder(cache), megatron_lm, rehearsal, os.environ, parity)


_MEGATRON_LM = click.option(
    "--megatron-lm",
    type=FOLDER,
    help="A Megatron-LM repository, to compare both commits of a submodule update; default: the submodule's checkout,"
    " else both are fetched into --cache.",
)


@click.command("plan")
@click.argument("pull", required=False, metavar="[PULL]")
@click.option("--repo", type=FOLDER, help="A Megatron-Bridge checkout or bare git directory; default: this checkout.")
@click.option("--base", metavar="SHA", help="What the change starts from; default: the remote's default branch.")
@click.option("--head", metavar="SHA", help="The commit to plan; default: HEAD.")
@_VERL
@_VERL_REF
@_MEGATRON_LM
@click.option(
    "--rehearsal",
    type=FOLDER,
    help="The out folder of `verl-e2e rehearse`, of this change or of its base; default: the map of the pinned commit.",
)
@click.option(
    "--parity", is_flag=True, help="Also plan the jobs that are compared with an unsharded run; for a checkout."
)
@POLICY_OPTION
@_CACHE
@click.option("--why", metavar="LEVEL|PATH", help="Only why a level is asked for, or what a path asks for.")
@click.option("--full", is_flag=True, help="Every reason, place, test and limitation, not the 25 rows.")
@JSON_OPTION
def plan_verb(
    pull: str | None,
    repo: Path | None,
    base: str | None,
    head: str | None,
    *,
    why: str | None,
    full: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Show which levels a change needs, and why. Nothing of the change is run.

    Without PULL the change is that of a checkout, from --base to --head. PULL is the address of a pull request, or
    OWNER/REPO#N; a public one needs no token.

    Example: verl-e2e plan https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5232

    Example: verl-e2e plan --repo Megatron-Bridge --base origin/main --head HEAD --verl verl --json
    """
    _collect_seldom()
    if pull is not None:
        if repo or base or head:
            raise click.UsageError("give either a pull request, or --repo, --base and --head")
        if options["parity"]:
            raise click.UsageError("--parity is for a checkout; on a pull request say `/verl-e2e level2 parity`")
        from verl_e2e.wiring.pulls import PullPlanRequest, plan_address

        urls = os.environ.get("GITHUB_API_URL", ""), os.environ.get("GITHUB_SERVER_URL", "")
        token = os.environ.get("GITHUB_TOKEN", "")
        of_pull = PullPlanRequest(pull, _plan_request(Path(), **options), *urls, token)
        return _show(plan_address(of_pull, lambda: datetime.now(UTC)), why, full=full, as_json=as_json)
    from verl_e2e.wiring import planning as wiring

    request = _plan_request(repo or wiring.checkout_of(Path()) or Path(), **options)
    planned = wiring.plan_change(request, base or wiring.DEFAULT_BRANCH, head or "HEAD")
    return _show(planned, why, full=full, as_json=as_json)


def _show(planned: "Planned", why: str | None, *, full: bool, as_json: bool) -> int:
    from verl_e2e.core.plan.plan_document import plan_json
    from verl_e2e.core.report.plan_text import render_contract, render_plan_text, render_short_plan, render_why

    contract = render_contract(planned.contract)
    if as_json:
        click.echo(plan_json(planned.plan), nl=False)
        click.echo("\n".join([*planned.plan.incomplete, *planned.plan.notes, contract]).rstrip(), err=True)
    elif why is not None:
        if not (answer := render_why(planned.plan, why)):
            raise UserError(f"--why {why}: no level and no path that the plan asks anything for; `--full` lists them")
        click.echo(answer, nl=False)
    elif full:
        click.echo(render_plan_text(planned.plan) + (f"\n{contract}" if contract else ""), nl=False)
    else:
        click.echo(render_short_plan(planned.plan, contract.splitlines()[1:]), nl=False)
    return 0


@click.command("explain")
@click.argument("targets", nargs=-1, required=True, metavar="PATH[:SYMBOL]...")
@REPO_OPTION
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to read.")
@_VERL
@_VERL_REF
@_MEGATRON_LM
@POLICY_OPTION
@_CACHE
@click.option("--full", is_flag=True, help="Every step, job and place, and every symbol of a path.")
@JSON_OPTION
def explain_verb(targets: tuple[str, ...], repo: Path, head: str, *, full: bool, as_json: bool, **options: Any) -> int:
    """Show how verl reaches a file or a symbol, and which levels a change of it would need.

    A symbol takes 12 rows. Of a path the first symbols are shown, and --full shows them all.

    Example: verl-e2e explain --repo Megatron-Bridge src/megatron/bridge/peft/lora.py:LoRA.transform
    """
    _collect_seldom()
    from verl_e2e.core.plan.explain import explanation_json, render_explanation, render_short_explanations
    from verl_e2e.wiring import planning as wiring

    found = wiring.explain_paths(_plan_request(repo, **options), head, targets)
    if as_json:
        click.echo(indented_json([explanation_json(explanation) for explanation in found]))
    else:
        click.echo("\n".join(map(render_explanation, found)) if full else render_short_explanations(found, "--full"))
    return 0


@click.command("backtest")
@click.argument("labels", required=False, type=FILE, metavar="[LABELS.json]")
@REPO_OPTION
@click.option("--history", type=click.IntRange(min=1), metavar="N", help="Replay the last N commits, without labels.")
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The last commit of the history.")
@_VERL
@_VERL_REF
@POLICY_OPTION
@_CACHE
@_MEGATRON_LM
@JSON_OPTION
def backtest_verb(
    labels: Path | None, repo: Path, history: int | None, head: str, *, as_json: bool, **options: Any
) -> int:
    """Plan labelled changes or past commits, and show missed levels, unneeded levels and the cost.

    Example: verl-e2e backtest labels.json --repo Megatron-Bridge --verl verl --json
    """
    _collect_seldom()
    from verl_e2e.core.plan.backtest import backtest_json, render_backtest, render_usage, usage_json
    from verl_e2e.wiring import planning as wiring

    if (labels is None) == (history is None):
        raise click.UsageError("give either a file of labels or --history N")
    request = _plan_request(repo, **options)
    if labels is not None:
        outcomes = wiring.plan_labelled(request, labels)
        click.echo(indented_json(backtest_json(outcomes)) if as_json else render_backtest(outcomes), nl=as_json)
        return 0
    counted = wiring.replay(request, history or 0, head)
    click.echo(indented_json(usage_json(counted)) if as_json else render_usage(counted), nl=as_json)
    return 0


@click.group(cls=Verbs)
def policy() -> None:
    """Check the policy file, or print its schema."""


@policy.command()
def schema() -> int:
    """Print the JSON schema of the policy file.

    Example: verl-e2e policy schema > verl-e2e.schema.json
    """
    from verl_e2e.config.policy import policy_schema

    click.echo(indented_json(policy_schema()))
    return 0


@policy.command("check")
@click.argument("file", required=False, type=FILE, metavar="[FILE]")
@click.option(
    "--repo", type=FOLDER, help="The Megatron-Bridge repository to check it against; default: the one that holds FILE."
)
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to check it against.")
@_VERL
@_VERL_REF
@POLICY_OPTION
@_CACHE
@JSON_OPTION
def check_policy(file: Path | None, repo: Path | None, head: str, *, as_json: bool, **options: Any) -> int:
    """List rules that can never match, source files without a rule, what the verl commit does not have, and expired
    entries of the quarantine.

    FILE is a policy file. It is checked against the checkout that holds it, or against --repo. Without FILE, the policy
    of --repo at --head is checked.

    Example: verl-e2e policy check .github/verl-e2e.yml

    Example: verl-e2e policy check --repo Megatron-Bridge --policy verl-e2e.yml --verl verl
    """
    _collect_seldom()
    from verl_e2e.adapters.clock import SystemClock
    from verl_e2e.wiring import planning as wiring

    today = SystemClock().now().date()
    if file is not None and options["policy"] is not None:
        raise click.UsageError("give the policy file either as FILE or with --policy")
    if file is None and repo is None:
        raise click.UsageError("give a policy file, or --repo")
    options["policy"] = file or options["policy"]
    if repo is not None:
        findings = wiring.policy_findings(_plan_request(repo, **options), head, today)
    else:
        findings, note = wiring.lint_policy_file(_plan_request(Path(), **options), head, today)
        click.echo(note, err=True)
    click.echo(indented_json(list(findings)) if as_json else "\n".join(findings) or "nothing to correct")
    return 0


@policy.command()
@click.option("--verl", required=True, type=FOLDER, help="A checkout of verl or of the consumer.")
@_VERL_REF
@click.option(
    "--consumer",
    type=click.Choice(["verl", "skyrl", "nemo_rl"]),
    default="verl",
    help="Whose uses; the name of its Python package.",
)
def imports(verl: Path, verl_ref: str | None, consumer: str) -> int:
    """Print what verl or another consumer uses of Megatron-Bridge, in the format of the packaged lists.

    Example: verl-e2e policy imports --verl verl --verl-ref SHA > bot/verl_e2e/policy/verl-imports.json
    """
    from verl_e2e.wiring import planning as wiring

    click.echo(wiring.uses_of_consumer(verl, verl_ref, consumer), nl=False)
    return 0


@policy.command("settings")
@click.option("--verl", required=True, type=FOLDER, help="A checkout of verl, at the commit to check.")
@click.option(
    "--python",
    default=sys.executable,
    metavar="PYTHON",
    help="A Python with hydra-core; default: the one that runs this command. Where it can import verl too, verl's own"
    " checks are made.",
)
@JSON_OPTION
def check_verl_settings(verl: Path, python: str, *, as_json: bool) -> int:
    """Check that verl's wrapper and configuration take the settings of jobs, without a GPU.

    Each named job, and one job for each value of each setting: the wrapper is run against stand-ins, and what it would
    start is composed with verl's own configuration.

    Example: verl-e2e policy settings --verl verl --python env/bin/python
    """
    from verl_e2e.core.consumer.consumers import VARIANTS, setting_probes
    from verl_e2e.core.report.plan_text import settings_json, settings_text
    from verl_e2e_runner.launch.verl import check_settings

    # It is started in other folders; a bare name is looked up on PATH.
    python = str(Path(python).absolute()) if os.sep in python else python
    with tempfile.TemporaryDirectory(prefix="verl-e2e-settings-") as work:
        checks = check_settings(
            (*VARIANTS, *setting_probes()), tree=verl.resolve(), python=python, work=Path(work), base=dict(os.environ)
        )
    click.echo(indented_json(settings_json(checks)) if as_json else settings_text(checks))
    return 0
