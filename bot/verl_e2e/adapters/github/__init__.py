"""Everything that talks to GitHub's API, through PyGithub.

    session         our identity (App, fixed token, none), one requester for each thread and repository
    requester       one request: counted, rate limited, repeated only when that is safe
    pace            how often we may write, and how many requests were sent
    answers         the answers of GitHub, only the keys that we use
    retry           when a request is repeated and how long we wait; no other module retries
    tokens          installation tokens, narrowed to one repository and the permissions that we need
    actions         the back end that runs jobs on GitHub Actions runners, with `workflows` and `refusals`
    pulls, conversation, checks, people, administration      the other ports
    check_limits, downloads                                  checks before and after a request

Errors: `verl_e2e.ports.ForgeError` and `verl_e2e.ports.UnknownPullError`, nothing else.
"""
