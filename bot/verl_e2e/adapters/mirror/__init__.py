"""Repositories of a forge as bare partial clones below a cache folder: commits and trees whole, contents on demand.

    asking    the clone of a child process, which may not fetch
    mirrors   one clone for each repository, and the trees of a pull request or a merge group

Nothing about the forge is written into a clone, neither its address nor a token: both are handed to the one git that
fetches. So whatever else reads the clone can never reach the network.
Errors: `verl_e2e.ports.ForgeError`; `passing` where the network or another process is to blame.
"""

from verl_e2e.adapters.mirror.mirrors import Mirrors as Mirrors
from verl_e2e.git.clone import Bounds as Bounds
