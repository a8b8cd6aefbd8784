"""Names the concrete classes: the one place that knows which adapter serves which port."""

from bot.wiring.checking import CheckOrder as CheckOrder
from bot.wiring.checking import beside_job as beside_job
from bot.wiring.checking import check as check
from bot.wiring.checking import follow_up_run as follow_up_run
from bot.wiring.demo import DEMO_JOB as DEMO_JOB
from bot.wiring.demo import demonstration as demonstration
from bot.wiring.errors import UsageError as UsageError
from bot.wiring.folders import draw_plots as draw_plots
from bot.wiring.folders import keep_bands as keep_bands
from bot.wiring.folders import log_facts as log_facts
from bot.wiring.folders import log_with_times as log_with_times
from bot.wiring.folders import own_bands as own_bands
from bot.wiring.folders import read_job as read_job
from bot.wiring.folders import read_junit_file as read_junit_file
from bot.wiring.folders import run_folders as run_folders
from bot.wiring.folders import signal_source as signal_source
from bot.wiring.planning import PlanOrder as PlanOrder
from bot.wiring.planning import backtest as backtest
from bot.wiring.planning import explain as explain
from bot.wiring.planning import lint_policy as lint_policy
from bot.wiring.planning import plan_change as plan_change
from bot.wiring.planning import replay as replay
from bot.wiring.planning import verl_uses as verl_uses
