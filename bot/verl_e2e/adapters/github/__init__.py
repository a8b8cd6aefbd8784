"""Everything that talks to GitHub's API, through PyGithub.

    session         who we are (App, fixed token, no one), one courier for each thread and repository
    courier         one request: counted, paced, sent again only where that cannot do harm
    pace            how often we write, and how many requests were sent
    answers         what GitHub answers, only the keys that we use
    retry           when a request is sent again and how long we wait; no one else retries
    tokens          installation tokens, narrowed to one repository and the permissions that we need
    actions         the back end that runs jobs on GitHub Actions runners, by `workflows` and in the words of `refusals`
    pulls, conversation, checks, people, administration      the other ports
    check_limits, downloads                                  what must hold before and after

Errors: `verl_e2e.ports.ForgeError` and `verl_e2e.ports.UnknownPullError`, nothing else.
"""
