"""The service's HTTP surface.

    app           three pages, and what is answered
    bodies        receives the body of a webhook: how much at once, for how long, and whose goes first
    connections   the server's protocol: connections that say nothing are closed

A stranger who talks never keeps a signed delivery out: what is refused is the connection that has held a place longest,
and GitHub's deliveries hold one for some hundredths of a second.
"""

from verl_e2e.web.app import Door as Door
from verl_e2e.web.app import create_app as create_app
from verl_e2e.web.bodies import BODY_BYTES as BODY_BYTES
from verl_e2e.web.connections import PatientProtocol as PatientProtocol
