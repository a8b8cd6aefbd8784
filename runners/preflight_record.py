"""What preflight found out, as the document that stays in the run folder."""

import os

from bot.core.jobs import Job
from bot.core.record import Environment
from runners.preflight import Preflight
from runners.worktrees import Trees


def environment_document(job: Job, trees: Trees, found: Preflight) -> Environment:
    """`environment.json` of the run; command and process variables are those of the first start of the wrapper."""
    first = found.launches[0]
    return Environment(
        repositories=trees.states,
        import_roots=trees.import_roots,
        imports=found.imports,
        findings=found.findings,
        python=found.interpreter.version,
        packages=dict(found.interpreter.versions),
        hand_installed=found.interpreter.hand_installed,
        gpus=found.gpus,
        driver=found.driver,
        cpu_count=len(os.sched_getaffinity(0)),
        image=found.image,
        command=first.argv,
        process=dict(first.set_here),
        site=job.site.name,
    )
