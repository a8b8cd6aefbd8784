"""The HTTP interface of the service.

Unsigned requests cannot shut out signed deliveries: over a limit the oldest connection is closed, and a delivery from
GitHub takes only a few hundredths of a second.
"""

from verl_e2e.web.app import BODY_BYTES as BODY_BYTES
from verl_e2e.web.app import Door as Door
from verl_e2e.web.app import PatientProtocol as PatientProtocol
from verl_e2e.web.app import Probes as Probes
from verl_e2e.web.app import create_app as create_app
from verl_e2e.web.login import PageLogin as PageLogin
from verl_e2e.web.pages import PageSources as PageSources
from verl_e2e.web.pages import page_routes as page_routes
