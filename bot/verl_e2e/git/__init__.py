"""git, as every part of verl-e2e uses it: the standard library and `verl_e2e.core`, so that the runner may import it.

program     starts git: a closed environment, settings of our own, limits of time, output and memory
output      parses what git prints
repository  reads a repository by its objects
clone       one bare clone on disk: fetched under a lock, made again when damaged or too large
failures    what git says when a fetch fails, as what it means for us
"""
