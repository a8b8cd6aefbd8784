"""Generated cases of runs that were asked for one thing and did another, and of runs that did as they were asked.

Each is a real log of a passing run in which what was asked for, or what the run shows, was changed: an echoed
variable of the wrapper, an override on the command line, the configuration that the run printed, its counters, its
models, or the paths in its warnings. The expected answer follows from the class: a contradiction is `blocked` with a
cause that names both sides.
"""

import re
from collections.abc import Iterator

from tests.core.triage.silent_cases import base
from tests.core.triage.tables import BLOCKED, PASS, Case

ACTOR, REF, CRITIC = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron", "critic.megatron"
LORA = "actor_rollout_ref.model.lora.rank"


COMMAND = re.compile(rb"^.*\+ python3 -m verl\.trainer\.main_ppo .*$", re.MULTILINE)


def echoed(log: bytes, variable: str, value: str | None) -> bytes:
    """The log with another value after `+ VARIABLE=`, or without that line."""
    shape = re.compile(rb"^(.*\+ (?:export )?)" + variable.encode() + rb"=.*\n", re.MULTILINE)
    assert shape.search(log), variable
    row = rb"" if value is None else rb"\g<1>" + variable.encode() + b"=" + value.encode() + b"\n"
    return shape.sub(row, log)


def commanded(log: bytes, *overrides: str) -> bytes:
    """The log with overrides at the end of the command line."""
    return COMMAND.sub(lambda found: found[0] + b" " + " ".join(overrides).encode(), log, count=1)


def uncommanded(log: bytes) -> bytes:
    """The log without its command line: only the wrapper's variables tell what was asked for."""
    return COMMAND.sub(b"", log)


def unechoed(log: bytes) -> bytes:
    """The log without what the shell echoed: the command line alone tells what was asked for."""
    rows = log.split(b"\n")
    return b"\n".join(row for row in rows if not re.search(rb"(?:^|\d )\++ \w+=|(?:^|\d )\++ export ", row))


def replaced(log: bytes, old: bytes, new: bytes) -> bytes:
    assert re.search(old, log), old
    return re.sub(old, new, log)


def configured(log: bytes, section: str, key: str, value: str) -> bytes:
    """The log whose printed configuration shows another value under `key`, below the first line with `section`."""
    at = log.index(b"'actor_rollout_ref':")
    at = log.index(f"'{section}':".encode(), at)
    found = re.compile(f"'{key}': ".encode() + rb"(?!None)[^,}\n]+").search(log, at)
    assert found is not None
    return log[: found.start()] + f"'{key}': {value}".encode() + log[found.end() :]


# Variable of the wrapper, the value that was asked for instead, words of the cause.
VARIABLES = (
    ("LORA_RANK", "16", "lora.rank"),
    ("LORA_RANK", "0", "lora.rank"),
    ("CRITIC_LORA_RANK", "8", "critic.model.lora.rank"),
    ("VANILLA_MBRIDGE", "True", "vanilla_mbridge"),
    ("VALUE_VANILLA_MBRIDGE", "True", "critic.megatron.vanilla_mbridge"),
    ("USE_MBRIDGE", "False", "use_mbridge"),
    ("USE_MEGATRON_FSDP", "True", "use_megatron_fsdp"),
    ("ACTOR_TP", "2", "tensor_model_parallel_size"),
    ("ACTOR_PP", "4", "pipeline_model_parallel_size"),
    ("REF_CP", "2", "context_parallel_size"),
    ("CRITIC_EP", "2", "expert_model_parallel_size"),
    ("ACTOR_ETP", "2", "expert_tensor_parallel_size"),
    ("ACTOR_VPP", "2", "virtual_pipeline_model_parallel_size"),
    ("ROLLOUT_TP", "2", "rollout.tensor_model_parallel_size"),
    ("ENGINE", "sglang", "rollout.name"),
    ("ADV_ESTIMATOR", "grpo", "adv_estimator"),
    ("MAX_RESPONSE_LENGTH", "1024", "response_length"),
    ("MODEL_PATH", "/models/another", "model.path"),
    ("TOTAL_TRAIN_STEPS", "100", "total_training_steps"),
    ("SAVE_FREQ", "5", "save_freq"),
    ("RESUME_MODE", "auto", "resume_mode"),
)
# Overrides that the printed configuration contradicts: what it shows is the same run as before.
OVERRIDES = (
    f"{LORA}=32",
    "critic.model.lora.rank=0",
    f"{ACTOR}.vanilla_mbridge=True",
    f"++{CRITIC}.vanilla_mbridge=true",
    f"{ACTOR}.use_mbridge=False",
    f"{REF}.use_megatron_fsdp=True",
    f"{ACTOR}.tensor_model_parallel_size=2",
    f"{CRITIC}.pipeline_model_parallel_size=2",
    f"{ACTOR}.context_parallel_size=4",
    f"{REF}.expert_model_parallel_size=8",
    "actor_rollout_ref.rollout.name=sglang",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
    "actor_rollout_ref.model.path=/models/another",
    "actor_rollout_ref.rollout.response_length=2048",
    "reward.reward_model.enable=True",
    "trainer.total_training_steps=50",
    "trainer.save_freq=10",
    "trainer.resume_mode=auto",
    "trainer.n_gpus_per_node=8",
    "algorithm.adv_estimator=grpo",
    "'actor_rollout_ref.actor.strategy=\"fsdp\"'",
    "actor_rollout_ref.actor.optim.lr=7e-3",
)


def asked() -> Iterator[Case]:
    """What the echo asks for, and the configuration contradicts."""
    for index, (variable, value, text) in enumerate(VARIABLES):
        for log in ("one", "twenty"):
            changed = echoed(uncommanded(base(log)), variable, value)
            name = f"{variable}={value} in {log}"
            yield Case("echoed variable", name, changed, BLOCKED, (), (text,), bool(index % 2))
    for index, override in enumerate(OVERRIDES):
        key = override.strip("'+").partition("=")[0]
        for log in ("one", "twenty"):
            yield Case(
                "override",
                f"{override} in {log}",
                commanded(unechoed(base(log)), override),
                BLOCKED,
                (),
                (key,),
                bool(index % 2),
            )
    for variable, value, text in VARIABLES[:8]:
        changed = echoed(base("one"), variable, value)
        yield Case("variable that the command dropped", f"{variable}={value}", changed, BLOCKED, (), (text,))


# What the run shows. Section of the configuration, key, value that it prints instead, words of the cause.
CONFIGURED = (
    ("lora", "rank", "0", "lora.rank"),
    ("lora", "rank", "64", "lora.rank"),
    ("megatron", "vanilla_mbridge", "True", "vanilla_mbridge"),
    ("megatron", "use_mbridge", "False", "use_mbridge"),
    ("megatron", "tensor_model_parallel_size", "2", "tensor_model_parallel_size"),
    ("megatron", "pipeline_model_parallel_size", "2", "pipeline_model_parallel_size"),
    ("megatron", "context_parallel_size", "2", "context_parallel_size"),
    ("megatron", "use_megatron_fsdp", "True", "use_megatron_fsdp"),
    ("rollout", "name", "'sglang'", "rollout.name"),
    ("rollout", "name", "'hf'", "rollout.name"),
    ("trainer", "save_freq", "20", "save_freq"),
    ("trainer", "resume_mode", "'auto'", "resume_mode"),
    ("trainer", "total_training_steps", "3", "total_training_steps"),
    ("trainer", "n_gpus_per_node", "8", "n_gpus_per_node"),
    ("algorithm", "adv_estimator", "'grpo'", "adv_estimator"),
)
INSTALLED = (
    b"/usr/local/lib/python3.12/site-packages",
    b"/usr/lib/python3/dist-packages",
    b"/srv/other-checkout/Megatron-Bridge/src",
    b"/workspace/Bridge-main/src",
    b"/opt/venv/lib/python3.11/site-packages",
)


def shown() -> Iterator[Case]:
    for index, (section, key, value, text) in enumerate(CONFIGURED):
        for log in ("one", "twenty"):
            changed = configured(base(log), section, key, value)
            name = f"{section}.{key}: {value} in {log}"
            yield Case("printed configuration", name, changed, BLOCKED, (), (text,), bool(index % 2))
    for index, root in enumerate(INSTALLED):
        for log in ("one", "twenty"):
            changed = replaced(base(log), rb"\S*/bridge/src(?=/megatron/bridge/)", root)
            text = root.decode()
            yield Case("another Bridge", f"{text} in {log}", changed, BLOCKED, ("import",), (text,), bool(index % 2))
    failed = with_traceback(b"/usr/lib/python3/site-packages")
    yield Case("another Bridge", "an error of another Bridge", failed, BLOCKED, ("import",), ("site-packages",))
    core = replaced(base("one"), rb"\S*/3rdparty/Megatron-LM(?=/megatron/core/)", INSTALLED[0])
    yield Case("another Megatron-LM", "Megatron-LM", core, BLOCKED, ("import",), ("site-packages",))


def with_traceback(root: bytes) -> bytes:
    """A run whose Bridge, in that folder, raised while it built the adapter, before it warned of anything."""
    log = replaced(base("one"), rb".*/megatron/bridge/.*\n", b"")
    lines = (
        b"Traceback (most recent call last):",
        b'  File "' + root + b'/megatron/bridge/peft/lora.py", line 93, in transform',
        b"ValueError: unsupported module",
    )
    at = log.index(b"\n", log.index(b"Enabling LORA")) + 1
    return log[:at] + b"".join(b"(WorkerDict pid=7470) " + line + b"\n" for line in lines)


def counted() -> Iterator[Case]:
    one, twenty = base("one"), base("twenty")
    for rank in (b"8", b"0", b"32"):
        changed = replaced(one, rb"LORA with rank=4", b"LORA with rank=" + rank)
        yield Case("adapter", f"rank={rank.decode()}", changed, BLOCKED, (), ("rank",), rank == b"0")
    fsdp = replaced(one, rb"\bDistributedDataParallel contains", b"FullyShardedDataParallelV1 contains")
    yield Case("wrapper class", "FSDP although DDP was asked for", fsdp, BLOCKED, (), ("use_megatron_fsdp",))
    both = echoed(uncommanded(one), "USE_MEGATRON_FSDP", "True")
    ddp = replaced(both, rb"'use_megatron_fsdp': False", b"'use_megatron_fsdp': True")
    yield Case("wrapper class", "DDP although FSDP", ddp, BLOCKED, (), ("use_megatron_fsdp",), unseen=True)
    for place in (b"1, 0, 0", b"0, 0, 2"):
        changed = replaced(one, rb"model parallel rank \(0, 0, 0\)", b"model parallel rank (" + place + b")")
        yield Case("ranks", place.decode(), changed, BLOCKED, (), ("parallel_size",), place.endswith(b"2"))
    for log, new in ((twenty, b"4"), (one, b"3")):
        changed = replaced(log, rb"Total training steps: \d+", b"Total training steps: " + new)
        yield Case("steps", f"{new.decode()} planned", changed, BLOCKED, (), ("steps",), new == b"3")
    later = re.compile(rb"step:(?:[5-9]|1\d|20) - |\| (?:[5-9]|1\d|20)/20 ")
    rows = [row for row in twenty.split(b"\n") if not later.search(row)]
    short = replaced(b"\n".join(rows), rb"\d+%\|(\S+)\s*\| 4/20 ", rb"100%|\1| 4/4 ")
    yield Case("steps", "4 done", short, BLOCKED, (), ("steps",), unseen=True)
    long = replaced(one, rb"(\| 1/)1 ", rb"\g<1>3 ").replace(b"100%|", b"33%|")
    done = long.replace(b"step:1 - ", b"step:3 - ").replace(b" 33%|", b" 100%|").replace(b"| 1/3 ", b"| 3/3 ")
    yield Case("steps", "3 done", done, BLOCKED, (), ("steps",))


def kept() -> Iterator[Case]:
    """Checkpoints that were asked for and not written, or not loaded."""
    save = "trainer.save_freq=1"
    for log in ("one", "twenty"):
        changed = configured(commanded(base(log), save), "trainer", "save_freq", "1")
        yield Case("no checkpoint", f"saves asked in {log}", changed, BLOCKED, ("checkpoint_save",), ("save_freq",))
        quiet = configured(uncommanded(echoed(base(log), "SAVE_FREQ", "1")), "trainer", "save_freq", "1")
        yield Case(
            "no checkpoint", f"echo asks in {log}", quiet, BLOCKED, ("checkpoint_save",), ("SAVE_FREQ",), unseen=True
        )
        resume = configured(base(log), "trainer", "resume_mode", "'auto'")
        at = resume.index(b"step:1 - ")
        at = resume.rindex(b"\n", 0, at) + 1
        scratch = resume[:at] + b"(TaskRunnerV1 pid=6726) Training from scratch\n" + resume[at:]
        for unseen, made in (
            (False, commanded(scratch, "trainer.resume_mode=auto")),
            (True, uncommanded(echoed(scratch, "RESUME_MODE", "auto"))),
        ):
            yield Case("from scratch", f"resume in {log}", made, BLOCKED, ("checkpoint_load",), ("resume",), unseen)


# Runs that did as they were asked, in other forms. They must stay a pass.
AS_CONFIGURED = (
    "actor_rollout_ref.model.lora.rank=4",
    "++critic.model.lora.rank=4",
    f"+{ACTOR}.vanilla_mbridge=false",
    f"{ACTOR}.vanilla_mbridge=False",
    f"{REF}.tensor_model_parallel_size=1",
    f"{CRITIC}.virtual_pipeline_model_parallel_size=null",
    "actor_rollout_ref.rollout.name=vllm",
    "'actor_rollout_ref.rollout.name=\"vllm\"'",
    "trainer.logger=console",
    "trainer.save_freq=-1",
    "reward.reward_model.enable=False",
    "algorithm.kl_ctrl.kl_coef=1e-3",
    "algorithm.kl_ctrl.kl_coef=0.00100",
    "trainer.nnodes=1",
    "+not.printed.anywhere=3",
    "actor_rollout_ref.model.path=${oc.env:MODEL}",
    "'actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model,optimizer,extra]'",
    "~actor_rollout_ref.actor.optim.unknown",
    "hydra.run.dir=/tmp/outputs",
    "model_engine=megatron",
)
OVERRIDDEN = (
    # Later ones win, so the first of each pair asks for nothing.
    (f"{LORA}=64", f"{LORA}=4"),
    (f"{ACTOR}.vanilla_mbridge=True", f"++{ACTOR}.vanilla_mbridge=False"),
    ("trainer.save_freq=7", "trainer.save_freq=-1"),
    ("actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.name=vllm"),
    (f"{ACTOR}.tensor_model_parallel_size=8", f"{ACTOR}.tensor_model_parallel_size=1"),
)
# A variable that another one, more particular, takes the place of; or that is not the wrapper's.
UNUSED = (
    ("COMMON_TP", "2"),
    ("COMMON_PP", "4"),
    ("COMMON_EP", "2"),
    ("TRAIN_TP", "2"),
    ("INFER_TP", "2"),
    ("RM_MODEL_PATH", "/models/reward"),
    ("DUMMY_MODEL_PATH", "/models/dummy"),
    ("PROFILE_STEPS", "[1]"),
    ("OPTIM_MEMORY_EFFICIENT", "True"),
)


def as_asked() -> Iterator[Case]:
    for name in ("one", "two", "twenty"):
        log = base(name)
        variants = {
            "as recorded": log,
            "no command": uncommanded(log),
            "no echo": unechoed(log),
            "neither": unechoed(uncommanded(log)),
        }
        for form, made in variants.items():
            yield Case("as asked", f"{form}, {name}", made, PASS)
    for index, override in enumerate(AS_CONFIGURED):
        for name in ("one", "twenty"):
            made = commanded(base(name), override)
            yield Case("the same in other words", f"{override} in {name}", made, PASS, unseen=bool(index % 2))
    for pair in OVERRIDDEN:
        for name in ("one", "twenty"):
            yield Case("later overrides win", f"{pair[1]} in {name}", commanded(base(name), *pair), PASS)
    for variable, value in UNUSED:
        for name in ("one", "twenty"):
            changed = echoed(uncommanded(base(name)), variable, value)
            yield Case("variable of no effect", f"{variable}={value} in {name}", changed, PASS)
    yield from _unprinted()


def _unprinted() -> Iterator[Case]:
    one = base("one")
    yield Case("not printed", "no configuration", replaced(one, rb"\{'actor_rollout_ref':.*\n", b"\n"), PASS)
    yield Case("not printed", "no PYTHONPATH", replaced(one, rb".*PYTHONPATH=.*\n", b"\n"), PASS)
    installed = replaced(one, rb".*PYTHONPATH=.*\n", b"\n")
    installed = replaced(installed, rb"\S*/bridge/src(?=/megatron/bridge/)", INSTALLED[0])
    yield Case("not printed", "installed, and nothing else asked for", installed, PASS)
    alone = replaced(one, rb"PYTHONPATH=\S*", b"PYTHONPATH=/workspace/verl")
    alone = replaced(alone, rb"\S*/bridge/src(?=/megatron/bridge/)", INSTALLED[0])
    yield Case("not printed", "only verl was asked for", alone, PASS)
    slash = replaced(one, rb"PYTHONPATH=(\S*?)/bridge/src:", rb"PYTHONPATH=\1/bridge/src/:")
    yield Case("the same in other words", "a slash at the end", slash, PASS)
    printed = b"(TaskRunnerV1 pid=6726) [response] + LORA_RANK=64, and VANILLA_MBRIDGE=True was asked for\n"
    at = one.rindex(b"\n", 0, one.index(b"step:1 - ")) + 1
    yield Case("not printed", "said by the model", one[:at] + printed + one[at:], PASS)
    split = COMMAND.sub(lambda found: found[0].replace(b" trainer.", b" \\\n    trainer."), one)
    yield Case("the same in other words", "a command over several lines", split, PASS)
    two = replaced(base("two"), rb"(?m)^(.*\+ )RESUME_MODE=disable", rb"\1RESUME_MODE=disable")
    yield Case("as asked", "disabled resume", two, PASS)


def several_lines() -> Iterator[Case]:
    """A command over several lines, as scripts print it, that asks for something else."""
    for index, override in enumerate((f"{LORA}=32", f"{ACTOR}.tensor_model_parallel_size=2", "trainer.save_freq=3")):
        log = commanded(unechoed(base("one")), override)
        split = COMMAND.sub(lambda found: re.sub(rb" (?=[\w+.]+=)", b" \\\\\n    ", found[0]), log)
        key = override.partition("=")[0]
        yield Case("command over several lines", f"{override} below", split, BLOCKED, (), (key,), bool(index % 2))


def cases() -> tuple[Case, ...]:
    """All cases."""
    return (*asked(), *shown(), *counted(), *kept(), *several_lines(), *as_asked())
