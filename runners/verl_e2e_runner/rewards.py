"""Toy rewards for the learning signal: what a random model of a few million parameters can learn in twenty steps.

A consumer loads this file by its path, outside any package, so it imports nothing.
"""


def digit_share(
    data_source: str, solution_str: str, ground_truth: object, extra_info: object = None, **kwargs: object
) -> float:
    """The percentage of ASCII digits among the characters of an answer, 0 for an empty one.

    No answer to the question is needed, every sampled token counts, and a model that starts anywhere can move it.
    In percent because the value head of a fresh critic spreads its guesses over some tenths: against them
    a share between 0 and 1 would vanish. The signature is verl's; the other arguments play no part.
    """
    del data_source, ground_truth, extra_info, kwargs
    digits = sum(character in "0123456789" for character in solution_str)
    return 100.0 * digits / max(1, len(solution_str))
