"""Everything that talks to GitHub's API.

    session         our identity (App, fixed token, none), and a requester for each repository
    requester       one request: counted, rate limited, repeated only when that is safe
    actions         the back end that runs jobs on GitHub Actions runners, with `workflows`
    pulls, checks, administration      the other ports

Errors: `verl_e2e.ports.ForgeError` and `verl_e2e.ports.UnknownPullError`, nothing else.
"""
