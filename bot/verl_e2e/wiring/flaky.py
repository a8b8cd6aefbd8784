"""The causes that come and go in a repository, by the database of the service."""

from pathlib import Path

from verl_e2e.adapters.store import SqlLedger, open_store
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.flaky import FlakyCause, flaky_causes


def flaky_of(database_url: str, repository: str) -> tuple[FlakyCause, ...]:
    """The causes of the runs of a repository; UserError where there is no such database."""
    _require_file(database_url)
    store = open_store(database_url)
    try:
        return flaky_causes(SqlLedger(store).runs(repository))
    finally:
        store.close()


def _require_file(database_url: str) -> None:
    """Refuse a SQLite file that is not there: opening it would make an empty one."""
    name = database_url.removeprefix("sqlite:///")
    if name != database_url and not Path(name).is_file():
        raise UserError(f"{name} is not there; set VERL_E2E_DATA or DATABASE_URL as for `verl-e2e serve`")
