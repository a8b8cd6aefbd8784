"""The page of a pull request, as the stand-in shows it to a browser: its checks, its comments and a form for one."""

import re
from html import escape
from urllib.parse import parse_qs

from tests.fakes.github_page import DARK, LIGHT, STYLE, markdown_html
from tests.fakes.github_standin.routing import Reply, Request
from tests.fakes.github_standin.world import World

_PATH = re.compile(r"/([\w.-]+/[\w.-]+)/pull/([0-9]{1,9})(?:/checks)?")
_EMOJI = {"eyes": "👀", "rocket": "🚀", "confused": "😕", "+1": "👍", "-1": "👎"}
_LOCAL = """
select, textarea, button { font: inherit; color: inherit; background: var(--code); border: 1px solid var(--line);
  border-radius: 6px; padding: 6px 10px } textarea { width: 100%; font-family: monospace } label { display: block }
.soft { font-weight: 400 } main { max-width: 920px; margin: 0 auto } h2 { margin: 0; font-size: 1em }
.box { padding: 16px; overflow-wrap: break-word } .box > :last-child { margin-bottom: 0 }
"""
# What changes is read again while someone looks; the form is not touched.
_SCRIPT = """
setInterval(async () => {
  const answer = await fetch(location.pathname)
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("thread")
  const shown = document.getElementById("thread")
  const opened = [...shown.querySelectorAll("details")].map((one) => one.open)
  if (found && found.dataset.of !== shown.dataset.of) {
    shown.replaceWith(found)
    found.querySelectorAll("details").forEach((one, at) => { one.open = opened[at] || false })
  }
}, 1500)
"""


def pull_page(world: World, request: Request) -> Reply | None:
    """The page, or what its form was sent for; None for another address."""
    found = _PATH.fullmatch(request.path)
    if found is None or found[1] != world.full_name or int(found[2]) not in world.repository.pulls:
        return None
    number = int(found[2])
    if request.method == "POST":
        sent = parse_qs(request.body.decode("utf-8", "replace"))
        who, text = sent.get("who", [""])[0], sent.get("text", [""])[0]
        if who not in _people(world) or not text.strip():
            return Reply(422, {"message": "choose who writes, and write something"})
        world.comment(who, text.replace("\r\n", "\n"), number)
        return Reply(303, None, {"Location": request.path})
    return Reply(200, _html(world, number).encode(), {"Content-Type": "text/html; charset=utf-8"})


def _people(world: World) -> dict[str, str]:
    """Who may be chosen, with what each is in the repository."""
    people = [user.login for user in world.state.users.values() if user.kind == "User"]
    return {login: world.repository.roles.get(login, "read") for login in people}


def _html(world: World, number: int) -> str:
    pull = world.pull(number)
    boxes = [_box("Checks", "".join(map(_check, _checks(world, number))) or "<p>None yet.</p>")]
    for comment in world.comments(number):
        reactions = " ".join(_EMOJI.get(item.content, item.content) for item in comment.reactions.values())
        html = markdown_html(comment.body, html=comment.app is not None)
        html = html.replace("<pre>", '<pre tabindex="0">').replace("<table>", '<table tabindex="0">')
        boxes.append(_box(comment.user.login, html, reactions))
    thread = "".join(boxes)
    choices = "".join(f'<option value="{name}">{name} ({role})</option>' for name, role in _people(world).items())
    form = (
        f'<form method="post"><p><label>Who writes <select name="who">{choices}</select></label></p>'
        '<p><label>Comment <textarea name="text" rows="3">/verl-e2e help</textarea></label></p>'
        "<button>Comment</button></form>"
    )
    title = f"{escape(pull.title)} {world.full_name}#{number}"
    colours = [
        f":root {{{''.join(f'--{key}: {value};' for key, value in theme.colours.items())}}}" for theme in _THEMES
    ]
    style = f"{colours[0]} @media (prefers-color-scheme: dark) {{ {colours[1]} }} {STYLE}{_LOCAL}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style></head>"
        f"<body><main><h1>{title}</h1>"
        f"<p>A stand-in for GitHub on this machine. Head <code>{pull.head_sha[:12]}</code></p>"
        f'<div id="thread" data-of="{len(thread)}-{hash(thread)}">{thread}</div>{_box("Write a comment", form)}'
        f"</main><script>{_SCRIPT}</script></body></html>"
    )


_THEMES = (LIGHT, DARK)


def _checks(world: World, number: int) -> list[tuple[str, str, str]]:
    return [
        (check.name, check.conclusion or check.status, check.title or "") for check in world.checks(world.head(number))
    ]


def _check(found: tuple[str, str, str]) -> str:
    name, state, title = map(escape, found)
    return f"<p><strong>{state}</strong> <code>{name}</code> {title}</p>"


def _box(heading: str, html: str, aside: str = "") -> str:
    head = f'<h2>{escape(heading)} <span class="soft">{aside}</span></h2>'
    return f'<article><header>{head}</header><div class="box">{html}</div></article>'
