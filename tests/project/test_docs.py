"""The documents say what the program does: tables are rendered from its own, links lead somewhere, commands parse."""

import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from tests.fakes.places import ROOT
from tests.fakes.shown_pull import PASSED, shown_card
from tools.write_tables import PARTS, verbs
from verl_e2e.adapters.github.session import ORGANISATION, PERMISSIONS
from verl_e2e.app.on_event import LABEL
from verl_e2e.cli import cli
from verl_e2e.config.environment import variables
from verl_e2e.config.settings import Settings
from verl_e2e.core.model import execution, fingerprints, record, related
from verl_e2e.core.model.access import DEFAULT_GATE
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.commands import CommandLine, Mistake, parse_commands
from verl_e2e.core.pulls.deliveries import MODELS
from verl_e2e.core.report import comparison_text
from verl_e2e.pages import report

DOCS = ROOT / "docs"
ALL_PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
LINKED = (*ALL_PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "bench" / "results").rglob("*.md")))
MOST_WORDS = 40_000
PAGES = ("card.md", "commands.md", "install.md", "security.md")
# GitHub sends these to every App, and does not let one ask for them.
ALWAYS_SENT = {"installation", "installation_repositories", "ping"}
# The event `merge_group` can be asked for only with this permission; no call of ours needs it.
FOR_EVENTS = {"merge_queues": "read"}


def _text(page: str) -> str:
    return (DOCS / page).read_text()


def _between(text: str, name: str) -> str:
    return text.split(f"<!-- begin {name} -->\n")[1].split(f"<!-- end {name} -->\n")[0]


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, parts in PARTS.items() for name in parts])
def test_what_is_derived_from_the_code_is_what_the_code_says(page: str, name: str) -> None:
    assert _between(_text(page), name) == PARTS[page][name](), "run `python tools/write_tables.py`"


def test_the_page_of_the_run_folder_names_every_file_of_one() -> None:
    page = _text("run-folder.md")
    files = {
        value
        for module in (comparison_text, execution, fingerprints, record, related, report)
        for name, value in vars(module).items()
        # A kept folder of kernels has this one.
        if name.endswith("_FILE") and isinstance(value, str) and name != "ORIGIN_FILE"
    }
    assert len(files) > 20
    assert [name for name in sorted(files) if f"`{name}`" not in page] == []


def test_the_reference_of_the_command_line_has_every_verb_and_every_option() -> None:
    sections = dict(re.findall(r"(?ms)^## ([a-z ]+)$\n(.*?)(?=^## |^<!-- end)", _text("cli.md")))
    for name, verb in verbs():
        options = [item for item in verb.params if isinstance(item, click.Option) and not item.hidden]
        missing = [item.opts[0] for item in options if item.opts[0] not in sections[name]]
        assert missing == [], name


def test_the_map_of_the_code_names_what_exists() -> None:
    text = _text("development.md")
    drawn = text.split("```text\n")[1].split("```")[0] + "".join(re.findall(r"`verl_e2e_runner[\w.]*`", text))
    modules = re.findall(r"verl_e2e(?:_runner)?(?:\.\w+)+", drawn)
    assert len(modules) > 15
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    table = text.split("## Adding something")[1].split("## Debugging")[0]
    package = ROOT / "bot" / "verl_e2e"
    paths: list[str] = re.findall(r"`((?:core|app|adapters|config|wiring)/[\w/.]*|ports\.py)`", table)
    assert [path for path in paths if not (package / path).exists()] == []
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", table):
        assert not name or f"def {name}(" in (ROOT / file).read_text(), (file, name)


def test_the_tree_of_the_design_page_has_every_package() -> None:
    text = _text("design.md").split("<!-- tree -->")[1].split("<!-- end of tree -->")[0]
    above: list[str] = []
    drawn = set()
    for indent, name in re.findall(r"(?m)^( *)([\w/]+)/ +[\d,]+ +\d+$", text):
        above = [*above[: len(indent) // 2], name]
        drawn.add("/".join(above))
    files = (path.relative_to(ROOT) for top in ("bot", "runners") for path in (ROOT / top).rglob("*.py"))
    assert drawn == {str(folder) for path in files for folder in path.parents if len(folder.parts) > 1}


def test_the_labels_of_the_commands_page_are_those_that_are_read() -> None:
    text = _text("commands.md")
    for name in ("run", *(f"level{int(level)}" for level in (min(Level), max(Level)))):
        assert f"`{LABEL}{name}`" in text


def test_the_manifest_asks_for_what_the_app_uses_and_no_more() -> None:
    manifest = json.loads(_text("app-manifest.json"))
    assert manifest["default_permissions"] == {**PERMISSIONS, **ORGANISATION, **FOR_EVENTS}
    assert set(manifest["default_events"]) == set(MODELS) - ALWAYS_SENT
    assert manifest["public"] is False
    assert manifest["hook_attributes"]["url"].endswith("/webhook")


def test_the_table_of_permissions_and_events_is_the_manifest() -> None:
    manifest = json.loads(_text("app-manifest.json"))
    section = _between(_text("install.md"), "permissions")
    rows = re.findall(r"^\| ([A-Z][a-z ]+?)(?: \(organisation\))? \| (read|write) \| .{20,} \|$", section, re.MULTILINE)
    assert {name.lower().replace(" ", "_"): access for name, access in rows} == manifest["default_permissions"]
    assert re.findall(r"`(\w+)`", section.split("Events:")[1]) == sorted(manifest["default_events"])


def test_the_first_commands_of_the_installation_keep_the_checkout() -> None:
    block = _text("install.md").split("```sh\n")[1].split("```")[0]
    environment = re.search(r"^scripts/create-venv.sh (\S+)$", block, re.MULTILINE)
    assert environment is not None
    assert Path(environment[1]).name != "verl-e2e"
    assert block.count(f"{environment[1]}/bin") == 3


def test_the_ruleset_requires_the_gate_from_one_app() -> None:
    block = _between(_text("install.md"), "ruleset")
    ruleset = json.loads(block.split("<<'END'\n")[1].split("\nEND")[0])
    (rule,) = ruleset["rules"]
    (check,) = rule["parameters"]["required_status_checks"]
    assert (rule["type"], check["context"]) == ("required_status_checks", DEFAULT_GATE.name)
    assert check["integration_id"] > 0
    assert f"{DEFAULT_GATE.merge_queue_deadline_s // 60} minutes" in _text("install.md")


def test_the_variables_of_the_installation_are_settings() -> None:
    workflow = (ROOT / ".github" / "workflows" / "verl-e2e.yml").read_text()
    known = {*variables(Settings)} | set(re.findall(r"vars\.(\w+)", workflow))
    known.add("GITHUB_APP_PRIVATE_KEY_FILE")
    named = set(re.findall(r"\b(?:VERL_E2E|GITHUB_APP|GITHUB_WEBHOOK)_[A-Z_]+", _text("install.md")))
    assert named <= known
    required = {name for name, field in variables(Settings).items() if field.is_required()}
    assert required - {"GITHUB_APP_PRIVATE_KEY"} <= named


def test_every_workflow_to_copy_is_named_and_nothing_else() -> None:
    rows = set(re.findall(r"^   \| `([\w-]+\.yml)` \|", _text("install.md"), re.MULTILINE))
    assert rows == {path.name for path in (DOCS / "workflows").glob("*.yml")}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?://|<)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_page_is_one(page: str) -> None:
    """Comments speak the language of the table, and shell lines that of the command line."""
    text = _text(page)
    for number, line in enumerate(re.findall(r"^(?: {4})?(/verl-e2e [a-z].*)$", text, re.MULTILINE)):
        assert not [item for item in parse_commands((CommandLine(number, line),)) if isinstance(item, Mistake)], line
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in re.findall(r"\bverl-e2e ((?:--)?[a-z].*)", block.replace("\\\n", " ")):
            _check_call(shlex.split(line, comments=True))


def test_the_command_that_a_card_gives_to_repeat_it_is_one() -> None:
    block = shown_card(*PASSED).split("<summary>Reproduce</summary>\n\n```text\n")[1].split("\n```")[0]
    _check_call(shlex.split(block)[1:])


def _check_call(words: list[str]) -> None:
    """The verb is there, and so is every option that the line gives it."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.commands.get(words[0])
        assert found is not None, words
        command, words = found, words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, words


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", _text("security.md"))
    assert len(named) > 40
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file() or (name and f"def {name}(" not in (ROOT / file).read_text())
    ]
    assert not missing


WRITING = ("pull_request_target", "issue_comment", "merge_group", "schedule")


@pytest.mark.parametrize("path", sorted((DOCS / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_with_a_token_that_writes_run_nothing_of_a_pull_request(path: Path) -> None:
    """No checkout and no script: one step, our own action, pinned; and no more permissions than it names."""
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        if not any(access == "write" for access in job["permissions"].values()):
            continue
        if "steps" not in job:
            # The job that calls ours passes on what its second job needs, and that writes nothing in the repository.
            assert {name for name, access in job["permissions"].items() if access == "write"} == {
                "attestations",
                "id-token",
            }
            continue
        assert [set(step) for step in job["steps"]] == [{"uses", "with"}]
        assert re.fullmatch(r"OWNER/verl-e2e@0{40}", job["steps"][0]["uses"])
        assert "ref" not in job["steps"][0]["with"]
    # YAML reads the key `on` as a truth.
    assert set(workflow[True]) <= {*WRITING, "workflow_dispatch"}


def test_the_network_policy_of_the_egress_page_is_one() -> None:
    """Nothing comes in, and out go only names and the proxy; every key is one of the API's."""
    block = _between(_text("egress.md"), "kubernetes").removeprefix("```yaml\n").removesuffix("```\n")
    document = yaml.safe_load(block)
    assert (document["apiVersion"], document["kind"]) == ("networking.k8s.io/v1", "NetworkPolicy")
    assert set(document["metadata"]) == {"name", "namespace"}
    spec = document["spec"]
    assert (spec["podSelector"], spec["policyTypes"], spec["ingress"]) == ({}, ["Ingress", "Egress"], [])
    for rule in spec["egress"]:
        assert set(rule) == {"to", "ports"}
        assert all(set(peer) <= {"namespaceSelector", "podSelector", "ipBlock"} for peer in rule["to"])
        assert all(set(port) == {"protocol", "port"} for port in rule["ports"])
    assert [peer["ipBlock"]["cidr"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer] == [
        "10.20.0.5/32"
    ]


@pytest.mark.parametrize("name", ["nftables", "slurm"])
def test_the_filters_of_the_egress_page_end_with_a_refusal(name: str) -> None:
    rules = [line.strip() for line in _between(_text("egress.md"), name).splitlines()]
    assert next(line for line in reversed(rules) if line not in {"}", "```", ""}).endswith("drop")
    assert sum(line.count("{") - line.count("}") for line in rules) == 0


def test_the_readme_leads_to_every_page() -> None:
    named = set(re.findall(r"\]\((docs/[\w./-]+\.md)\)", (ROOT / "README.md").read_text()))
    reached = {path for page in named for path in re.findall(r"\]\(([\w./-]+\.md)", (ROOT / page).read_text())}
    pages = {str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md")}
    assert pages - named - {f"docs/{path}" for path in reached} == set()


def test_the_site_and_the_index_have_every_page() -> None:
    site = (ROOT / "tools" / "site.yml").read_text()
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(re.findall(r": ([\w/-]+\.md)$", site, re.MULTILINE)) == sorted(pages)
    assert pages - set(re.findall(r"\]\(([\w/-]+\.md)\)", _text("README.md"))) == {"README.md"}


def test_the_documents_stay_short() -> None:
    """A page that grows takes the place of another: what was measured belongs into bench/results."""
    # The marks of tables are no words.
    words = sum(len(re.findall(r"\S*\w\S*", page.read_text())) for page in ALL_PAGES)
    assert words <= MOST_WORDS
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_every_path_of_ours_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:bot|runners|tests|bench|scripts|requirements|docs)/[\w./-]*\w/?)(?:::\w+)?`", page.read_text()
    )
    # `bot/verl_e2e/policy/verl-imports.json` and the like are files; these are Bridge's own tests.
    missing = {name for name in named if not (ROOT / name).exists() and not name.startswith("tests/unit_tests/")}
    assert missing == set()


def test_the_extras_of_the_design_page_are_those_of_the_project() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert set(re.findall(r"\(the extra `(\w+)`", _text("design.md"))) == extras


def test_the_locked_installation_has_what_the_page_says() -> None:
    lock = (ROOT / "requirements" / "run.txt").read_text()
    message = re.findall(r"\*\*(\w+)\*\* \(the extra `\w+`, in the lock", _text("design.md"))
    assert {"matplotlib"} == set(message)
    assert all(re.search(rf"(?m)^{name}==", lock) for name in message)
