"""What people read on GitHub, as GitHub's own renderer shows it: commands are code that can be copied as it is."""

import re
from html.parser import HTMLParser

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options

from tests.fakes.app import APP, POLICY, REF, App, blocks, fails
from tests.fakes.events import check_event, comment_event
from tests.fakes.trees import sha
from verl_e2e.adapters.files.run_folder import FolderError
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.pulls.forge import PullState
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.core.report.verdict_rows import verdict_sentence
from verl_e2e.core.text.escape import HOME

# Each tells a person what to do by a command, or quotes one.
SAID = (
    "/verl-e2e",
    "/verl-e2e nonsense",
    "/verl-e2e approve {short}",
    "/verl-e2e approve {short} {head}",
    "/verl-e2e approve",
    "/verl-e2e approve {other}",
    "/verl-e2e approve {upper}",
    "/verl-e2e approve main",
    "/verl-e2e run now",
    "/verl-e2e rerun everything",
    "/verl-e2e override 0",
    "/verl-e2e override 9 `reason` of me",
    "/verl-e2e level0 image=evil/image:1",
    "/verl-e2e level0 variant=2-vpp",
    "/verl-e2e level0 steps=`2`",
    "/verl-e2e explain src/`a`.py",
    "/verl-e2e explain src/peft/lora.py",
    "/verl-e2e help",
    "/VERL-E2E HELP",
    "\n".join(["/verl-e2e status"] * 12),
)


class Shown(HTMLParser):
    """The text of a page outside of code, and the pieces of code."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.text = ""
        self.code: list[str] = []

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        if tag == "code":
            self.inside += 1
            self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside -= tag == "code"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.code[-1] += data
        else:
            self.text += data


def rendered(markdown: str) -> Shown:
    html = cmarkgfm.github_flavored_markdown_to_html(markdown, Options.CMARK_OPT_UNSAFE)
    page = Shown()
    page.feed(html)
    page.close()
    return page


def check_shown(app: App) -> list[Shown]:
    """Everything of ours on GitHub, held to the rule; gives the pages."""
    written = [comment.body for talk in app.hub.talk.values() for comment in talk if comment.app_id == APP]
    written += [text for check in app.hub.runs for text in (check.summary, check.text) if text]
    pages = [rendered(text) for text in written]
    for page, text in zip(pages, written, strict=True):
        assert "`" not in page.text, text
        assert not re.search(r"(?<![\w.])/verl-e2e", page.text), text
        assert not re.search(r"\b[0-9a-f]{40}\b", page.text), text
    for check in app.hub.runs:
        assert "`" not in check.title
    return pages


def asks_to_approve(pages: list[Shown], head: str) -> bool:
    return any(code.strip() == f"/verl-e2e approve {sha(head)}" for page in pages for code in page.code)


def look(app: App, times: int = 1) -> None:
    for _ in range(times):
        app.clock.pass_s(60)
        app.handlers.reconciler.reconcile(REF)


@pytest.mark.parametrize("words", SAID)
def test_every_answer_shows_commands_as_code(words: str) -> None:
    app = App()
    app.open(head_repository="evil/bridge", author="mallory")
    look(app)
    text = words.format(head=sha("one"), short=sha("one")[:7], other=sha("two"), upper=sha("one")[:12].upper())
    for author in ("mona", "stranger"):
        app.handlers.events.hear(comment_event(app.hub.say(REF, author, text)))
    look(app)
    check_shown(app)


@pytest.mark.parametrize("given", ("9f1060f", sha("one")[:12], sha("two"), "main", ""))
def test_who_approves_without_the_whole_sha_is_shown_the_command_to_copy(given: str) -> None:
    app = App()
    app.open(head_repository="evil/bridge", author="mallory")
    app.handlers.events.hear(comment_event(app.hub.say(REF, "mona", f"/verl-e2e approve {given}")))
    assert asks_to_approve(check_shown(app), "one")
    assert app.ledger.written == []


def test_a_fork_shows_the_command_on_card_and_gate_and_it_works_as_copied() -> None:
    app = App()
    app.open(head_repository="evil/bridge", author="mallory")
    look(app)
    card, gate = rendered(app.hub.cards(7)[0].body), rendered(app.hub.gate(sha("one")).summary)  # type: ignore[union-attr]
    assert asks_to_approve([card], "one")
    assert asks_to_approve([gate], "one")
    copied = next(code for code in card.code if code.startswith("/verl-e2e approve"))
    app.handlers.events.hear(comment_event(app.hub.say(REF, "mona", copied)))
    look(app)
    assert len(app.backend.live()) == 1


HELD = {
    "fork": {"head_repository": "evil/bridge"},
    "first": {"author_association": "FIRST_TIMER"},
    "draft": {"draft": True},
    "closed": {"state": PullState.CLOSED},
    "strange": {"head_repository": "evil/`x`", "author": "mallory"},
}


@pytest.mark.parametrize("how", (*HELD, "cancel", "asked", "policy", "override", "doctor"))
def test_every_state_of_a_pull_request_shows_commands_as_code(how: str) -> None:
    app = App()
    app.open()
    look(app)
    if how in HELD:
        app.open(**HELD[how])  # type: ignore[arg-type]
    if how in {"asked", "policy"}:
        moved, text = sha("moved"), {"asked": "gate: {start: asked}\nrules:", "policy": "rulez:"}[how]
        app.hub.files[(moved, POLICY_PATH)] = POLICY.replace("rules:", text).encode()
        app.open("two")
        app.hub.tips["main"] = moved
    if how == "doctor":
        app.backend.fail = ["submit?"]
        app.open("two")
    words = {"cancel": "cancel", "override": f"override 0 {sha('one')} `all` hosts are gone"}.get(how)
    if words:
        app.handlers.events.hear(comment_event(app.hub.say(REF, "mona", f"/verl-e2e {words}")))
    for _ in range(4):
        look(app)
        app.backend.settle()
    check_shown(app)


@pytest.mark.parametrize("how", (fails, blocks))
def test_what_ended_without_a_pass_shows_commands_as_code(how: object) -> None:
    app = App()
    app.open()
    look(app)
    app.backend.finish(app.backend.live()[0], how)  # type: ignore[arg-type]
    look(app, 2)
    pages = check_shown(app)
    assert any("/verl-e2e rerun" in code for page in pages for code in page.code)


REASONS = (
    "GitHub refused; `verl-e2e doctor` says what is missing",
    "comment `/verl-e2e rerun` to test the head as it is now",
    f"the head is {sha('two')} now, and the job is for {sha('one')}",
    "a long story " * 14 + "`/verl-e2e rerun blocked` runs it again, and there is more to tell of it here " * 3,
    "an odd ` backtick that a log may hold",
    "```",
)


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_that_was_kept_and_read_back_shows_its_commands_as_code(reason: str) -> None:
    app = App()
    app.open()
    look(app)
    (run,) = app.ledger.kept.values()
    refused = run.model_copy(update={"state": RunState.REFUSED, "reason": reason})
    app.ledger.kept[run.key] = type(run).model_validate_json(refused.model_dump_json())
    look(app)
    if reason in REASONS[:4]:
        check_shown(app)
    shown = rendered(app.hub.cards(7)[0].body)
    assert ("`" in shown.text) == (reason in REASONS[4:])


def test_heading_table_and_gate_say_the_same_of_a_held_and_of_a_cancelled_pull_request() -> None:
    for how, word, icon in (("fork", "held", "⏸️"), ("cancel", "cancelled", "⏹️")):
        app = App()
        app.open(head_repository="evil/bridge" if how == "fork" else "octo/bridge")
        look(app)
        if how == "cancel":
            app.handlers.events.hear(comment_event(app.hub.say(REF, "alice", "/verl-e2e cancel")))
        for _ in range(3):
            look(app)
            app.backend.settle()
        card, gate = app.hub.cards(7)[0].body, app.hub.gate(sha("one"))
        assert gate is not None
        assert f"### {icon} verl-e2e: {word.title()} - {gate.title}\n" in card
        assert card.count(f"| {icon} {word.title()} |") == 3
        assert gate.summary.count(f"| {icon} {word} |") == 3
        # Each reason stands where it belongs, and once.
        assert card.count(gate.title) == 1
        assert "blocked" not in (card + gate.summary).lower()


def test_the_table_of_jobs_has_a_heading_for_each_column() -> None:
    app = App()
    app.open()
    look(app)
    header = next(line for line in app.hub.cards(7)[0].body.splitlines() if line.startswith("| job"))
    assert all(cell.strip() for cell in header.strip("|").split("|"))


def test_a_button_pressed_by_somebody_without_the_role_is_answered_once() -> None:
    app = App()
    app.open()
    look(app)
    gate = app.hub.gate(sha("one"))
    assert gate is not None
    for delivery in ("a", "a", "b"):
        app.handlers.events.hear(check_event(gate.external_id, "one", sender="stranger", button="cancel"), delivery)
    (answer,) = (comment.body for comment in app.hub.talk[7] if comment.app_id == APP and "reply" in comment.body)
    assert "stranger" in answer
    assert "needs the role write" in answer
    check_shown(app)


def comment(app: App, body: str, author: str = "alice") -> str:
    """Someone comments; gives our answer, empty for none."""
    before = len(app.hub.talk.get(7, ()))
    app.handlers.events.hear(comment_event(app.hub.say(REF, author, body)))
    ours = [item.body for item in app.hub.talk[7][before:] if item.app_id == APP and "reply" in item.body]
    return "".join(ours)


def test_extras_with_different_options_are_told_apart_wherever_they_are_shown() -> None:
    app = App()
    app.open(path="src/lora/a.py")
    asked = ("steps=3", "model=Qwen/Qwen3-0.6B", "model=Qwen/Qwen3-0.6B steps=3")
    for options in asked:
        assert comment(app, f"/verl-e2e level0 {options}") == ""
    look(app)
    card, gate = app.hub.cards(7)[0].body, app.hub.gate(sha("one"))
    assert gate is not None
    for options in asked:
        assert sum(f"`{options}` |" in line for line in card.splitlines()) == 1
        assert sum(f"`{options}` |" in line for line in gate.text.splitlines()) == 1
        (check,) = [run for run in app.hub.runs if run.title.startswith(f"With {options}: ")]
        assert f"Requested with `{options}`." in check.summary
    check_shown(app)


@pytest.mark.parametrize(
    "options", ("image=evil/x:1", "image=verlai/verl-x:1", "steps=2 image=docker.io/verlai/verl:1")
)
def test_a_refused_option_is_answered_and_leaves_nothing(options: str) -> None:
    app = App()
    app.open(path="src/lora/a.py")
    look(app, 2)
    before = app.hub.cards(7)[0].body
    answer = comment(app, f"/verl-e2e level1 {options}")
    assert "only images of verlai/verl, the policy's, may be named" in answer
    assert any(reaction == "confused" for _, reaction in app.hub.reactions)
    look(app)
    assert (app.hub.cards(7)[0].body, len(app.hub.runs)) == (before, 2)


def test_a_verl_that_is_nowhere_is_a_refused_option() -> None:
    app = App()
    app.open(path="src/lora/a.py")

    class Nowhere:
        def resolve(self, _: str) -> str:
            raise FolderError("names no commit")

    app.handlers = app.connect(verl=lambda _: Nowhere())  # type: ignore[arg-type, return-value]
    answer = comment(app, "/verl-e2e level0 verl_ref=nowhere")
    assert "`verl_ref=nowhere`: verl's repository has no such commit" in answer
    assert app.ledger.written == []


def test_what_cannot_be_run_counts_for_no_gpu_minutes() -> None:
    app = App()
    app.open(path="src/lora/a.py")
    assert comment(app, "/verl-e2e level1 model=no-one/knows") == ""
    look(app)
    known = app.hub.cards(7)[0].body
    assert re.search(r"about (\d+) planned", known)
    # A job of an older command whose option the policy refuses by now.
    app.ledger.written[0] = app.ledger.written[0].model_copy(update={"options": {"image": "evil/image:1"}})
    look(app)
    row = next(line for line in app.hub.cards(7)[0].body.splitlines() if "image=evil" in line and line.startswith("|"))
    assert row.split("|")[4].strip() == ""


def test_a_follow_up_links_our_documents_and_no_other() -> None:
    found = verdict_sentence("Give the adapter path. See docs/triage.md#adapter-path. And docs/parity.md too.")
    assert rendered(found).code == ["docs/triage.md#adapter-path", "docs/parity.md"]
    assert f"[`docs/triage.md#adapter-path`]({HOME}/blob/main/docs/triage.md#adapter-path)." in found
    assert f"({HOME}/blob/main/docs/parity.md)" in found
    for foreign in ("src/docs/triage.md", "docs/a.md", "xdocs/triage.md", "docs/training/space.md"):
        assert HOME not in verdict_sentence(foreign), foreign


def test_a_plan_of_nothing_that_wants_an_approval_shows_the_whole_command() -> None:
    app = App()
    moved = sha("moved")
    app.hub.files[(moved, POLICY_PATH)] = POLICY.replace("rules:", "gate: {none: approve}\nrules:").encode()
    app.hub.tips["main"] = moved
    app.open(path="docs/a.md", base_sha=moved, head_repository="someone-with-a-long-name/megatron-bridge-fork")
    look(app)
    gate = app.hub.gate(sha("one"))
    assert gate is not None
    assert asks_to_approve([rendered(app.hub.cards(7)[0].body)], "one")
    assert asks_to_approve([rendered(gate.summary)], "one")
    assert "approve" not in gate.title.replace("approval", "")
    check_shown(app)
