"""git, as every part of verl-e2e uses it: the standard library and `verl_e2e.core`, so that the runner may import it.

program     starts git in a closed environment with limits, parses what it prints, says why a fetch failed
repository  reads a repository by its objects
clone       one bare clone on disk: fetched under a lock, made again when damaged or too large
"""
