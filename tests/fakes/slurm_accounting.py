"""Slurm's accounting on this machine: mariadbd and slurmdbd in a folder of their own, for the cluster of one test."""

import getpass
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.patience import HANG_S
from tests.fakes.slurm_cluster import SlurmCluster, free_port, slurm_cluster

_DAEMON = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=root
StorageLoc=accounting
"""
_CLUSTER = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/socket
MinJobAge={forgets_after_s}"""


@contextmanager
def accounted_cluster(folder: Path, *, forgets_after_s: int) -> Iterator[SlurmCluster]:
    """A cluster with accounting, whose controller forgets jobs soon after their end."""
    port, database_port = free_port(), free_port()
    more = _CLUSTER.format(port=port, folder=folder, forgets_after_s=forgets_after_s)
    text = _DAEMON.format(folder=folder, port=port, user=getpass.getuser(), database_port=database_port)
    (folder / "slurmdbd.conf").write_text(text)
    (folder / "slurmdbd.conf").chmod(0o600)
    before = {"mariadbd": _database(folder, database_port), "slurmdbd": ["slurmdbd", "-D"]}
    with slurm_cluster(folder, more=more, before=before) as cluster:
        yield cluster


def _database(folder: Path, port: int) -> list[str]:
    """The words that start a database that asks for no password; its files are made first."""
    data = folder / "database"
    user = f"--user={getpass.getuser()}"
    words = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", user, "--skip-test-db"]
    subprocess.run(words, check=True, capture_output=True, timeout=HANG_S)
    own = (f"--datadir={data}", f"--socket={folder}/database.socket", f"--pid-file={folder}/database.pid", user)
    small = ("--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--skip-grant-tables")
    return ["mariadbd", "--no-defaults", *own, *small, f"--port={port}", "--bind-address=127.0.0.1"]
