"""Repositories of a forge as bare partial clones below a cache folder: commits and trees whole, contents on demand.

    clone     one clone on disk: fetched under a lock, made again when damaged or too large
    asking    the clone of a child process, which may not fetch
    failures  what git says when a fetch fails, as what it means for us
    mirrors   one clone for each repository, and the trees of a pull request or a merge group

Nothing about the forge is written into a clone, neither its address nor a token: both are handed to the one git that
fetches. So whatever else reads the clone can never reach the network.
Errors: `verl_e2e.ports.ForgeError`; `passing` where the network or another process is to blame.
"""

from verl_e2e.adapters.mirror.clone import Bounds as Bounds
from verl_e2e.adapters.mirror.mirrors import Mirrors as Mirrors
