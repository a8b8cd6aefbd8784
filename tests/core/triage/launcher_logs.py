"""What launchers, recorders and log stores write around the lines of a program: builders of prefixed logs.

Each builder takes the lines of a log, without line feeds, and gives the file as that program would leave it. The forms
are those of: srun -l, mpirun --tag-output, torchrun --tee, pdsh, docker compose, docker's json-file driver, the CRI log
format of kubelet, kubectl logs --prefix, stern, fluentd, GitHub Actions, syslog (RFC 3164), journalctl -o short and
-o json, ts of moreutils, dmesg, cat -n, foreman, Go's logfmt, Google Cloud's and Amazon's log stores,
Windows PowerShell.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import count

Rows = Sequence[str]
Builder = Callable[[Rows], bytes]

_START_S = 14 * 3600 + 7 * 60


def _clock(number: int) -> str:
    second = _START_S + number // 3
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def _nano(number: int) -> str:
    return f"2026-11-20T{_clock(number)}.{number * 7919 % 1_000_000_000:09}Z"


def joined(rows: Iterable[str]) -> bytes:
    """The rows as a text file."""
    return "".join(f"{row}\n" for row in rows).encode()


def before(head: Callable[[int], str]) -> Builder:
    """A builder that writes `head(number)` before each row, the number counted from 0."""
    return lambda rows: joined(head(number) + row for number, row in enumerate(rows))


def record(make: Callable[[int, str], object]) -> Builder:
    """A builder that packs each row into a JSON object of its own."""
    return lambda rows: joined(json.dumps(make(number, row)) for number, row in enumerate(rows))


def nested(*builders: Builder) -> Builder:
    """The first builder is the innermost."""

    def build(rows: Rows) -> bytes:
        data = joined(rows)
        for builder in builders:
            data = builder(data.decode().removesuffix("\n").split("\n"))
        return data

    return build


def _gcp(number: int, row: str) -> object:
    labels = {"instance_id": "8123123123123", "zone": "europe-west4-a"}
    return {
        "insertId": f"1x{number * 2654435761 % 2**32:08x}kq",
        "jsonPayload": {"message": row, "stream": "stderr"},
        "resource": {"type": "gce_instance", "labels": labels},
        "timestamp": _nano(number),
        "severity": "DEFAULT",
    }


def _fluentd(number: int, row: str) -> object:
    pod = {"pod_name": "verl-head-6d5f7", "namespace_name": "rl", "labels": {"ray.io/node-type": "head"}}
    return {"stream": "stderr", "logtag": "F", "log": row, "time": _nano(number), "kubernetes": pod}


def _journal(number: int, row: str) -> object:
    cursor = f"s=9a;i={number:x};b=1f;m={number * 7919:x};t=60a{number:x};x=4{number:x}"
    return {
        "__CURSOR": cursor,
        "__REALTIME_TIMESTAMP": str(1763648696000000 + number * 7919),
        "_HOSTNAME": "gpu-7",
        "_PID": "4711",
        "SYSLOG_IDENTIFIER": "bash",
        "PRIORITY": "6",
        "MESSAGE": row,
    }


def _logfmt(rows: Rows) -> bytes:
    heads = (f'time="2026-11-20T{_clock(number)}Z" level=info msg=' for number in count())
    return joined(f"{head}{json.dumps(row)} task=0" for head, row in zip(heads, rows, strict=False))


def _docker(number: int, row: str) -> object:
    return {"log": f"{row}\n", "stream": "stderr", "time": _nano(number)}


# Looked at while the reading of prefixes was written.
TUNED: dict[str, Builder] = {
    "host in brackets": before(lambda _: "[gpu-node-3]: "),
    "srun -l": before(lambda _: "0: "),
    "docker compose": before(lambda _: "trainer-1  | "),
    "cri": before(lambda n: f"{_nano(n)} std{'err' if n % 5 else 'out'} F "),
    "docker json": record(_docker),
    "github": before(lambda n: f"2026-11-20T{_clock(n)}.{n * 7919 % 10_000_000:07}Z "),
    "syslog": before(lambda n: f"Nov 20 {_clock(n)} gpu-7 verl[4711]: "),
    "kubectl --prefix": before(lambda _: "[pod/verl-head-6d5f7/ray-head] "),
    "mpirun tags": before(lambda _: "[1,0]<stderr>:"),
    "compose in github": nested(before(lambda _: "trainer-1  | "), before(lambda n: f"{_nano(n)[:-3]}Z ")),
    "docker json in cri": nested(record(_docker), before(lambda n: f"{_nano(n)} stdout F ")),
    "utf-16 with mark, crlf": lambda rows: "".join(f"{row}\r\n" for row in rows).encode("utf-16"),
    "crlf": lambda rows: "".join(f"{row}\r\n" for row in rows).encode(),
    "utf-8 with mark": lambda rows: joined(rows).decode().encode("utf-8-sig"),
}

# Written with the others, first run after the reading of prefixes was done.
UNSEEN: dict[str, Builder] = {
    "pdsh": before(lambda _: "node07: "),
    "srun -l padded": before(lambda _: " 0: "),
    "ts": before(lambda n: f"Nov 20 {_clock(n)} "),
    "ts -s": before(lambda n: f"{n // 180:02}:{n // 3 % 60:02}:{n % 60:02} "),
    "journal json": record(_journal),
    "fluentd": record(_fluentd),
    "google cloud": record(_gcp),
    "logfmt": _logfmt,
    "stern": before(lambda _: "verl-head-6d5f7 ray-head "),
    "torchrun tags": before(lambda _: "[default0]:"),
    "dmesg": before(lambda n: f"[{n * 0.217 + 12:12.6f}] "),
    "cat -n": before(lambda n: f"{n + 1:6}\t"),
    "cloudwatch": before(lambda n: f"2026-11-20T{_clock(n)}.{n % 1000:03}+00:00 verl/main/0f3a9d "),
    "foreman": before(lambda n: f"{_clock(n)} trainer.1   | "),
    "unknown mark": before(lambda _: "node07 \N{BLACK RIGHT-POINTING TRIANGLE} "),
    "unknown signs": before(lambda _: "<30>@gpu-3# "),
    "slashes": before(lambda n: f"2026/11/20 {_clock(n)} [node-3/rank 0] "),
    "json array": lambda rows: joined(
        f"{'[' if not number else ''}{json.dumps({'ts': number, 'host': 'a', 'text': row})},"
        for number, row in enumerate(rows)
    ),
    "pdsh in docker json": nested(before(lambda _: "node07: "), record(_docker)),
    "srun in ts in kubectl": nested(
        before(lambda _: "0: "), before(lambda n: f"Nov 20 {_clock(n)} "), before(lambda _: "[pod/verl/ray] ")
    ),
    "fluentd in cri in host": nested(
        record(_fluentd), before(lambda n: f"{_nano(n)} stdout F "), before(lambda _: "[head-0]: ")
    ),
    "utf-16 big, no mark": lambda rows: joined(rows).decode().encode("utf-16-be"),
    "utf-16 little, no mark": lambda rows: joined(rows).decode().encode("utf-16-le"),
}


def _loki(number: int, row: str) -> object:
    return {"labels": {"pod": "verl-head", "job": "rl/ray"}, "line": row, "timestamp": _nano(number)}


def _elastic(number: int, row: str) -> object:
    source = {"@timestamp": _nano(number), "message": row, "host": {"name": "gpu-7"}, "log": {"offset": number * 119}}
    return {"_index": "logs-2026.11.20", "_id": f"{number * 40503 % 65536:04x}aZ", "_source": source}


# A second set, written when the first two were right everywhere, and first run then.
LATE: dict[str, Builder] = {
    "skypilot": before(lambda _: "(head, rank=0, pid=4711) "),
    "jenkins": before(lambda n: f"[2026-11-20T{_clock(n)}.{n % 1000:03}Z] "),
    "gitlab": before(lambda n: f"{_nano(n)[:-4]}Z 00O "),
    "teamcity": before(lambda n: f"[{_clock(n)}][Step 1/2] "),
    "glog": before(lambda n: f"I1120 {_clock(n)}.{n * 7919 % 1_000_000:06} 4711 launcher.cc:55] "),
    "rust tracing": before(lambda n: f"{_nano(n)}  INFO launcher::proc{{rank=3}}: "),
    "python logging": before(lambda n: f"2026-11-20 {_clock(n)},{n % 1000:03} - launcher - INFO - "),
    "loguru": before(lambda n: f"2026-11-20 {_clock(n)}.{n % 1000:03} | INFO     | launcher:pump:88 - "),
    "rank colon": before(lambda _: "[rank:3] "),
    "arrow": before(lambda _: "gpu-3 => "),
    "node and task": before(lambda _: "node01[3]: "),
    "kubectl with time": before(lambda n: f"[pod/verl-head/ray] {_nano(n)} "),
    "loki": record(_loki),
    "loki text": before(lambda n: f'{_nano(n)} {{pod="verl-head", job="rl/ray"}} '),
    "elastic": record(_elastic),
    "vector": record(lambda n, row: {"appname": "ray", "n": n, "message": row, "severity": "info", "version": 1}),
    "bunyan": record(
        lambda _, row: {"name": "verl", "hostname": "gpu-7", "pid": 4711, "level": 30, "msg": row, "v": 0}
    ),
    "percent mark": before(lambda _: "%STDERR% "),
    "two numbers": before(lambda _: "3/16 "),
    "equals": before(lambda _: "rank=3 "),
    "elapsed": before(lambda n: f"+{n * 0.31:.2f}s "),
    "12 hour clock": before(lambda n: f"11/20/2026 {int(_clock(n)[:2]) - 12}:{_clock(n)[3:]} PM "),
    "date of C": before(lambda n: f"Fri Nov 20 {_clock(n)} 2026: "),
    "tab": before(lambda _: "gpu-7\t"),
    "line and file": before(lambda n: f"run.log:{n + 1}:"),
    "journal in docker json": nested(before(lambda n: f"Nov 20 {_clock(n)} gpu-7 verl[4711]: "), record(_docker)),
    "logfmt in kubectl": nested(_logfmt, before(lambda _: "[pod/verl/ray] ")),
    "json in json": nested(record(_docker), record(_loki)),
    "srun in host in github": nested(
        before(lambda _: "3: "), before(lambda _: "[gpu-3]: "), before(lambda n: f"{_nano(n)[:-3]}Z ")
    ),
    "utf-16 of cri": lambda rows: before(lambda n: f"{_nano(n)} stdout F ")(rows).decode().encode("utf-16"),
}

EVERY = TUNED | UNSEEN | LATE


def interleaved(first: Rows, second: Rows, label: Callable[[int], str]) -> bytes:
    """Two programs' lines in turn, each behind the label of its own."""
    rows = []
    for number in range(max(len(first), len(second))):
        rows += [label(index) + log[number] for index, log in enumerate((first, second)) if number < len(log)]
    return joined(rows)
